/** What runtimes_test.ts starts. */
import process from "node:process";
import { createInterface } from "node:readline";
import { currentRuntime } from "./runtimes.ts";

console.log(currentRuntime);
const [mode, code] = process.argv.slice(2);
if (mode === "exit") process.exit(Number(code));
if (mode === "echo") createInterface({ input: process.stdin }).on("line", (line) => console.log(line));
if (mode === "hang") { for (;;); }
