import { assertEquals, assertStringIncludes } from "@std/assert";
import { test } from "node:test";
import { runRuntime, skipWithout } from "../helpers/runtimes.ts";

const PROGRAM = new URL("minimal_program.ts", import.meta.url);

test("in Deno --allow-ffi alone is enough", { skip: skipWithout("deno") }, async () => {
  const exit = await runRuntime("deno", PROGRAM, [], { flags: ["--no-prompt", "--no-check", "--allow-ffi"] });
  assertEquals([exit.stdout, exit.stderr, exit.code], ["7 true true 64\n", "", 0]);
});

test("in Deno without --allow-ffi the error names the permission", { skip: skipWithout("deno") }, async () => {
  const exit = await runRuntime("deno", PROGRAM, [], { flags: ["--no-prompt", "--no-check"] });
  assertEquals([exit.code, exit.stderr.includes("--allow-ffi"), exit.stderr.includes("DriverNotFoundError")], [1, true, true]);
});

for (const runtime of ["deno", "bun"] as const) {
  test(`a wrong CUDA_IPC_DRIVER is named, in ${runtime}`, { skip: skipWithout(runtime) }, async () => {
    const exit = await runRuntime(runtime, PROGRAM, [], { env: { CUDA_IPC_DRIVER: "sim" } });
    assertStringIncludes(exit.stderr, 'the environment variable CUDA_IPC_DRIVER is "sim", expected "cuda" or "simulator"');
  });
}
