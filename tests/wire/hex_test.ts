import { test } from "node:test";
import { assertEquals } from "@std/assert";
import fc from "fast-check";
import { formatUuid, fromHex, parseUuid, toHex } from "../../src/wire/hex.ts";

test("bytes survive hexadecimal", () => {
  assertEquals(toHex(new Uint8Array([0, 10, 255])), "000aff");
  fc.assert(fc.property(fc.uint8Array(), (bytes) => assertEquals(fromHex(toHex(bytes)), bytes)));
});

test("16 bytes survive their UUID", () => {
  const uuid = "01234567-89ab-cdef-fedc-ba9876543210";
  assertEquals(formatUuid(parseUuid(uuid)!), uuid);
  assertEquals(formatUuid(new Uint8Array(20).fill(0xab, 4), 4), "abababab-abab-abab-abab-abababababab");
});

test("other text gives null", () => {
  for (const text of ["0", "0g", "AB", " 00", "0x00"]) assertEquals(fromHex(text), null);
  for (const text of ["", "0123456789abcdeffedcba9876543210", "01234567-89ab-cdef-fedc-ba987654321G"]) {
    assertEquals(parseUuid(text), null);
  }
});
