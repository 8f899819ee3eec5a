import { mkdtempSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { test } from "node:test";
import { assert, assertEquals, assertThrows } from "@std/assert";
import { NotSupportedError } from "../../src/errors.ts";
import { currentRuntime, runtimeCommand, runtimeTitle, runtimeVersion } from "../../src/os/runtime.ts";
import { currentRuntime as expected, otherRuntime } from "../helpers/runtimes.ts";

const SCRIPT = new URL("./identity_program.ts", import.meta.url);
const VARIABLE = otherRuntime === "deno" ? "CUDA_IPC_DENO" : "CUDA_IPC_BUN";

/** Runs `body` with a variable set, or taken away. */
function withVariable(value: string | undefined, body: () => void): void {
  const before = process.env[VARIABLE];
  const set = (text: string | undefined) => {
    if (text === undefined) delete process.env[VARIABLE];
    else process.env[VARIABLE] = text;
  };
  set(value);
  try {
    body();
  } finally {
    set(before);
  }
}

test("this runtime is its own program", () => {
  assertEquals(currentRuntime(), expected);
  const { program, args } = runtimeCommand(expected, SCRIPT);
  assertEquals(program, process.execPath);
  assertEquals(args.at(-1)?.endsWith("tests/os/identity_program.ts"), true);
  assertEquals(args.slice(0, -1), expected === "deno" ? ["run", "-A"] : []);
});

test("the runtime's title and version", () => {
  assertEquals(runtimeTitle("deno"), "Deno");
  assert(/^\d+\.\d+\.\d+/.test(runtimeVersion()), runtimeVersion());
});

test("a variable names the other runtime's program", () => {
  const folder = mkdtempSync(join(tmpdir(), "cuda-ipc-test-"));
  try {
    const program = join(folder, "program");
    symlinkSync(process.execPath, program);
    withVariable(program, () => assertEquals(runtimeCommand(otherRuntime, SCRIPT).program, program));
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("a variable that names nothing is refused", () => {
  withVariable("/no/program", () => {
    assertThrows(() => runtimeCommand(otherRuntime, SCRIPT), NotSupportedError, `${VARIABLE} is "/no/program"`);
  });
});
