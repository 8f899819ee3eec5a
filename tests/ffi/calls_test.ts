import process from "node:process";
import { test } from "node:test";
import { assertEquals, assertThrows } from "@std/assert";
import {
  addOffset,
  addressFromBigInt,
  addressFromNumber,
  addressToBigInt,
  type ArgumentType,
  NativeBlock,
  openLibrary,
  readCString,
  runtimeName,
  type SymbolTable,
  toSize,
} from "../../ffi/mod.ts";
import { InvalidArgumentError, NotSupportedError } from "../../src/errors.ts";
import { skipWithoutLibrary } from "../../tools/gcc.ts";
import { Random } from "../conformance/random.ts";
import { collectGarbage } from "../helpers/garbage.ts";
import { kept, library, libraryPath } from "./library.ts";

const skip = skipWithoutLibrary();

/** Fewer do where the processor is emulated. */
const COLLECTED_ROUNDS = Number(process.env.CUDA_IPC_TEST_CALLS ?? 20_000);
const ROUNDS = 2000;
const random = new Random(42);
const longAll = (values: readonly (number | bigint)[]) => values.map((value) => BigInt.asUintN(64, BigInt(value)));

test("i32, u32, u16 and u8 arguments arrive unchanged", { skip }, () => {
  const lib = library();
  for (let round = 0; round < ROUNDS; round++) {
    const i32 = random.i32();
    assertEquals(lib.keep_i32(i32), i32);
    assertEquals(BigInt.asIntN(64, kept().number), BigInt(i32));
    const u32 = random.unsigned(32);
    lib.keep_u32(u32);
    assertEquals(kept().number, BigInt(u32));
    const u16 = random.unsigned(16);
    lib.keep_u16(u16);
    assertEquals(kept().number, BigInt(u16));
    const u8 = random.unsigned(8);
    lib.keep_u8(u8);
    assertEquals(kept().number, BigInt(u8));
  }
});

test("u64, size and address arguments arrive unchanged", { skip }, () => {
  const lib = library();
  for (let round = 0; round < ROUNDS; round++) {
    const u64 = random.u64();
    lib.keep_u64(u64);
    assertEquals(kept().number, u64);
    const size = random.safeInteger();
    lib.keep_size(toSize(size));
    assertEquals(kept().number, BigInt(size));
    const address = BigInt(random.safeInteger());
    lib.keep_address(addressFromBigInt(address));
    assertEquals(kept().number, address);
  }
});

test("bytes arrive by address, subarrays and shared memory too, with garbage collection between", { skip }, () => {
  const lib = library();
  for (let round = 0; round < COLLECTED_ROUNDS; round++) {
    const length = 1 + random.below(200);
    const offset = random.below(9);
    const buffer = round % 3 === 0 ? new SharedArrayBuffer(length + offset) : new ArrayBuffer(length + offset);
    const bytes = new Uint8Array(buffer, offset);
    bytes.fill(round);
    bytes[0] = 17;
    lib.keep_bytes(bytes, length);
    if (round % 100 === 0) assertEquals(kept().bytes.subarray(0, length), new Uint8Array(bytes));
    if (round % 2000 === 0) collectGarbage();
  }
});

test("one Uint8Array keeps arriving right, however often and however hot the call is", { skip }, () => {
  const lib = library();
  const bytes = new Uint8Array(16);
  const view = new DataView(bytes.buffer);
  for (let round = 0; round < 100_000; round++) {
    view.setUint32(0, round);
    lib.keep_bytes(bytes, 16);
    if (round % 1000 === 0) assertEquals(kept().bytes.subarray(0, 16), bytes);
  }
});

test("ten arguments of all types arrive in their order", { skip }, () => {
  const lib = library();
  for (let round = 0; round < ROUNDS; round++) {
    const [u8, u16, i32, u32] = [random.unsigned(8), random.unsigned(16), random.i32(), random.unsigned(32)];
    const [u64, size, address] = [random.u64(), random.safeInteger(), random.safeInteger()];
    const [bytes, last, signed] = [random.bytes(3), random.unsigned(8), random.i32()];
    assertEquals(
      lib.keep_all(u8, u16, i32, u32, u64, toSize(size), addressFromNumber(address), bytes, last, signed),
      10,
    );
    const seen = Array.from(new BigUint64Array(kept().bytes.buffer, 0, 10));
    assertEquals(seen, longAll([u8, u16, i32, u32, u64, size, address, bytes[0], last, signed]));
  }
});

