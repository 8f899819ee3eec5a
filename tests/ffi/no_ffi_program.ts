/** What open_test.ts starts: this runtime, made to look like one without FFI before ffi/ is used. */
import process from "node:process";
import { addressFromNumber, NativeBlock, openLibrary } from "../../ffi/mod.ts";

Object.defineProperty(globalThis, "Deno", { value: undefined });
Object.defineProperty(process, "getBuiltinModule", { value: undefined });

const uses = [
  () => openLibrary("the C library", ["libc.so.6"], {}),
  () => new NativeBlock(8),
  () => addressFromNumber(1),
];
for (const use of uses) {
  try {
    use();
    console.log("worked");
  } catch (error) {
    console.log((error as Error).name);
  }
}
