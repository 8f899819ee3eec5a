import { test } from "node:test";
import { assert, assertEquals, assertIsError, assertThrows } from "@std/assert";
import {
  addressFromNumber,
  addressToBigInt,
  createHostView,
  NativeBlock,
  readStruct,
  type StructLayout,
  toSize,
  writeStruct,
} from "../../ffi/mod.ts";
import { ClosedError, InvalidArgumentError } from "../../src/errors.ts";
import { skipWithoutLibrary } from "../../tools/gcc.ts";
import { collectGarbage } from "../helpers/garbage.ts";
import { library } from "./library.ts";

const skip = skipWithoutLibrary();

test("a block is zeroed, aligned to 16 bytes and rounded up to 8", () => {
  const block = new NativeBlock(20);
  assertEquals(block.byteLength, 24);
  assertEquals(block.bytes, new Uint8Array(24));
  assertEquals(addressToBigInt(block.addressAt(0)) % 16n, 0n);
  block.free();
});

test("the bytes, the DataView, the readers and C see the same memory", { skip }, () => {
  const block = new NativeBlock(16);
  library().write_u64(block.addressAt(8), 0x1122_3344_5566_7788n);
  assertEquals(block.bytes[8], 0x88);
  assertEquals(block.view.getUint32(8, true), 0x5566_7788);
  assertEquals(block.readU64(8), 0x1122_3344_5566_7788n);
  block.writeU64(0, 7n);
  assertEquals(library().first_of(block.addressAt(0)), 7);
  block.free();
});

test("a block's address does not move, whatever is collected meanwhile", { skip }, () => {
  const block = new NativeBlock(64);
  const address = block.addressAt(0);
  let garbage: unknown[] = [];
  for (let round = 0; round < 20_000; round++) {
    library().write_u64(address, BigInt(round));
    garbage.push(new Uint8Array(500), { round });
    if (block.readNumber(0) !== round) assertEquals(block.readNumber(0), round);
    if (round % 4000 === 0) {
      garbage = [];
      collectGarbage();
    }
  }
  block.free();
});

test("a freed block: its views have length 0, and every use is refused", () => {
  const block = new NativeBlock(16);
  const { bytes, view } = block;
  const outside = new Uint8Array(bytes.buffer, 8);
  block.free();
  block.free();
  assertEquals([bytes.byteLength, outside.byteLength, bytes.buffer.byteLength], [0, 0, 0]);
  assertThrows(() => view.getUint8(0), TypeError);
  assertThrows(() => block.addressAt(0), ClosedError);
  assertThrows(() => block.readAddress(0), ClosedError);
  assertThrows(() => block.readI32(0), ClosedError);
  assertThrows(() => block.readU32(0), ClosedError);
  assertThrows(() => block.readU64(0), ClosedError);
  assertThrows(() => block.readNumber(0), ClosedError);
  assertThrows(() => block.writeU64(0, 0n), ClosedError);
});

test("blocks of impossible sizes and addresses outside a block are refused", () => {
  for (const byteLength of [-1, 1.5, NaN, Infinity, 2 ** 53, "8" as unknown as number]) {
    assertThrows(() => new NativeBlock(byteLength), InvalidArgumentError, "byteLength");
  }
  assertThrows(() => new NativeBlock(2 ** 52), Error); // more than the machine has
  const block = new NativeBlock(16);
  for (const byteOffset of [-1, 16, 17, 0.5, NaN]) assertThrows(() => block.addressAt(byteOffset), InvalidArgumentError);
  block.free();
});

test("a host view is not a copy, and is empty after detach", { skip }, () => {
  const address = library().new_block(123n);
  const { bytes, detach } = createHostView(address, 4096);
  assertEquals(bytes[0], 123);
  bytes[0] = 99;
  assertEquals(library().first_of(address), 99);
  library().write_u64(address, 5n);
  assertEquals(bytes[0], 5);
  const part = bytes.subarray(0, 8);
  detach();
  detach();
  assertEquals([bytes.byteLength, part.byteLength, bytes.buffer.byteLength], [0, 0, 0]);
  assertEquals(bytes[0], undefined);
  assertEquals(library().first_of(address), 5, "the memory itself stays its owner's");
});

test("a host view that is collected does not free the memory", { skip }, () => {
  const address = library().new_block(77n);
  for (let round = 0; round < 100; round++) createHostView(address, 4096);
  collectGarbage();
  assertEquals(library().first_of(address), 77);
  const again = createHostView(address, 4096);
  assertEquals(again.bytes[0], 77);
  again.detach();
});

test("host views of NULL or of impossible lengths are refused", { skip }, () => {
  assertThrows(() => createHostView(addressFromNumber(0), 8), InvalidArgumentError, "NULL");
  const address = library().new_block(0n);
  for (const byteLength of [-1, 0.5, NaN, 2 ** 53]) {
    assertThrows(() => createHostView(address, byteLength), InvalidArgumentError, "byteLength");
  }
  try { // Deno sees so much at once, Bun does not
    createHostView(address, 2 ** 33).detach();
  } catch (error) {
    assertIsError(error, InvalidArgumentError, "Cannot view 8589934592 bytes");
  }
  const empty = createHostView(address, 0);
  assertEquals(empty.bytes.byteLength, 0);
  empty.detach();
});

test("sizes and addresses that would arrive changed are refused", () => {
  for (const value of [-1, 1.5, NaN, Infinity, 2 ** 53, undefined as unknown as number, "1" as unknown as number]) {
    assertThrows(() => toSize(value), InvalidArgumentError, "expected an integer from 0 to 2^53 - 1");
    assertThrows(() => addressFromNumber(value), InvalidArgumentError);
  }
});

const MIXED = {
  name: "struct mixed",
  byteLength: 48,
  fields: {
    a: { type: "u8", offset: 0 },
    b: { type: "u16", offset: 2 },
    c: { type: "i32", offset: 4 },
    d: { type: "u32", offset: 8 },
    e: { type: "u64", offset: 16 },
    f: { type: "size", offset: 24 },
    g: { type: "address", offset: 32 },
    h: { type: "bytes", offset: 40, byteLength: 5 },
  },
} as const satisfies StructLayout;

test("a struct reads back as it was written; what is left out is zero", () => {
  const block = new NativeBlock(64);
  block.bytes.fill(0xff);
  const values = {
    a: 255,
    b: 65535,
    c: -2147483648,
    d: 4294967295,
    e: 2n ** 64n - 1n,
    f: 2 ** 53 - 1,
    g: addressFromNumber(2 ** 47),
    h: Uint8Array.of(1, 2, 3, 4, 5),
  };
  writeStruct(block, 8, MIXED, values);
  assertEquals(readStruct(block, 8, MIXED), values);
  assertEquals([block.readU64(0), block.readU64(56)], [2n ** 64n - 1n, 2n ** 64n - 1n], "nothing beside it is touched");
  writeStruct(block, 8, MIXED, { d: 1 });
  const rest = readStruct(block, 8, MIXED);
  assertEquals([rest.a, rest.b, rest.c, rest.d, rest.e, rest.f, addressToBigInt(rest.g)], [0, 0, 0, 1, 0n, 0, 0n]);
  assert(rest.h.every((byte) => byte === 0));
  block.free();
});

test("a byte field of another length is refused", () => {
  const block = new NativeBlock(48);
  for (const length of [0, 4, 6]) {
    assertThrows(() => writeStruct(block, 0, MIXED, { h: new Uint8Array(length) }), InvalidArgumentError, "struct mixed.h");
  }
  block.free();
});
