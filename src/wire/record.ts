/**
 * The self-describing envelope of everything that leaves this process as bytes, and its fields in order (little endian):
 * magic "CIPC", u16 format version, u16 kind, u32 total length, the fields, CRC-32 of all before it.
 */
import { shown } from "../arguments.ts";
import { InvalidArgumentError, ProtocolError } from "../errors.ts";
import { copyBytes } from "./bytes.ts";
import { crc32 } from "./crc32.ts";

/** The format that this version writes, and the only one that it reads. */
export const FORMAT_VERSION = 1;

const MAGIC = 0x43504943; // "CIPC"
const HEADER_BYTES = 12;
const CRC_BYTES = 4;

/** What a record may be. The number is on the wire: never reuse one. */
export const KINDS = { "buffer descriptor": 1, "event descriptor": 2 } as const;
export type Kind = keyof typeof KINDS;

/** The CRC-32 at the end of a finished record. */
export function checksumOf(record: Uint8Array): number {
  const end = record.byteOffset + record.byteLength;
  return new DataView(record.buffer).getUint32(end - CRC_BYTES, true);
}

/** Writes one record of known length. */
export class RecordWriter {
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  #at = HEADER_BYTES;

  constructor(kind: Kind, fieldBytes: number) {
    this.#bytes = new Uint8Array(HEADER_BYTES + fieldBytes + CRC_BYTES);
    this.#view = new DataView(this.#bytes.buffer);
    this.#view.setUint32(0, MAGIC, true);
    this.#view.setUint16(4, FORMAT_VERSION, true);
    this.#view.setUint16(6, KINDS[kind], true);
    this.#view.setUint32(8, this.#bytes.byteLength, true);
  }

  u8(value: number): void {
    this.#view.setUint8(this.#at, value);
    this.#at += 1;
  }

  /** A safe integer as u64. */
  size(value: number): void {
    this.#view.setBigUint64(this.#at, BigInt(value), true);
    this.#at += 8;
  }

  bytes(value: Uint8Array): void {
    this.#bytes.set(value, this.#at);
    this.#at += value.byteLength;
  }

  finish(): Uint8Array {
    this.#view.setUint32(this.#at, crc32(this.#bytes.subarray(0, this.#at)), true);
    return this.#bytes;
  }
}

/** Reads one record that may come from anywhere: every step is checked, and what is wrong is a ProtocolError. */
export class RecordReader {
  readonly #action: string;
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  #at = HEADER_BYTES;

  constructor(kind: Kind, given: unknown) {
    this.#action = `read a ${kind}`;
    const copy = copyBytes(given);
    if (copy === null) throw new InvalidArgumentError(`Cannot ${this.#action}: expected a Uint8Array, got ${shown(given)}`);
    this.#bytes = copy;
    this.#view = new DataView(this.#bytes.buffer);
    const { byteLength } = this.#bytes;
    if (byteLength < HEADER_BYTES + CRC_BYTES) {
      this.refuse("length", `${byteLength} bytes`, `at least ${HEADER_BYTES + CRC_BYTES}; it was truncated`);
    }
    const magic = this.#view.getUint32(0, true);
    if (magic !== MAGIC) this.refuse("magic", hex(magic), `${hex(MAGIC)}; these are not bytes of this module`);
    const version = this.#view.getUint16(4, true);
    if (version !== FORMAT_VERSION) {
      this.refuse("format version", version, `${FORMAT_VERSION}; use the same release of this module on both sides`);
    }
    const kindNumber = this.#view.getUint16(6, true);
    if (kindNumber !== KINDS[kind]) {
      const name = Object.entries(KINDS).find(([, number]) => number === kindNumber)?.[0] ?? "unknown";
      this.refuse("kind", `${kindNumber} (${name})`, `${KINDS[kind]} (${kind})`);
    }
    const length = this.#view.getUint32(8, true);
    if (length !== byteLength) this.refuse("length field", length, `${byteLength}, the number of bytes given`);
    const stored = this.#view.getUint32(byteLength - CRC_BYTES, true);
    const computed = crc32(this.#bytes.subarray(0, byteLength - CRC_BYTES));
    if (stored !== computed) this.refuse("checksum", hex(stored), `${hex(computed)}; the bytes were changed on the way`);
  }

  /** Throws the error that names the field, its value and what was wanted. */
  refuse(field: string, value: unknown, wanted: string): never {
    throw new ProtocolError(`Cannot ${this.#action}: ${field} is ${value}, expected ${wanted}`);
  }

  #take(field: string, byteLength: number): number {
    const left = this.#bytes.byteLength - CRC_BYTES - this.#at;
    if (byteLength > left) this.refuse(field, `cut off after ${left} bytes`, `${byteLength} bytes`);
    this.#at += byteLength;
    return this.#at - byteLength;
  }

  u8(field: string): number {
    return this.#view.getUint8(this.#take(field, 1));
  }

  /** A u64 that is a safe integer. */
  size(field: string): number {
    const value = this.#view.getBigUint64(this.#take(field, 8), true);
    if (value > Number.MAX_SAFE_INTEGER) this.refuse(field, value, `at most ${Number.MAX_SAFE_INTEGER}`);
    return Number(value);
  }

  bytes(field: string, byteLength: number): Uint8Array {
    const at = this.#take(field, byteLength);
    return this.#bytes.subarray(at, at + byteLength);
  }

  /** Nothing may follow the last field. */
  end(): void {
    const left = this.#bytes.byteLength - CRC_BYTES - this.#at;
    if (left !== 0) this.refuse("length", `${left} bytes longer than its fields`, "no byte behind the last field");
  }
}

function hex(value: number): string {
  return `0x${value.toString(16).padStart(8, "0")}`;
}
