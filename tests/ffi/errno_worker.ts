/** What errno_test.ts runs on another thread: the same library, with codes that the main thread does not use. */
import { parentPort, workerData } from "node:worker_threads";
import { errno, openLibrary } from "../../ffi/mod.ts";
import { SYMBOLS } from "./library.ts";

const { path, rounds } = workerData as { path: string; rounds: number };
const lib = openLibrary("the test library", [path], SYMBOLS);
let wrong = 0;
for (let round = 0; round < rounds; round++) {
  const code = 1 + round % 133;
  lib.fail_with(code);
  if (errno() !== code) wrong++;
}
parentPort!.postMessage({ wrong, rounds });
