import process from "node:process";
import { test } from "node:test";
import { assertEquals, assertMatch } from "@std/assert";
import { currentRuntime, runRuntime } from "../helpers/runtimes.ts";

test("lost buffers are freed, with one warning", async () => {
  const exit = await runRuntime(currentRuntime, new URL("./garbage_program.ts", import.meta.url));
  assertEquals([exit.code, exit.timedOut], [0, false], exit.stdout + exit.stderr);
  assertEquals(exit.stdout, "freed\n");
  assertEquals(exit.stderr.match(/A DeviceBuffer was garbage-collected/g)?.length, 1);
  assertMatch(exit.stderr, /CUDA_IPC_NOT_CLOSED/);
  assertEquals(process.exitCode ?? 0, 0);
});
