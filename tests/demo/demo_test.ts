import { chmodSync, cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { assert, assertEquals, assertStringIncludes } from "@std/assert";
import { chunkBytesFor } from "../../src/cli/demo/input.ts";
import { currentRuntime, type Exit, otherRuntime, runRuntime, runtimePath, skipWithout } from "../helpers/runtimes.ts";
import { testAgreement } from "./agreement.ts";
import { runDemo, SAMPLE, startDemo, TemporaryFolder, waitForLine } from "./helpers.ts";

const NO_LIBRARY = { CUDA_IPC_DRIVER: undefined, CUDA_IPC_LIBCUDA: "/no/libcuda.so.1" };

/** A clear error: the wanted text, exit code 1, no stack, and no side was started. */
function assertRefused(exit: Exit, text: string): void {
  assertStringIncludes(exit.stderr, text);
  assertEquals(exit.code, 1);
  assert(!/^\s+at /m.test(exit.stderr), exit.stderr);
  assert(!exit.stdout.includes("producer"), exit.stdout);
}

testAgreement("simulator");

test("the file that ships has an odd length and at least three chunks", () => {
  const { byteLength } = readFileSync(SAMPLE);
  assertEquals(byteLength % 2, 1);
  assert(byteLength > 2 * chunkBytesFor(byteLength));
});

test("chunks grow with the file, within bounds", () => {
  assertEquals(chunkBytesFor(1), 65536);
  assertEquals(chunkBytesFor(1024 ** 3), 4 * 1024 * 1024);
  assertEquals(chunkBytesFor(1024 ** 4), 8 * 1024 * 1024);
});

test("demo: without a driver it uses the simulator and says so first", { skip: skipWithout(otherRuntime) }, async () => {
  const exit = await runDemo([], NO_LIBRARY);
  assertEquals(exit.stdout.split("\n")[0], "No GPU here (there is no CUDA driver): using the simulator instead");
  assertEquals(exit.code, 0, exit.stderr);
});

test("demo: where CUDA_IPC_DRIVER asks for CUDA it does not fall back", async () => {
  assertRefused(
    await runDemo([], { ...NO_LIBRARY, CUDA_IPC_DRIVER: "cuda" }),
    "DriverNotFoundError: Cannot open the CUDA driver",
  );
});

test("demo: a file that cannot be shared is a clear error", async () => {
  using folder = new TemporaryFolder();
  const missing = join(folder.path, "missing");
  const cases: [string, string][] = [
    [missing, `InvalidArgumentError: Cannot share ${missing}: there is no such file`],
    [join(folder.file("file", "x"), "in it"), "a part of its path is not a directory"],
    [folder.path, "it is a directory"],
    ["/dev/null", "it is not a regular file"],
    [folder.file("empty", ""), "it is empty"],
  ];
  for (const [file, text] of cases) assertRefused(await runDemo(["--file", file]), text);
});

test("demo: a file without permission", { skip: process.getuid?.() === 0 ? "root may read every file" : false }, async () => {
  using folder = new TemporaryFolder();
  const file = folder.file("secret", "x");
  chmodSync(file, 0);
  assertRefused(await runDemo(["--file", file]), "permission was refused");
});

test("demo: a file larger than the device's memory", async () => {
  using folder = new TemporaryFolder();
  const file = folder.sparseFile("large", 65 * 1024 * 1024);
  const exit = await runDemo(["--file", file], { CUDA_IPC_DRIVER: "simulator", CUDA_IPC_SIM_MEMORY: "64MiB" });
  assertRefused(exit, "has 67108864 bytes (64.0 MiB) of memory. Name a smaller file with --file");
});

test("demo: a file larger than what the device has left", { skip: skipWithout(otherRuntime) }, async () => {
  using folder = new TemporaryFolder();
  const file = folder.sparseFile("large", 39 * 1024 * 1024);
  const exit = await runDemo(["--file", file], { CUDA_IPC_DRIVER: "simulator", CUDA_IPC_SIM_MEMORY: "40MiB" });
  assertEquals(exit.code, 1);
  assertStringIncludes(
    exit.stderr,
    `producer  InvalidArgumentError: Cannot share ${file}: its 40894464 bytes (39.0 MiB) do not fit`,
  );
  assert(!/^\s+at /m.test(exit.stderr), exit.stderr);
});

test("demo: ended by a signal, it ends both sides", { skip: skipWithout(otherRuntime) }, async () => {
  using folder = new TemporaryFolder();
  await using demo = startDemo(["--file", folder.sparseFile("large", 512 * 1024 * 1024)]);
  const line = await waitForLine(demo, "producer  Deno");
  const pid = Number(/process (\d+)/.exec(line)?.[1]);
  assert(existsSync(`/proc/${pid}`));
  process.kill(demo.pid, "SIGTERM"); // child.kill would make Deno report the signal, whatever the child does with it
  assertEquals((await demo.exited).code, 1);
  while (isRunning(pid)) await sleep(10);
});

/** A process that nobody has waited for yet is still there, as a zombie. */
function isRunning(pid: number): boolean {
  return existsSync(`/proc/${pid}/stat`) && !/\) Z /.test(readFileSync(`/proc/${pid}/stat`, "utf8"));
}

test("demo: a runtime that is not there is a clear error", async () => {
  const variable = otherRuntime === "deno" ? "CUDA_IPC_DENO" : "CUDA_IPC_BUN";
  assertRefused(await runDemo([], { [variable]: "/no/runtime" }), `${variable} is "/no/runtime", which is not there`);
});

test("demo: --help, and what it does not know", async () => {
  const help = await runDemo(["--help"]);
  assertEquals(help.code, 0);
  assertStringIncludes(help.stdout, "--corrupt");
  for (const args of [["--unknown"], ["file"], ["--file"]]) {
    const exit = await runDemo(args);
    assertEquals(exit.code, 2);
    assertStringIncludes(exit.stderr, "--corrupt");
    assert(!/^\s+at /m.test(exit.stderr), exit.stderr);
  }
});

test("demo: runs without node_modules, with the runtimes on PATH", { skip: skipWithout(otherRuntime) }, async () => {
  using folder = new TemporaryFolder();
  for (const part of ["mod.ts", "src", "ffi", "deno.json", "package.json"]) {
    cpSync(fileURLToPath(new URL(`../../${part}`, import.meta.url)), join(folder.path, part), { recursive: true });
  }
  const programs = join(folder.path, "bin");
  mkdirSync(programs);
  for (const runtime of ["deno", "bun"] as const) symlinkSync(runtimePath(runtime), join(programs, runtime));
  const exit = await runRuntime(currentRuntime, join(folder.path, "src/cli/demo.ts"), [], {
    cwd: mkdtempSync(join(folder.path, "elsewhere-")),
    env: { CUDA_IPC_DRIVER: "simulator", CUDA_IPC_DENO: undefined, CUDA_IPC_BUN: undefined, PATH: programs },
  });
  assertEquals(exit.code, 0, exit.stdout + exit.stderr);
});
