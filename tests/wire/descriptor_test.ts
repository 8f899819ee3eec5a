import { test } from "node:test";
import { assert, assertEquals, assertNotStrictEquals, assertStringIncludes, assertThrows, equal } from "@std/assert";
import fc from "fast-check";
import { InvalidArgumentError, ProtocolError } from "../../src/errors.ts";
import { crc32 } from "../../src/wire/crc32.ts";
import { BufferDescriptor, type BufferDescriptorInit, EventDescriptor } from "../../src/wire/descriptor.ts";
import { bufferDescriptors, eventDescriptors, MEMORY_KINDS } from "./arbitraries.ts";

const EXPORTER = { bootId: "01234567-89ab-cdef-0123-456789abcdef", pid: 42, pidNamespace: 4026531836, startTime: 1000 };
const INIT: BufferDescriptorInit = {
  memoryKind: "pool",
  deviceUuid: "GPU-fedcba98-7654-3210-fedc-ba9876543210",
  exporter: EXPORTER,
  poolId: "00112233-4455-6677-8899-aabbccddeeff",
  generation: 7,
  byteOffset: 256,
  byteLength: 1024,
  allocationByteLength: 4096,
  chunkByteLengths: [],
  opaque: Uint8Array.from({ length: 64 }, (_, index) => index),
};
const VIRTUAL: BufferDescriptorInit = {
  ...INIT,
  memoryKind: "virtual",
  chunkByteLengths: [2048, 2048],
  opaque: new Uint8Array(),
};
const EVENT_INIT = { deviceUuid: INIT.deviceUuid, exporter: EXPORTER, opaque: INIT.opaque };

const buffer = new BufferDescriptor(INIT);
const virtual = new BufferDescriptor(VIRTUAL);
const event = new EventDescriptor(EVENT_INIT);

interface Codec {
  readonly name: string;
  fromBytes(bytes: Uint8Array): BufferDescriptor | EventDescriptor;
  fromJSON(value: unknown): BufferDescriptor | EventDescriptor;
}
const CODECS: readonly [Codec, BufferDescriptor | EventDescriptor][] = [
  [BufferDescriptor, buffer],
  [BufferDescriptor, virtual],
  [EventDescriptor, event],
];

/** All that a descriptor says. */
function meaning(descriptor: BufferDescriptor | EventDescriptor): unknown {
  return JSON.parse(JSON.stringify(descriptor));
}

/** The same bytes with a checksum that fits, as somebody who forges them would send. */
function signed(bytes: Uint8Array): Uint8Array {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  view.setUint32(bytes.byteLength - 4, crc32(bytes.subarray(0, -4)), true);
  return bytes;
}

// ---- what holds

test("BufferDescriptor keeps its fields", () => {
  for (const [name, value] of Object.entries(INIT)) assertEquals<unknown>(buffer[name as keyof BufferDescriptorInit], value);
});

test("EventDescriptor keeps its fields", () => {
  for (const [name, value] of Object.entries(EVENT_INIT)) assertEquals<unknown>(event[name as keyof typeof EVENT_INIT], value);
});

test("the byte form is as documented", () => {
  const bytes = buffer.toBytes();
  assertEquals(new TextDecoder().decode(bytes.subarray(0, 4)), "CIPC");
  const view = new DataView(bytes.buffer);
  assertEquals([view.getUint16(4, true), view.getUint16(6, true), view.getUint32(8, true)], [1, 1, bytes.byteLength]);
  assertEquals(bytes.byteLength, 183);
  assertEquals(event.toBytes().byteLength, 132);
});

test("crc32 is the one of zlib", () => {
  assertEquals(crc32(new TextEncoder().encode("123456789")), 0xcbf43926);
});

test("every buffer descriptor survives its byte form and its JSON form", () => {
  fc.assert(fc.property(bufferDescriptors, (descriptor) => {
    assertEquals(meaning(BufferDescriptor.fromBytes(descriptor.toBytes())), meaning(descriptor));
    assertEquals(BufferDescriptor.fromJSON(meaning(descriptor)).toBytes(), descriptor.toBytes());
  }));
});

