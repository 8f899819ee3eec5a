/** The simulator as users have it in their own tests: faults, reports and resets by the public API. */
import { test } from "node:test";
import { assertEquals } from "@std/assert";
import { currentRuntime, runRuntime } from "../helpers/runtimes.ts";

test("a user's tests inject faults, see what is left, and start anew, by the public API alone", async () => {
  const program = new URL("./public_program.ts", import.meta.url);
  const { stdout, stderr } = await runRuntime(currentRuntime, program, [], { env: { CUDA_IPC_SIM_FAULTS: undefined } });
  assertEquals({ stdout, stderr }, { stdout: "done\n", stderr: "" });
});
