/**
 * Compiles the C libraries of the tests into a folder, for a machine that has no compiler:
 *
 *   CC=x86_64-w64-mingw32-gcc CUDA_IPC_TEST_LIBRARIES=FOLDER deno run -A tools/build_test_libraries.ts [--windows]
 *
 * The tests use them when CUDA_IPC_TEST_LIBRARIES names the folder there. `--windows` adds the
 * driver of tests/windows/. Prints the path of each.
 *
 * @module
 */
import process from "node:process";
import { buildVariant, VARIANTS } from "../tests/conformance/variants.ts";
import { libraryPath } from "../tests/ffi/library.ts";
import { buildWindowsDriver } from "../tests/windows/driver.ts";

for (const variant of VARIANTS) console.log(buildVariant(variant));
console.log(libraryPath());
if (process.argv.includes("--windows")) console.log(buildWindowsDriver());
