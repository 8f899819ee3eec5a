import { test } from "node:test";
import { assertEquals } from "@std/assert";
import { currentRuntime, otherRuntime, runRuntime, type Runtime, skipWithout } from "../helpers/runtimes.ts";

const program = new URL("./environment_program.ts", import.meta.url);
const env = { CUDA_IPC_TEST_TEXT: "grüß /opt/x", CUDA_IPC_TEST_EMPTY: "", CUDA_IPC_TEST_UNSET: undefined };
const names = Object.keys(env);
const seen = { CUDA_IPC_TEST_TEXT: "grüß /opt/x", CUDA_IPC_TEST_EMPTY: "", CUDA_IPC_TEST_UNSET: null };
const nothing = { CUDA_IPC_TEST_TEXT: null, CUDA_IPC_TEST_EMPTY: null, CUDA_IPC_TEST_UNSET: null };

const cases: readonly { runtime: Runtime; flags?: readonly string[]; wanted: typeof seen | typeof nothing }[] = [
  { runtime: "deno", flags: ["-A"], wanted: seen },
  { runtime: "deno", flags: ["--allow-ffi", "--no-prompt"], wanted: seen },
  { runtime: "deno", flags: ["--allow-ffi", "--no-prompt", "--allow-env=CUDA_IPC_TEST_TEXT"], wanted: seen },
  { runtime: "deno", flags: ["--allow-ffi", "--deny-env"], wanted: nothing },
  { runtime: "bun", wanted: seen },
];

for (const { runtime, flags, wanted } of cases) {
  const skip = runtime === currentRuntime ? false : skipWithout(otherRuntime);
  test(`environment variables in ${runtime} ${flags?.join(" ") ?? ""}`, { skip }, async () => {
    const { code, stdout, stderr } = await runRuntime(runtime, program, names, { env, flags });
    assertEquals([code, stderr], [0, ""]);
    assertEquals(JSON.parse(stdout), wanted);
  });
}
