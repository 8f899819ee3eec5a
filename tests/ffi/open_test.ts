import { test } from "node:test";
import { copyFileSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { assert, assertEquals, assertMatch, assertStringIncludes, assertThrows } from "@std/assert";
import { openLibrary, type SymbolTable } from "../../ffi/mod.ts";
import { createNativeDriver, libcudaCandidates } from "../../src/driver/native.ts";
import { DriverNotFoundError, InvalidArgumentError, LibraryNotFoundError, NotSupportedError } from "../../src/errors.ts";
import { compileLibrary, skipWithoutCompiler } from "../../tools/gcc.ts";
import { currentRuntime, runRuntime } from "../helpers/runtimes.ts";
import { libraryPath } from "./library.ts";

const skip = skipWithoutCompiler();
const program = new URL("./open_program.ts", import.meta.url);

const give = (name: string, optional?: true): SymbolTable => ({
  [name]: { prototype: `int32_t ${name}(int32_t)`, args: ["i32"], result: "i32", optional },
});

test("the first candidate that opens is taken", { skip }, () => {
  const lib = openLibrary("the test library", ["/no/such/one.so", libraryPath()], give("fail_with"));
  assertEquals(lib.fail_with!(3), -1);
});

test("a missing library: the error lists every attempt, in order", () => {
  const candidates = ["/no/such/one.so", "/no/such/two.so", "libcuda-ipc-no-such-thing.so"];
  const open = () => openLibrary("the test library", candidates, give("fail_with"));
  const error = assertThrows(open, LibraryNotFoundError, "Cannot open the test library") as LibraryNotFoundError;
  assertEquals(error.attempts.length, 3);
  error.attempts.forEach((attempt, index) => {
    assertStringIncludes(attempt, candidates[index]);
    assertStringIncludes(error.message, attempt);
  });
});

test("optional symbols are resolved one by one", { skip }, () => {
  const table = {
    keep_i32: { prototype: "int32_t keep_i32(int32_t)", args: ["i32"], result: "i32", optional: true },
    no_such_call: { prototype: "int32_t no_such_call(int32_t)", args: ["i32"], result: "i32", optional: true },
    keep_u8: { prototype: "int32_t keep_u8(uint8_t)", args: ["u8"], result: "i32" },
    neither_this: { prototype: "int32_t neither_this(void)", args: [], result: "i32", optional: true },
  } as const satisfies SymbolTable;
  const lib = openLibrary("the test library", [libraryPath()], table);
  assertEquals([lib.no_such_call, lib.neither_this], [null, null]);
  assertEquals(lib.keep_i32!(-9), -9);
  assertEquals(lib.keep_u8(1), 0);
});

test("a required symbol that is missing: the error names it", { skip }, () => {
  const open = () => openLibrary("the test library", [libraryPath()], give("no_such_call"));
  const error = assertThrows(open, LibraryNotFoundError, "no_such_call") as LibraryNotFoundError;
  assertEquals(error.attempts.length, 1);
});

test("a library has its symbols and nothing else: there is no way to close it", { skip }, () => {
  assertEquals(Object.keys(openLibrary("the test library", [libraryPath()], give("keep_i32"))), ["keep_i32"]);
});

test("a library in the working directory is not loaded by a bare name", { skip }, async () => {
  const folder = mkdtempSync(join(tmpdir(), "cuda-ipc-planted-"));
  try {
    // each prints at load, so that even a library that is refused afterwards gives itself away
    const loud = `#include <stdio.h>
      __attribute__((constructor)) static void loaded(void) { puts("PLANTED"); fflush(stdout); }
      int cuInit(unsigned flags) { return flags; }`;
    const planted = compileLibrary(loud);
    for (const name of ["libcuda.so.1", "libc.so.6", "planted.so"]) copyFileSync(planted, join(folder, name));

    const { code, stdout } = await runRuntime(currentRuntime, program, ["planted.so"], { cwd: folder });
    assertEquals(code, 0);
    assertMatch(stdout, /^libcuda\.so\.1: .*\nplanted\.so: not found\n$/); // the machine may have the real driver

    // and the same library is loud where it is meant to be opened
    const meant = await runRuntime(currentRuntime, program, [join(folder, "planted.so")], { cwd: folder });
    assertStringIncludes(meant.stdout, "PLANTED");
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("CUDA_IPC_LIBCUDA must be absolute", () => {
  for (const override of ["libcuda.so.1", "./libcuda.so.1", "../x/libcuda.so", "lib/libcuda.so"]) {
    assertThrows(() => libcudaCandidates(override), InvalidArgumentError, `CUDA_IPC_LIBCUDA is "${override}"`);
    assertThrows(() => createNativeDriver(override), InvalidArgumentError);
  }
  assertEquals(libcudaCandidates("/opt/libcuda.so.1"), ["/opt/libcuda.so.1"]);
  assert(libcudaCandidates(undefined).length > 1);
  assertEquals(libcudaCandidates(""), libcudaCandidates(undefined));
});

test("CUDA_IPC_LIBCUDA that is not there: the error says what was tried and what to do", () => {
  const error = assertThrows(() => createNativeDriver("/no/such/libcuda.so.1"), DriverNotFoundError, "/no/such/libcuda.so.1");
  assertStringIncludes((error as Error).message, "CUDA_IPC_LIBCUDA");
});

test("a runtime without FFI: importing is fine, the first use is NotSupportedError", async () => {
  const { code, stdout, stderr } = await runRuntime(currentRuntime, new URL("./no_ffi_program.ts", import.meta.url));
  assertEquals([code, stdout, stderr], [0, `${NotSupportedError.name}\n`.repeat(3), ""]);
});

test("Deno without --allow-ffi: the error says that the permission is missing", {
  skip: currentRuntime === "deno" ? false : "Bun has no permissions",
}, async () => {
  const { code, stdout } = await runRuntime("deno", program, ["libc.so.6"], { flags: ["--no-prompt"] });
  assertEquals(code, 0);
  assertStringIncludes(stdout, "libc.so.6: not found");
});