test("64-byte structs arrive by value, and the caller's bytes stay as they are", { skip }, () => {
  const lib = library();
  for (let round = 0; round < ROUNDS; round++) {
    const storage = random.bytes(80);
    const bytes = storage.subarray(round % 16, round % 16 + 64); // unaligned, and not at the start of its buffer
    const before = bytes.slice();
    const out = random.safeInteger();
    assertEquals(lib.keep_struct(addressFromNumber(out), bytes), 2);
    assertEquals(kept().number, BigInt(out));
    assertEquals(kept().bytes.subarray(0, 64), before);
    const flags = random.unsigned(32);
    assertEquals(lib.keep_struct_flags(addressFromNumber(out), bytes, flags), 3);
    assertEquals(kept().number, BigInt(out));
    assertEquals(kept().bytes.subarray(0, 64), before);
    assertEquals(new DataView(kept().bytes.buffer).getUint32(64, true), flags);
    assertEquals(bytes, before);
  }
});

test("results: i32, u32, i64, address and nothing", { skip }, () => {
  const lib = library();
  for (const value of [0, 1, 2 ** 31 - 1, 2 ** 31, 2 ** 32 - 1]) assertEquals(lib.give_u32(BigInt(value)), value);
  for (const value of [0n, 1n, -1n, 2n ** 31n, 2n ** 53n - 1n, -(2n ** 53n) + 1n, -(2n ** 63n), 2n ** 63n - 1n]) {
    assertEquals(BigInt(lib.give_i64(BigInt.asUintN(64, value))), value);
  }
  for (const value of [0n, 1n, 2n ** 32n, 0x7fff_ffff_f000n, 2n ** 53n - 1n]) {
    const address = lib.give_address(value);
    assertEquals(addressToBigInt(address), value);
    assertEquals(address === addressFromBigInt(value), true, "=== compares addresses");
  }
  const { calls } = kept();
  assertEquals(lib.keep_nothing(), undefined);
  assertEquals(kept().calls, calls + 1);
});

test("C strings are copied as UTF-8", { skip }, () => {
  const lib = library();
  assertEquals([0, 1, 2].map((which) => readCString(lib.give_text(which))), ["", "grüß", "plain"]);
});

test("addresses: offsets are added, a Map may be keyed by them", { skip }, () => {
  const address = addressFromBigInt(0x7f00_0000_1000n);
  assertEquals(addressToBigInt(addOffset(address, 4096)), 0x7f00_0000_2000n);
  assertEquals(new Map([[addOffset(address, 8), "found"]]).get(addressFromBigInt(0x7f00_0000_1008n)), "found");
});

const SLOW = {
  fail_with: { prototype: "int32_t fail_with(int32_t code)", args: ["i32"], result: "i32", nonblocking: true },
} as const satisfies SymbolTable;

test("nonblocking calls give a promise in Deno and are refused in Bun", { skip }, async () => {
  const open = () => openLibrary("the test library", [libraryPath()], SLOW);
  if (runtimeName() === "deno") assertEquals(await open().fail_with(5), -1);
  else assertThrows(open, NotSupportedError, "Cannot declare fail_with");
});

test("declarations that one runtime could not keep are refused in both", { skip }, () => {
  const refused = (args: readonly ArgumentType[], nonblocking?: true) => {
    const table: SymbolTable = { keep_struct: { prototype: "", args, result: "i32", nonblocking } };
    assertThrows(
      () => openLibrary("the test library", [libraryPath()], table),
      InvalidArgumentError,
      "Cannot declare keep_struct",
    );
  };
  refused(["struct64", "address"]);
  refused(["address", "u32", "struct64"]);
  refused(["address", "struct64", "u32", "u32"]);
  refused(["bytes", "u32"], true); // C could read them when they are gone
  refused(["address", "struct64"], true);
});

test("out-parameters land in a native block, at any offset", { skip }, () => {
  const lib = library();
  const block = new NativeBlock(32);
  const at = [0, 8, 16, 24].map((offset) => block.addressAt(offset));
  for (let round = 0; round < ROUNDS; round++) {
    const place = round % 4;
    const value = random.u64();
    lib.write_u64(at[place], value);
    assertEquals(block.readU64(place * 8), value);
    assertEquals(block.readNumber(place * 8), Number(value));
    assertEquals(block.readU32(place * 8), Number(value & 0xffff_ffffn));
    assertEquals(block.readI32(place * 8), Number(BigInt.asIntN(32, value)));
    if (value < 2n ** 53n) assertEquals(addressToBigInt(block.readAddress(place * 8)), value);
  }
  lib.write_two(at[1], at[0]);
  assertEquals([block.readU64(8), block.readI32(0)], [0x0123_4567_89ab_cdefn, -7]);
  block.free();
});
