/** What environment_test.ts starts with few permissions: prints the variables that it is given. */
import process from "node:process";
import { environmentVariable } from "../../ffi/mod.ts";

const values = process.argv.slice(2).map((name) => [name, environmentVariable(name) ?? null]);
console.log(JSON.stringify(Object.fromEntries(values)));
