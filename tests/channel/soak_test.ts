/** A short soak in each runtime, and proof that it sees the two mistakes that it looks for. */
import { assert, assertEquals } from "@std/assert";
import process from "node:process";
import { test } from "node:test";
import { currentRuntime, runRuntime } from "../helpers/runtimes.ts";

const SOAK = new URL("../../tools/soak.ts", import.meta.url);

function soak(...args: string[]): ReturnType<typeof runRuntime> {
  return runRuntime(currentRuntime, SOAK, ["--seed", "4", ...args], { timeoutMs: 60_000 });
}

test("a short soak finds nothing", { timeout: 60_000 }, async () => {
  const { code, stdout, stderr } = await soak("--seconds", "4", "--min-sends", "100", "--min-kills", "3");
  assertEquals(code, 0, stdout + stderr);
});

test("a soak finds a use after the release", { timeout: 60_000 }, async () => {
  // A GPU takes longer to start its consumers
  const seconds = process.env.CUDA_IPC_DRIVER === "cuda" ? "8" : "2";
  const { code, stdout } = await soak("--seconds", seconds, "--plant", "use-after-free");
  assertEquals(code, 1, stdout);
  assert(/FAILED: stale read/.test(stdout), stdout);
});

test("a soak finds descriptors that were not closed", { timeout: 60_000 }, async () => {
  const { code, stdout } = await soak("--seconds", "2", "--plant", "fd-leak");
  assertEquals(code, 1, stdout);
  assert(/FAILED: \d+ file descriptors were not given back/.test(stdout), stdout);
});
