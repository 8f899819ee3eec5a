/** Libraries come from the system's directory and from nowhere else. */
import { copyFileSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { test } from "node:test";
import { assertEquals, assertStringIncludes } from "@std/assert";
import { systemDirectory } from "../../ffi/mod.ts";
import { currentRuntime, runRuntime } from "../helpers/runtimes.ts";
import { buildWindowsDriver } from "./driver.ts";

/** It puts a driver into the system's directory, which only an emulated Windows can bear. */
const skip = process.env.CUDA_IPC_TEST_EMULATED === "wine" ? false : "for an emulated Windows";
const program = new URL("./lookup_program.ts", import.meta.url);

test("libraries in the working directory are not loaded, the system's are", { skip, timeout: 60_000 }, async () => {
  const folder = mkdtempSync(join(tmpdir(), "cuda-ipc-planted-"));
  const installed = join(systemDirectory(), "nvcuda.dll");
  const run = () =>
    runRuntime(currentRuntime, program, [], { cwd: folder, env: { CUDA_IPC_DRIVER: "cuda", CUDA_IPC_LIBCUDA: undefined } });
  try {
    for (const name of ["nvcuda.dll", "kernel32.dll", "ucrtbase.dll"]) copyFileSync(buildWindowsDriver(), join(folder, name));
    const without = await run();
    assertEquals(without.code, 0, without.stderr);
    assertStringIncludes(without.stdout, "DriverNotFoundError: Cannot open the CUDA driver");
    assertStringIncludes(without.stdout, "C:\\Windows\\System32\\nvcuda.dll");

    copyFileSync(buildWindowsDriver(), installed);
    assertEquals((await run()).stdout.trim(), "Sections");
  } finally {
    rmSync(installed, { force: true });
    rmSync(folder, { recursive: true });
  }
});