test("every event descriptor survives its byte form and its JSON form", () => {
  fc.assert(fc.property(eventDescriptors, (descriptor) => {
    assertEquals(meaning(EventDescriptor.fromBytes(descriptor.toBytes())), meaning(descriptor));
    assertEquals(EventDescriptor.fromJSON(meaning(descriptor)).toBytes(), descriptor.toBytes());
  }));
});

test("the bytes survive structuredClone and postMessage", async () => {
  for (const [codec, descriptor] of CODECS) {
    assertEquals(meaning(codec.fromBytes(structuredClone(descriptor.toBytes()))), meaning(descriptor));
    const { port1, port2 } = new MessageChannel();
    const arrived = new Promise<Uint8Array>((resolve) => port2.onmessage = (message) => resolve(message.data));
    port1.postMessage(descriptor.toBytes());
    assertEquals(meaning(codec.fromBytes(await arrived)), meaning(descriptor));
    port1.close();
    port2.close();
  }
});

test("the bytes may lie anywhere in a buffer", () => {
  const bytes = buffer.toBytes();
  const larger = new Uint8Array(bytes.byteLength + 20).fill(0xaa);
  larger.set(bytes, 7);
  assertEquals(meaning(BufferDescriptor.fromBytes(larger.subarray(7, 7 + bytes.byteLength))), meaning(buffer));
});

test("a descriptor never changes", () => {
  const exporter = { ...EXPORTER };
  const chunkByteLengths = [4096];
  const opaque = INIT.opaque.slice();
  const pool = new BufferDescriptor({ ...INIT, exporter, opaque });
  const pieces = new BufferDescriptor({ ...VIRTUAL, chunkByteLengths });
  const before = [pool.toBytes(), pieces.toBytes()];
  exporter.pid = 1;
  chunkByteLengths[0] = 1;
  opaque[0] = 99;
  pool.opaque[0] = 99;
  pool.toBytes()[20] = 99;
  assertEquals([pool.toBytes(), pieces.toBytes()], before);
  assertThrows(() => (pool as { byteLength: number }).byteLength = 1, TypeError);
  assertThrows(() => (pool.exporter as { pid: number }).pid = 1, TypeError);
  assertThrows(() => (pieces.chunkByteLengths as number[]).push(1), TypeError);
  assertNotStrictEquals(pool.opaque, pool.opaque);
});

// ---- what is refused: bytes

test("every truncation and every extension is refused", () => {
  for (const [codec, descriptor] of CODECS) {
    const bytes = descriptor.toBytes();
    for (let length = 0; length < bytes.byteLength; length++) {
      assertThrows(() => codec.fromBytes(bytes.subarray(0, length)), ProtocolError, `${length}`);
    }
    for (const extra of [1, 4, 8, 1000]) {
      const longer = new Uint8Array(bytes.byteLength + extra);
      longer.set(bytes);
      assertThrows(() => codec.fromBytes(longer), ProtocolError, "length field is");
    }
  }
});

test("every change of a single byte is refused", () => {
  for (const [codec, descriptor] of CODECS) {
    const bytes = descriptor.toBytes();
    for (let at = 0; at < bytes.byteLength; at++) {
      for (const flip of [1, 2, 4, 8, 16, 32, 64, 128, 255]) {
        const changed = bytes.slice();
        changed[at] ^= flip;
        assertThrows(() => codec.fromBytes(changed), ProtocolError, "Cannot read a");
      }
    }
  }
});

test("random bytes are refused", () => {
  fc.assert(fc.property(fc.uint8Array({ maxLength: 300 }), (bytes) => {
    for (const [codec] of CODECS) assertThrows(() => codec.fromBytes(bytes), ProtocolError);
  }));
});

