import fc from "fast-check";
import { test } from "node:test";
import { assert, assertEquals, assertFalse, assertThrows } from "@std/assert";
import { InvalidArgumentError, ProtocolError } from "../../src/errors.ts";
import {
  decodeProcessIdentity,
  encodeProcessIdentity,
  isSameProcess,
  PROCESS_IDENTITY_BYTES,
  type ProcessIdentity,
} from "../../src/wire/identity.ts";

const sample: ProcessIdentity = {
  bootId: "00112233-4455-6677-8899-aabbccddeeff",
  pid: 0x01020304,
  pidNamespace: 4026531836,
  startTime: 2 ** 40 + 5,
};

const identities: fc.Arbitrary<ProcessIdentity> = fc.record({
  bootId: fc.uuid(),
  pid: fc.integer({ min: 1, max: 0x7fff_ffff }),
  pidNamespace: fc.maxSafeNat(),
  startTime: fc.maxSafeNat(),
}, { noNullPrototype: true });

test("the bytes of an identity", () => {
  const hex = Array.from(encodeProcessIdentity(sample), (byte) => byte.toString(16).padStart(2, "0")).join("");
  assertEquals(hex, "00112233445566778899aabbccddeeff" + "04030201" + "fcffffef00000000" + "0500000000010000");
});

test("an identity survives its bytes, and equals only itself", () => {
  fc.assert(fc.property(identities, identities, (a, b) => {
    const copy = decodeProcessIdentity(encodeProcessIdentity(a));
    assertEquals(copy, a);
    assert(isSameProcess(copy, a));
    assertEquals(isSameProcess(a, b), JSON.stringify(a) === JSON.stringify(b));
  }));
});

test("each field tells processes apart", () => {
  assertFalse(isSameProcess(sample, { ...sample, pid: 7 }));
  assertFalse(isSameProcess(sample, { ...sample, startTime: 7 }));
  assertFalse(isSameProcess(sample, { ...sample, pidNamespace: 7 }));
  assertFalse(isSameProcess(sample, { ...sample, bootId: sample.bootId.replace("0", "1") }));
});

test("bytes in a larger buffer", () => {
  const bytes = new Uint8Array(PROCESS_IDENTITY_BYTES + 5);
  bytes.set(encodeProcessIdentity(sample), 3);
  assertEquals(decodeProcessIdentity(bytes.subarray(3, 3 + PROCESS_IDENTITY_BYTES)), sample);
});

test("any bytes decode to what encodes to them, or are a ProtocolError", () => {
  fc.assert(fc.property(fc.uint8Array({ maxLength: 40 }), (bytes) => {
    try {
      assertEquals([...encodeProcessIdentity(decodeProcessIdentity(bytes))], [...bytes]);
    } catch (error) {
      assert(error instanceof ProtocolError, String(error));
    }
  }));
  for (const [at, value] of [[19, 0x80], [27, 0x20], [35, 0x20]]) {
    const bytes = encodeProcessIdentity(sample);
    bytes[at] = value;
    assertThrows(() => decodeProcessIdentity(bytes), ProtocolError, "out of range");
  }
  assertThrows(() => decodeProcessIdentity(new Uint8Array(PROCESS_IDENTITY_BYTES)), ProtocolError, "out of range");
});

test("what is no identity is not encoded", () => {
  for (
    const change of [
      { bootId: "" },
      { bootId: sample.bootId.toUpperCase() },
      { bootId: sample.bootId + "0" },
      ...[0, -1, 1.5, NaN, 2 ** 31].map((pid) => ({ pid })),
      ...[-1, 0.5, NaN, 2 ** 53].flatMap((value) => [{ pidNamespace: value }, { startTime: value }]),
    ]
  ) assertThrows(() => encodeProcessIdentity({ ...sample, ...change }), InvalidArgumentError, "Cannot encode");
});
