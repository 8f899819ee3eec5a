/** Prints who it is. */
import { ownIdentity } from "../../src/os/process.ts";

console.log(JSON.stringify(ownIdentity()));