test("bytes with a valid header, length and checksum around random fields never do more than throw ProtocolError", () => {
  fc.assert(
    fc.property(fc.uint8Array({ minLength: 4, maxLength: 300 }), fc.constantFrom(...CODECS), (fields, [codec, descriptor]) => {
      const bytes = new Uint8Array(12 + fields.byteLength);
      bytes.set(descriptor.toBytes().subarray(0, 8));
      bytes.set(fields, 12);
      new DataView(bytes.buffer).setUint32(8, bytes.byteLength, true);
      onlyProtocolError(codec, signed(bytes));
    }),
    { numRuns: 500 },
  );
});

test("a forged byte with a fitting checksum is read as what it says or refused, never half read", () => {
  for (const [codec, descriptor] of CODECS) {
    const bytes = descriptor.toBytes();
    for (let at = 0; at < bytes.byteLength - 4; at++) {
      for (const value of [0, 1, 2, 0x7f, 0x80, 0xff]) {
        const forged = bytes.slice();
        forged[at] = value;
        const read = onlyProtocolError(codec, signed(forged));
        if (read !== null) assertEquals(read.toBytes(), forged);
      }
    }
  }
});

test("forged lengths and counts are refused", () => {
  const patch = (descriptor: BufferDescriptor, change: (view: DataView, bytes: Uint8Array) => void) => {
    const bytes = descriptor.toBytes();
    change(new DataView(bytes.buffer), bytes);
    return () => BufferDescriptor.fromBytes(signed(bytes));
  };
  for (const length of [0, 11, 12, 182, 184, 2 ** 31, 2 ** 32 - 1]) {
    assertThrows(patch(buffer, (view) => view.setUint32(8, length, true)), ProtocolError, `length field is ${length}`);
  }
  const chunkCountAt = (descriptor: BufferDescriptor) =>
    descriptor.toBytes().byteLength - 5 - 8 * descriptor.chunkByteLengths.length;
  for (const count of [1, 2, 255]) {
    assertThrows(
      patch(buffer, (view) => view.setUint8(chunkCountAt(buffer), count)),
      ProtocolError,
      "chunkByteLengths[0] is cut off",
    );
  }
  for (const count of [0, 1]) {
    const forged = patch(virtual, (view) => view.setUint8(chunkCountAt(virtual), count));
    assertThrows(forged, ProtocolError, "longer than its fields");
  }
  assertThrows(
    patch(virtual, (view) => view.setUint8(chunkCountAt(virtual), 3)),
    ProtocolError,
    "chunkByteLengths[2] is cut off",
  );
  assertThrows(patch(virtual, (view) => view.setUint8(12, 1)), ProtocolError); // says pool, has no opaque bytes
  assertThrows(patch(buffer, (view) => view.setUint8(12, 2)), ProtocolError); // says virtual, has opaque bytes
  assertThrows(patch(buffer, (view) => view.setUint8(12, 0)), ProtocolError, "memoryKind is 0, expected 1 to 4");
  assertThrows(patch(buffer, (view) => view.setUint8(12, 5)), ProtocolError, "memoryKind is 5, expected 1 to 4");
});

test("forged sizes are refused", () => {
  const bytes = buffer.toBytes();
  const sizesAt = bytes.byteLength - 4 - 1 - 64 - 4 * 8;
  const forge = (index: number, value: bigint) => () => {
    const forged = bytes.slice();
    new DataView(forged.buffer).setBigUint64(sizesAt + 8 * index, value, true);
    return BufferDescriptor.fromBytes(signed(forged));
  };
  const names = ["generation", "byteOffset", "byteLength", "allocationByteLength"];
  names.forEach((name, index) => {
    for (const value of [2n ** 53n, 2n ** 63n, 2n ** 64n - 1n]) {
      assertThrows(forge(index, value), ProtocolError, `${name} is ${value}`);
    }
  });
  assertThrows(forge(1, 4097n), ProtocolError, "byteOffset is 4097, expected an integer from 0 to 4096");
  assertThrows(forge(2, 3841n), ProtocolError, "byteLength is 3841, expected an integer from 0 to 3840");
  assertThrows(forge(3, 1279n), ProtocolError, "byteLength is 1024, expected an integer from 0 to 1023");
});

