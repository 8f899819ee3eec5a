/** The ways in which a native call kills a process: each is a typed error here, or the API has no way to do it. */
import { test } from "node:test";
import { readdirSync, readFileSync } from "node:fs";
import { assert, assertEquals, assertNotMatch, assertThrows } from "@std/assert";
import * as ffi from "../../ffi/mod.ts";
import { InvalidArgumentError } from "../../src/errors.ts";
import { skipWithoutLibrary } from "../../tools/gcc.ts";
import { kept, library, libraryPath, SYMBOLS } from "./library.ts";

const skip = skipWithoutLibrary();

// deno-lint-ignore no-explicit-any
type Unchecked = any;

test("an empty, detached or foreign value where C wants bytes", { skip }, () => {
  const lib = library();
  const { calls } = kept();
  const detached = new Uint8Array(8);
  detached.buffer.transfer(0);
  const wrong: readonly Unchecked[] = [
    new Uint8Array(0),
    detached,
    new ArrayBuffer(8),
    new DataView(new ArrayBuffer(8)),
    new Float64Array(8),
    [1, 2, 3],
    "text",
    8,
    8n,
    null,
    undefined,
    { byteLength: 8 },
  ];
  for (const value of wrong) assertThrows(() => lib.keep_bytes(value, 0), InvalidArgumentError, "Cannot call keep_bytes");
  assertEquals(kept().calls, calls, "C was not called");
});

test("a struct by value of any length but 64", { skip }, () => {
  const lib = library();
  const out = ffi.addressFromNumber(8);
  lib.keep_struct(out, new Uint8Array(64).fill(1));
  const before = kept();
  const detached = new Uint8Array(64);
  detached.buffer.transfer(0);
  const wrong: readonly Unchecked[] = [
    ...[0, 1, 8, 63, 65, 128].map((length) => new Uint8Array(length)),
    detached,
    new ArrayBuffer(64),
    new BigUint64Array(8),
    "x".repeat(64),
    null,
    undefined,
  ];
  for (const value of wrong) {
    assertThrows(() => lib.keep_struct(out, value), InvalidArgumentError, "Cannot call keep_struct");
    assertThrows(() => lib.keep_struct_flags(out, value, 0), InvalidArgumentError, "Cannot call keep_struct_flags");
  }
  assertEquals(kept(), before, "C was not called");
});

test("a wrong type, at a cold and at a hot call", { skip }, () => {
  const lib = library();
  const call = (value: Unchecked) => lib.keep_u64(value);
  const wrong: readonly Unchecked[] = [undefined, null, "7", {}, [], Symbol.iterator, true];
  for (const value of wrong) assertThrows(() => call(value), TypeError);
  for (let round = 0; round < 50_000; round++) call(BigInt(round));
  for (const value of wrong) assertThrows(() => call(value), TypeError);
  assertEquals(kept().number, 49_999n);
  assertThrows(() => (lib.keep_u64 as Unchecked)(), TypeError);
  for (const value of ["7", {}, [], Symbol.iterator, true] as Unchecked[]) {
    assertThrows(() => lib.keep_address(value), TypeError);
  }
});

test("surplus arguments are ignored", { skip }, () => {
  assertEquals((library().keep_i32 as Unchecked)(7, 8, 9), 7);
});

test("NULL where text or memory is read", () => {
  assertThrows(() => ffi.readCString(ffi.addressFromNumber(0)), InvalidArgumentError, "NULL");
  assertThrows(() => ffi.createHostView(ffi.addressFromNumber(0), 8), InvalidArgumentError, "NULL");
});

test("addresses that no process has", () => {
  for (const value of [-1n, 2n ** 53n, 2n ** 64n - 1n, 2n ** 64n]) {
    assertThrows(() => ffi.addressFromBigInt(value), InvalidArgumentError, "expected an integer from 0 to 2^53 - 1");
  }
});

test("a library stays open: neither it nor the layer has a close", { skip }, () => {
  const lib = ffi.openLibrary("the test library", [libraryPath()], SYMBOLS);
  assertEquals(Object.keys(lib).sort(), Object.keys(SYMBOLS).sort());
  assert(Object.keys(ffi).every((name) => !/close/i.test(name)));
});

test("C calls nothing back: whoever adds callbacks to the layer must guard them here", () => {
  // closed during a call, throwing, or called from another thread, one ends the process in one of the runtimes
  const folder = new URL("../../ffi/", import.meta.url);
  const files = readdirSync(folder);
  assert(files.includes("deno.ts") && files.includes("bun.ts"));
  for (const file of files) assertNotMatch(readFileSync(new URL(file, folder), "utf8"), /UnsafeCallback|JSCallback/);
});
