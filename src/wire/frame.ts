/**
 * Frames: what travels on a channel's socket. A header of 24 bytes (little endian), JSON, then binary data:
 *
 * | at | type | |
 * |---|---|---|
 * | 0 | u32 | magic "CIPF" |
 * | 4 | u16 | protocol version |
 * | 6 | u16 | type of the frame |
 * | 8 | u32 | length of the whole frame |
 * | 12 | u32 | length of the JSON |
 * | 16 | u16 | number of file descriptors, which travel with the frame's first byte |
 * | 18 | 6 bytes | written as 0, not read |
 */
import { ProtocolError } from "../errors.ts";

/** The protocol that this version speaks, and the only one. */
export const PROTOCOL_VERSION = 1;
export const HEADER_BYTES = 24;
/** What one frame may hold: larger things go through GPU memory. */
export const MAX_FRAME_BYTES: number = 16 * 1024 * 1024;
/** The kernel's limit for one message. */
export const MAX_FRAME_FDS = 253;

const MAGIC = 0x46504943; // "CIPF"

/** What a frame may be. The number is on the wire: never reuse one. */
export const FRAME_TYPES = {
  hello: 1,
  welcome: 2,
  reject: 3,
  block: 4,
  pool: 5,
  message: 6,
  release: 7,
  credit: 8,
  process: 9,
  forward: 10,
  forwarded: 11,
  forwardReleased: 12,
  close: 13,
  forget: 14,
} as const;
export type FrameType = keyof typeof FRAME_TYPES;

const NAMES: ReadonlyMap<number, FrameType> = new Map(
  Object.entries(FRAME_TYPES).map(([name, number]) => [number, name as FrameType]),
);

export interface Frame {
  /** Undefined for a type that this version does not know, which is skipped. */
  readonly type: FrameType | undefined;
  readonly json: unknown;
  readonly binary: Uint8Array;
  /** They belong to whoever takes the frame. */
  readonly fds: readonly number[];
  /** The whole frame's length. */
  readonly byteLength: number;
}

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** One frame as bytes. The caller has checked its size. */
export function encodeFrame(type: FrameType, json: unknown, fdCount = 0, binary: readonly Uint8Array[] = []): Uint8Array {
  const text = encoder.encode(JSON.stringify(json));
  const byteLength = binary.reduce((sum, part) => sum + part.byteLength, HEADER_BYTES + text.byteLength);
  const bytes = new Uint8Array(byteLength);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, MAGIC, true);
  view.setUint16(4, PROTOCOL_VERSION, true);
  view.setUint16(6, FRAME_TYPES[type], true);
  view.setUint32(8, byteLength, true);
  view.setUint32(12, text.byteLength, true);
  view.setUint16(16, fdCount, true);
  bytes.set(text, HEADER_BYTES);
  let at = HEADER_BYTES + text.byteLength;
  for (const part of binary) {
    bytes.set(part, at);
    at += part.byteLength;
  }
  return bytes;
}

interface Header {
  readonly type: FrameType | undefined;
  readonly byteLength: number;
  readonly jsonByteLength: number;
  readonly fdCount: number;
}

/** Puts frames together again from what a socket gives, in pieces of any size. What is no frame is a ProtocolError. */
export class FrameDecoder {
  /** Grows with what has really arrived, not with what a header claims. */
  #bytes = new Uint8Array(4096);
  #length = 0;
  #header: Header | undefined;
  #fds: number[] = [];
  /** A peer that is not known yet may send less. */
  maxFrameBytes: number;

  constructor(maxFrameBytes: number = MAX_FRAME_BYTES) {
    this.maxFrameBytes = maxFrameBytes;
  }

  /** Descriptors that came and belong to no frame yet, so that they can be closed at the end. */
  takeFds(): number[] {
    return this.#fds.splice(0);
  }

  /** Whether a frame has begun and not ended. */
  get isInFrame(): boolean {
    return this.#length > 0;
  }

  /** Gives the frames that are complete now, each before the next one is looked at. */
  *push(bytes: Uint8Array, fds: readonly number[]): Generator<Frame, void, void> {
    this.#fds.push(...fds);
    this.#append(bytes);
    let at = 0;
    for (;;) {
      if (this.#header === undefined) {
        if (this.#length - at < HEADER_BYTES) break;
        this.#header = this.#readHeader(at);
      }
      const header = this.#header;
      if (this.#length - at < header.byteLength) break;
      const frame = this.#readFrame(header, at);
      this.#header = undefined;
      at += header.byteLength;
      yield frame;
    }
    this.#bytes.copyWithin(0, at, this.#length);
    this.#length -= at;
    if (this.#length === 0) {
      // Descriptors come with their frame's first byte, so that none may be left now
      if (this.#fds.length > 0) refuse("file descriptors", `${this.#fds.length} more than the frames announced`, "none");
      if (this.#bytes.byteLength > 65536) this.#bytes = new Uint8Array(4096);
    }
  }

  #append(bytes: Uint8Array): void {
    const needed = this.#length + bytes.byteLength;
    if (needed > this.#bytes.byteLength) {
      const larger = new Uint8Array(Math.max(needed, 2 * this.#bytes.byteLength));
      larger.set(this.#bytes.subarray(0, this.#length));
      this.#bytes = larger;
    }
    this.#bytes.set(bytes, this.#length);
    this.#length = needed;
  }

  #readHeader(at: number): Header {
    const view = new DataView(this.#bytes.buffer, at);
    const magic = view.getUint32(0, true);
    if (magic !== MAGIC) refuse("magic", `0x${magic.toString(16)}`, `0x${MAGIC.toString(16)}; the peer speaks something else`);
    const version = view.getUint16(4, true);
    if (version !== PROTOCOL_VERSION) {
      refuse(
        "protocol version",
        version,
        `${PROTOCOL_VERSION}; use releases of this module with the same protocol on both sides`,
      );
    }
    const byteLength = view.getUint32(8, true);
    if (byteLength < HEADER_BYTES || byteLength > this.maxFrameBytes) {
      refuse("length", byteLength, `${HEADER_BYTES} to ${this.maxFrameBytes}`);
    }
    const jsonByteLength = view.getUint32(12, true);
    if (jsonByteLength > byteLength - HEADER_BYTES) {
      refuse("JSON length", jsonByteLength, `at most ${byteLength - HEADER_BYTES}, the rest of the frame`);
    }
    const fdCount = view.getUint16(16, true);
    if (fdCount > this.#fds.length) {
      refuse("file descriptors", `${this.#fds.length}`, `${fdCount}, as the frame says, with its first byte`);
    }
    return { type: NAMES.get(view.getUint16(6, true)), byteLength, jsonByteLength, fdCount };
  }

  #readFrame(header: Header, at: number): Frame {
    const { type, byteLength, jsonByteLength } = header;
    const json = at + HEADER_BYTES;
    const binary = this.#bytes.slice(json + jsonByteLength, at + byteLength);
    const parsed = parseJson(this.#bytes.subarray(json, json + jsonByteLength));
    // Taken last: until here they are the decoder's, and closed with it
    return { type, byteLength, json: parsed, binary, fds: this.#fds.splice(0, header.fdCount) };
  }
}

function parseJson(bytes: Uint8Array): unknown {
  try {
    return JSON.parse(decoder.decode(bytes));
  } catch (cause) {
    throw new ProtocolError("Cannot read a frame: its JSON is not valid", { cause });
  }
}

function refuse(field: string, value: unknown, wanted: string): never {
  throw new ProtocolError(`Cannot read a frame: ${field} is ${value}, expected ${wanted}`);
}