test("another version says which it is and which is read", () => {
  for (const [codec, descriptor] of CODECS) {
    for (const version of [0, 2, 256, 65535]) {
      const bytes = descriptor.toBytes();
      new DataView(bytes.buffer).setUint16(4, version, true);
      for (const sent of [bytes, signed(bytes.slice())]) {
        assertThrows(() => codec.fromBytes(sent), ProtocolError, `format version is ${version}, expected 1`);
      }
    }
  }
});

test("another kind is refused", () => {
  assertThrows(() => BufferDescriptor.fromBytes(event.toBytes()), ProtocolError, "kind is 2 (event descriptor), expected 1");
  assertThrows(() => EventDescriptor.fromBytes(buffer.toBytes()), ProtocolError, "kind is 1 (buffer descriptor), expected 2");
  const unknown = event.toBytes();
  new DataView(unknown.buffer).setUint16(6, 77, true);
  assertThrows(() => EventDescriptor.fromBytes(signed(unknown)), ProtocolError, "kind is 77 (unknown)");
});

test("bytes that another thread writes to meanwhile are read once", () => {
  const shared = new Uint8Array(new SharedArrayBuffer(buffer.toBytes().byteLength));
  shared.set(buffer.toBytes());
  const descriptor = BufferDescriptor.fromBytes(shared);
  shared.fill(0);
  assertEquals(meaning(descriptor), meaning(buffer));
});

test("fromBytes of anything but a Uint8Array is InvalidArgumentError", () => {
  const values = [
    undefined,
    null,
    0,
    NaN,
    "CIPC",
    {},
    [],
    [67, 73, 80, 67],
    new ArrayBuffer(183),
    new DataView(new ArrayBuffer(183)),
    new Uint16Array(92),
    Object.create(Uint8Array.prototype),
    () => {},
    1n,
    Symbol("bytes"),
  ];
  for (const [codec] of CODECS) {
    for (const value of values) {
      assertThrows(() => codec.fromBytes(value as Uint8Array), InvalidArgumentError, "expected a Uint8Array");
    }
  }
});

test("fromBytes of a detached array is ProtocolError", () => {
  const bytes = buffer.toBytes();
  structuredClone(bytes, { transfer: [bytes.buffer as ArrayBuffer] });
  assertThrows(() => BufferDescriptor.fromBytes(bytes), ProtocolError, "length is 0 bytes");
});

// ---- what is refused: JSON

test("every changed, missing or added field of the JSON form is refused", () => {
  for (const [codec, descriptor] of CODECS) {
    const json = meaning(descriptor) as Record<string, unknown>;
    for (const name of Object.keys(json)) {
      const { [name]: _left, ...without } = json;
      assertThrows(() => codec.fromJSON(without), ProtocolError, "Cannot");
      const values = [null, -1, 0.5, 3, 2 ** 53, "", "zz", "ABCDEF", [], [1], {}, true];
      for (const value of values.filter((value) => !equal(value, json[name]))) {
        assertThrows(() => codec.fromJSON({ ...json, [name]: value }), ProtocolError, "Cannot");
      }
      assertThrows(() => codec.fromJSON({ ...json, [`${name}2`]: 1 }), ProtocolError, `a field is "${name}2"`);
    }
    for (const name of Object.keys(EXPORTER)) {
      const exporter = { ...EXPORTER, [name]: name === "bootId" ? "11234567-89ab-cdef-0123-456789abcdef" : 77 };
      assertThrows(() => codec.fromJSON({ ...json, exporter }), ProtocolError, "checksum");
    }
    assertThrows(() => codec.fromJSON({ ...json, version: 2 }), ProtocolError, "format version is 2, expected 1");
    assertThrows(() => codec.fromJSON({ ...json, ["__proto__"]: {} }), ProtocolError);
  }
});

