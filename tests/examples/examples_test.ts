/** Every example runs by itself and ends well, on whatever driver the suite is for. */
import { assertEquals, assertMatch } from "@std/assert";
import { test } from "node:test";
import process from "node:process";
import { currentRuntime, runRuntime } from "../helpers/runtimes.ts";

for (const name of ["frame_server", "worker_pool", "shared_weights"]) {
  test(`examples/${name}.ts`, { timeout: 60_000 }, async () => {
    const env = { CUDA_IPC_DRIVER: process.env.CUDA_IPC_DRIVER ?? "simulator", CUDA_IPC_SIM_MACHINE: `${name}.${process.pid}` };
    const file = new URL(`../../examples/${name}.ts`, import.meta.url);
    const { code, stdout, stderr } = await runRuntime(currentRuntime, file, [], { env, timeoutMs: 60_000 });
    assertEquals(code, 0, stdout + stderr);
    assertMatch(stdout.trim().split("\n").at(-1)!, /^ok: /);
  });
}
