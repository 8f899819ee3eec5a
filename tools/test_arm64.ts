/**
 * Runs the conformance suite and the tests of passing file descriptors on an emulated AArch64: both runtimes' Linux builds
 * under qemu-user, against C libraries of a cross compiler. Optional: it needs Debian or Ubuntu (x86-64), cuda.h and
 * some minutes; as root it installs the rest itself.
 *
 *   npm run test:arm64
 *
 * What that proves: the ABI and the plumbing, tested under emulation; never run on the real platform.
 *
 * @module
 */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import type { Runtime } from "../tests/helpers/runtimes.ts";
import { buildLibraries, cacheFolder, installRuntime, needPrograms, report, run, runTests } from "./emulation.ts";
import { skipWithoutCudaHeader } from "./gcc.ts";

const COMPILER = "aarch64-linux-gnu-gcc";
const FILES = [
  "tests/conformance/driver_test.ts",
  "tests/ffi/calls_test.ts",
  "tests/ffi/errno_test.ts",
  "tests/ffi/guards_test.ts",
  "tests/ffi/memory_test.ts",
  "tests/os/connection_test.ts",
  "tests/os/memory_test.ts",
  "tests/os/process_test.ts",
  "tests/os/socket_test.ts",
];
const PROGRAMS: Readonly<Record<Runtime, readonly [string, string]>> = {
  deno: ["@deno/linux-arm64-glibc", "deno"],
  bun: ["@oven/bun-linux-aarch64", "bin/bun"],
};

async function main(): Promise<void> {
  if (process.platform !== "linux" || process.arch !== "x64") throw new Error("Cannot emulate AArch64: this needs Linux x86-64");
  const reason = skipWithoutCudaHeader();
  if (reason) throw new Error(`Cannot build the driver for the tests: ${reason}`);
  needPrograms({ "qemu-aarch64": "qemu-user", [COMPILER]: "gcc-aarch64-linux-gnu libc6-dev-arm64-cross" });
  const cache = cacheFolder("cuda-ipc-arm64");
  const libraries = join(cache, "libraries");
  buildLibraries(COMPILER, libraries);

  const runtimes = Object.keys(PROGRAMS) as Runtime[];
  const paths = Object.fromEntries(runtimes.map((runtime) => {
    const [name, program] = PROGRAMS[runtime];
    const emulated = join(installRuntime(runtime, name, join(cache, "runtimes")), program);
    const path = join(cache, runtime); // the tests start it, too
    writeFileSync(path, `#!/bin/sh\nexec qemu-aarch64 -L /usr/aarch64-linux-gnu "${emulated}" "$@"\n`, { mode: 0o755 });
    return [runtime, path];
  }));
  console.log("The C library's functions, against the headers for AArch64:");
  console.log(run(process.execPath, ["test", "-A", "--no-check", "tests/conformance/libc_test.ts"], { env: { CC: COMPILER } }));

  const env = {
    ...process.env,
    CC: COMPILER,
    CUDA_IPC_DRIVER: "simulator",
    CUDA_IPC_TEST_BUN: paths.bun,
    CUDA_IPC_TEST_CALLS: "3000",
    CUDA_IPC_TEST_DENO: paths.deno,
    CUDA_IPC_TEST_EMULATED: "qemu",
    CUDA_IPC_TEST_LIBRARIES: libraries,
    NO_COLOR: "1",
  };
  const outcomes = [];
  for (const runtime of runtimes) {
    outcomes.push(await runTests(runtime, [paths[runtime]], FILES, env));
  }
  report(
    outcomes,
    "AArch64: ABI and plumbing tested under emulation (qemu-user), never run on the real platform. Not proved: NVIDIA's\n" +
      `driver, memory order between processors. Kept for the next run: ${cache}`,
  );
}

try {
  await main();
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 1;
}