test("a digit of the opaque bytes in JSON cannot change unseen", () => {
  for (const [codec, descriptor] of CODECS.filter(([, descriptor]) => descriptor.opaque.length > 0)) {
    const json = meaning(descriptor) as { opaque: string };
    const changed = json.opaque.replace(/^./, "f");
    assertThrows(() => codec.fromJSON({ ...json, opaque: changed }), ProtocolError, "checksum");
    for (const opaque of [json.opaque.slice(2), json.opaque.slice(1), json.opaque + "00", json.opaque.toUpperCase()]) {
      assertThrows(() => codec.fromJSON({ ...json, opaque }), ProtocolError, "opaque");
    }
  }
});

test("the JSON form of one is not the other's", () => {
  assertThrows(() => BufferDescriptor.fromJSON(meaning(event)), ProtocolError, 'type is "event descriptor"');
  assertThrows(() => EventDescriptor.fromJSON(meaning(buffer)), ProtocolError, 'type is "buffer descriptor"');
});

test("fromJSON of anything but an object is InvalidArgumentError", () => {
  for (const [codec, descriptor] of CODECS) {
    for (const value of [undefined, null, 0, NaN, 1n, true, "", JSON.stringify(descriptor), [], () => {}, Symbol("json")]) {
      assertThrows(() => codec.fromJSON(value), InvalidArgumentError, "expected the object that JSON.parse gives");
    }
  }
});

test("any JSON value is refused with a typed error", () => {
  fc.assert(fc.property(fc.jsonValue(), (value) => {
    for (const [codec] of CODECS) {
      const error = assertThrows(() => codec.fromJSON(value), Error);
      assert(error instanceof ProtocolError || error instanceof InvalidArgumentError, String(error));
    }
  }));
});

// ---- what is refused: fields

const BAD_SIZES: readonly unknown[] = [-1, 0.5, NaN, Infinity, 2 ** 53, 1n, "1", null, undefined, {}, [1]];
const BAD_UUIDS: readonly unknown[] = [
  "",
  "GPU-",
  "fedcba98-7654-3210-fedc-ba987654321",
  "fedcba98-7654-3210-fedc-ba98765432100",
  "FEDCBA98-7654-3210-FEDC-BA9876543210",
  "GPU-fedcba98765432100fedcba9876543210",
  "fedcba98-7654-3210-fedc-ba9876543210\n",
  1,
  {},
  new Uint8Array(16),
];

test("BufferDescriptor refuses bad fields with InvalidArgumentError", () => {
  const refuse = (fields: Partial<Record<keyof BufferDescriptorInit, unknown>>, base = INIT) => {
    const [name] = Object.keys(fields);
    assertThrows(() => new BufferDescriptor({ ...base, ...fields } as BufferDescriptorInit), InvalidArgumentError, name);
  };
  for (const value of BAD_SIZES) {
    refuse({ generation: value });
    refuse({ byteOffset: value });
    refuse({ byteLength: value });
    refuse({ allocationByteLength: value });
    refuse({ chunkByteLengths: [4096, value] }, VIRTUAL);
  }
  for (const value of BAD_UUIDS) {
    refuse({ poolId: value });
    refuse({ deviceUuid: value });
    refuse({ deviceUuid: `GPU-${value}` });
  }
  refuse({ poolId: undefined });
  for (const value of ["", "Pool", "foreign", "toString", 1, null, undefined, ["pool"], {}]) refuse({ memoryKind: value });
  for (const value of [null, undefined, 1, "", [], {}, { ...EXPORTER, pid: 0 }, { ...EXPORTER, pid: 2 ** 31 }]) {
    refuse({ exporter: value });
  }
  for (const value of BAD_SIZES) {
    refuse({ exporter: { ...EXPORTER, pid: value } });
    refuse({ exporter: { ...EXPORTER, pidNamespace: value } });
    refuse({ exporter: { ...EXPORTER, startTime: value } });
  }
  for (const value of BAD_UUIDS) refuse({ exporter: { ...EXPORTER, bootId: value } });
  for (const kind of MEMORY_KINDS.filter((kind) => kind !== "virtual")) {
    const base = { ...INIT, memoryKind: kind };
    for (const length of [0, 1, 63, 65, 128]) refuse({ opaque: new Uint8Array(length) }, base);
    refuse({ chunkByteLengths: [4096] }, base);
  }
  for (const value of [null, undefined, "", [], Array(64).fill(0), new ArrayBuffer(64), new Uint16Array(64)]) {
    refuse({ opaque: value });
  }
  refuse({ opaque: new Uint8Array(64) }, VIRTUAL);
  refuse({ byteOffset: 4097 });
  refuse({ byteLength: 3841 });
  refuse({ byteLength: 2 ** 53 - 1 });
  for (const value of [null, undefined, 1, "", {}, [], [0], [1, 2], [4095], Array(254).fill(4096), [2 ** 53 - 1, 2 ** 53 - 1]]) {
    refuse({ chunkByteLengths: value }, VIRTUAL);
  }
  for (const value of [undefined, null, 1, "", [], () => {}]) {
    assertThrows(() => new BufferDescriptor(value as unknown as BufferDescriptorInit), InvalidArgumentError, "an object");
  }
});

