import { test } from "node:test";
import { assertEquals, assertThrows } from "@std/assert";
import { InvalidArgumentError } from "../../src/errors.ts";
import { readPoolExportData } from "../../src/wire/export_data.ts";
import { MAX_POOL_ALLOCATION_BYTES } from "../../src/wire/limits.ts";

test("readPoolExportData reads the measured layout, wherever the bytes lie", () => {
  const block = new Uint8Array(80);
  const view = new DataView(block.buffer, 3);
  view.setBigUint64(16, 2n ** 64n - 1n, true);
  view.setBigUint64(24, 0x2000000n, true);
  view.setBigUint64(32, 12_345n, true);
  view.setUint32(40, 2 ** 32 - 2, true);
  assertEquals(readPoolExportData(block.subarray(3, 67)), {
    generation: 2n ** 64n - 1n,
    byteOffset: 0x2000000n,
    byteLength: 12_345n,
    id: 2 ** 32 - 2,
  });
});

test("readPoolExportData refuses anything but 64 bytes", () => {
  const values = [null, undefined, 1, "", {}, [], new ArrayBuffer(64), new Uint8Array(), new Uint8Array(63), new Uint8Array(65)];
  for (const value of values) assertThrows(() => readPoolExportData(value as Uint8Array), InvalidArgumentError, "64 bytes");
});

test("the size limit is 127 chunks of 32 MiB", () => {
  assertEquals(MAX_POOL_ALLOCATION_BYTES, 127 * 32 * 2 ** 20);
});
