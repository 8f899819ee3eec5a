/** Frames as docs/protocol.md describes them, byte by byte, and whatever else may come. */
import { assert, assertEquals, assertThrows } from "@std/assert";
import fc from "fast-check";
import { test } from "node:test";
import { ProtocolError } from "../../src/errors.ts";
import { encodeFrame, type Frame, FRAME_TYPES, FrameDecoder, type FrameType } from "../../src/wire/frame.ts";

test("a frame's bytes", () => {
  const bytes = encodeFrame("credit", { a: 1 }, 2, [Uint8Array.of(9, 8)]);
  // deno-fmt-ignore
  assertEquals([...bytes], [
    0x43, 0x49, 0x50, 0x46, // CIPF
    1, 0, // version
    8, 0, // credit
    33, 0, 0, 0, // length
    7, 0, 0, 0, // length of the JSON
    2, 0, // descriptors
    0, 0, 0, 0, 0, 0,
    0x7b, 0x22, 0x61, 0x22, 0x3a, 0x31, 0x7d, // {"a":1}
    9, 8,
  ]);
});

const frames = fc.array(
  fc.record({
    type: fc.constantFrom(...Object.keys(FRAME_TYPES) as FrameType[]),
    json: fc.dictionary(fc.string(), fc.oneof(fc.integer(), fc.string(), fc.constant(null))),
    binary: fc.uint8Array({ maxLength: 50 }),
    fds: fc.nat(3),
  }),
  { minLength: 1, maxLength: 5 },
);

test("frames come out as they went in, in pieces of any size", () => {
  fc.assert(fc.property(frames, fc.array(fc.integer({ min: 1, max: 40 }), { minLength: 1 }), (sent, cuts) => {
    const decoder = new FrameDecoder();
    const received: Frame[] = [];
    let fd = 100;
    let cut = 0;
    for (const { type, json, binary, fds } of sent) {
      const bytes = encodeFrame(type, json, fds, [binary]);
      let pending = Array.from({ length: fds }, () => fd++);
      for (let at = 0; at < bytes.byteLength;) {
        const length = cuts[cut++ % cuts.length];
        received.push(...decoder.push(bytes.subarray(at, at + length), pending));
        pending = [];
        at += length;
      }
    }
    assertEquals(
      received.map(({ type, json, binary, fds }) => ({ type, json, binary: [...binary], fds: fds.length })),
      sent.map(({ type, json, binary, fds }) => ({
        type,
        json: JSON.parse(JSON.stringify(json)),
        binary: [...binary],
        fds,
      })),
    );
    assertEquals(received.flatMap(({ fds }) => fds), Array.from({ length: fd - 100 }, (_, index) => 100 + index));
    assert(!decoder.isInFrame);
  }));
});

test("any bytes give frames or a ProtocolError", () => {
  fc.assert(fc.property(fc.uint8Array({ maxLength: 200 }), fc.boolean(), (bytes, hasHeader) => {
    const decoder = new FrameDecoder();
    if (hasHeader) bytes.set(encodeFrame("close", {}).subarray(0, Math.min(8, bytes.length)));
    try {
      for (const frame of decoder.push(bytes, [])) assert(frame.byteLength <= bytes.length);
    } catch (error) {
      assert(error instanceof ProtocolError, String(error));
    }
  }));
});

test("what a header claims is not allocated", () => {
  const decoder = new FrameDecoder();
  const bytes = encodeFrame("message", {});
  new DataView(bytes.buffer).setUint32(8, 16 * 1024 * 1024, true);
  assertEquals([...decoder.push(bytes, [])], []);
  new DataView(bytes.buffer).setUint32(8, 16 * 1024 * 1024 + 1, true);
  assertThrows(() => [...new FrameDecoder().push(bytes, [])], ProtocolError, "length is 16777217");
});