test("EventDescriptor refuses bad fields with InvalidArgumentError", () => {
  const refuse = (fields: Record<string, unknown>) => {
    const [name] = Object.keys(fields);
    assertThrows(() => new EventDescriptor({ ...EVENT_INIT, ...fields }), InvalidArgumentError, name);
  };
  for (const value of BAD_UUIDS) refuse({ deviceUuid: value });
  for (const value of [null, undefined, 1, "", [], {}]) refuse({ exporter: value });
  for (const value of [null, undefined, "", [], new Uint8Array(), new Uint8Array(63), new Uint8Array(65)]) {
    refuse({ opaque: value });
  }
  for (const value of [undefined, null, 1, ""]) {
    assertThrows(() => new EventDescriptor(value as unknown as typeof EVENT_INIT), InvalidArgumentError, "an object");
  }
});

test("sizes at the limits are accepted", () => {
  const max = Number.MAX_SAFE_INTEGER;
  const edges: Partial<BufferDescriptorInit>[] = [
    { byteOffset: 0, byteLength: 0, allocationByteLength: 0, generation: 0, poolId: null },
    { byteOffset: 0, byteLength: max, allocationByteLength: max, generation: max },
    { byteOffset: max, byteLength: 0, allocationByteLength: max },
    { byteOffset: 4096, byteLength: 0 },
  ];
  for (const edge of edges) {
    const descriptor = new BufferDescriptor({ ...INIT, ...edge });
    assertEquals(meaning(BufferDescriptor.fromBytes(descriptor.toBytes())), meaning(descriptor));
  }
  const many = new BufferDescriptor({ ...VIRTUAL, chunkByteLengths: Array(253).fill(4096) });
  assertEquals(BufferDescriptor.fromBytes(many.toBytes()).chunkByteLengths.length, 253);
});

test("messages name the field, the value and the range", () => {
  const error = assertThrows(() => new BufferDescriptor({ ...INIT, byteLength: 5000 }), InvalidArgumentError);
  assertEquals(error.message, "Cannot make a BufferDescriptor: byteLength is 5000, expected an integer from 0 to 3840");
  const changed = buffer.toBytes();
  changed[20] ^= 1;
  assertStringIncludes(
    assertThrows(() => BufferDescriptor.fromBytes(changed), ProtocolError).message,
    "Cannot read a buffer descriptor: checksum is 0x",
  );
});

/** What the codec reads, or null where it refuses with ProtocolError; anything else it throws fails the test. */
function onlyProtocolError(codec: Codec, bytes: Uint8Array): BufferDescriptor | EventDescriptor | null {
  try {
    return codec.fromBytes(bytes);
  } catch (error) {
    if (error instanceof ProtocolError) return null;
    throw error;
  }
}
