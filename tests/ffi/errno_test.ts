import process from "node:process";
import { test } from "node:test";
import { Worker } from "node:worker_threads";
import { assertEquals } from "@std/assert";
import { errno } from "../../ffi/mod.ts";
import { skipWithoutLibrary } from "../../tools/gcc.ts";
import { collectGarbage } from "../helpers/garbage.ts";
import { library, libraryPath } from "./library.ts";

const skip = skipWithoutLibrary();

/** Fewer do where the processor is emulated. */
const ROUNDS = Number(process.env.CUDA_IPC_TEST_CALLS ?? 100_000);

test("errno is what the call just made has left", { skip }, () => {
  const lib = library();
  for (let code = 1; code < 134; code++) {
    lib.fail_with(code);
    assertEquals(errno(), code);
  }
});

test("errno stays right in a hot loop, with allocation and collection between the call and the reading", { skip }, () => {
  const lib = library();
  let wrong = 0;
  for (let round = 0; round < ROUNDS; round++) {
    const code = 1 + round % 133;
    lib.fail_with(code);
    const garbage = [new Uint8Array(100), { round }, `text ${round}`];
    if (round % 4000 === 0) collectGarbage();
    if (errno() !== code || garbage.length !== 3) wrong++;
  }
  assertEquals(wrong, 0);
});

test("each thread has its own errno", { skip, timeout: 30_000 }, async () => {
  const lib = library();
  const worker = new Worker(new URL("./errno_worker.ts", import.meta.url), {
    workerData: { path: libraryPath(), rounds: ROUNDS },
  });
  try {
    let answer: unknown;
    worker.on("message", (message) => answer = message);
    const failed = new Promise((_, reject) => worker.on("error", reject));
    let wrong = 0;
    while (answer === undefined) {
      for (let code = 200; code < 5200; code++) {
        lib.fail_with(code);
        if (errno() !== code) wrong++;
      }
      await Promise.race([new Promise((resolve) => setTimeout(resolve, 1)), failed]);
    }
    assertEquals({ here: wrong, worker: answer }, { here: 0, worker: { wrong: 0, rounds: ROUNDS } });
  } finally {
    await worker.terminate();
  }
});
