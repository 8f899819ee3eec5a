/**
 * Compiles the C libraries of the tests into a folder, for a machine that has no compiler:
 *
 *   CC=x86_64-w64-mingw32-gcc CUDA_IPC_TEST_LIBRARIES=FOLDER deno run -A tools/build_test_libraries.ts
 *
 * The tests use them when CUDA_IPC_TEST_LIBRARIES names the folder there. Prints the path of each.
 *
 * @module
 */
import { buildVariant, VARIANTS } from "../tests/conformance/variants.ts";
import { libraryPath } from "../tests/ffi/library.ts";

for (const variant of VARIANTS) console.log(buildVariant(variant));
console.log(libraryPath());
