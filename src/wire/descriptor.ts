/**
 * Descriptors: what a process tells another about a buffer or an event, so that the other can open it. Plain data, which
 * any transport may carry as bytes or as JSON. Reading is strict: what was truncated, changed or made up is refused.
 *
 * @module
 */
import { checkInteger, invalid, shown } from "../arguments.ts";
import { InvalidArgumentError } from "../errors.ts";
import {
  checkDeviceUuid,
  checkIdentity,
  checkObject,
  checkOpaque,
  checkUuid,
  deviceUuidBytes,
  deviceUuidFrom,
  received,
} from "./fields.ts";
import { formatUuid, parseUuid, toHex } from "./hex.ts";
import { decodeProcessIdentity, encodeProcessIdentity, PROCESS_IDENTITY_BYTES, type ProcessIdentity } from "./identity.ts";
import { checkJsonChecksum, readJson, readJsonBytes } from "./json.ts";
import { MAX_VIRTUAL_CHUNKS } from "./limits.ts";
import { checksumOf, FORMAT_VERSION, RecordReader, RecordWriter } from "./record.ts";

/** How the exporter made the memory, which decides how an importer opens it. */
export type MemoryKind = "pool" | "virtual" | "host" | "legacy";

/** What a {@linkcode BufferDescriptor} is made of. */
export interface BufferDescriptorInit {
  /** How the exporter made the memory. */
  readonly memoryKind: MemoryKind;
  /** The device that holds it, `"GPU-…"`. */
  readonly deviceUuid: string;
  /** The process that owns it. */
  readonly exporter: ProcessIdentity;
  /** The pool that it comes from, a UUID; null where there is none. */
  readonly poolId: string | null;
  /** The exporter's own number of the allocation: two allocations at one address differ in it. */
  readonly generation: number;
  /** Where the buffer begins in its allocation. */
  readonly byteOffset: number;
  /** The buffer's length. */
  readonly byteLength: number;
  /** The length of the whole allocation, all of which an importer maps. */
  readonly allocationByteLength: number;
  /** Virtual memory only: the length of each piece, one for each handle that travels beside the descriptor. */
  readonly chunkByteLengths: readonly number[];
  /** What the driver gave for the importer's driver: 64 bytes; none for virtual memory, which is opened by its handles. */
  readonly opaque: Uint8Array;
}

/** The JSON form of a {@linkcode BufferDescriptor}: its fields, the opaque bytes in hexadecimal, and a checksum. */
export interface BufferDescriptorJson extends Omit<BufferDescriptorInit, "opaque"> {
  /** Tells it from other descriptors. */
  readonly type: "buffer descriptor";
  /** The version of the format. */
  readonly version: number;
  /** The driver's bytes in hexadecimal. */
  readonly opaque: string;
  /** CRC-32 of the byte form. */
  readonly checksum: number;
}

/** What an {@linkcode EventDescriptor} is made of. */
export interface EventDescriptorInit {
  /** The device whose work the event marks, `"GPU-…"`. */
  readonly deviceUuid: string;
  /** The process that owns it. */
  readonly exporter: ProcessIdentity;
  /** The 64 bytes of `cuIpcGetEventHandle`. */
  readonly opaque: Uint8Array;
}

/** The JSON form of an {@linkcode EventDescriptor}: its fields, the opaque bytes in hexadecimal, and a checksum. */
export interface EventDescriptorJson extends Omit<EventDescriptorInit, "opaque"> {
  /** Tells it from other descriptors. */
  readonly type: "event descriptor";
  /** The version of the format. */
  readonly version: number;
  /** The driver's bytes in hexadecimal. */
  readonly opaque: string;
  /** CRC-32 of the byte form. */
  readonly checksum: number;
}

/** On the wire a kind is its place in this list, counted from 1. */
const MEMORY_KINDS: readonly MemoryKind[] = ["pool", "virtual", "host", "legacy"];
const OPAQUE_BYTES = 64;
const UUID_BYTES = 16;

/** The driver's bytes of a descriptor, uncopied (a copy takes Deno longer than the driver's import): only to be read. */
export let opaqueOf: (descriptor: BufferDescriptor) => Uint8Array;

/**
 * Names a buffer of this or another process. `buffer.ipcDescriptor` makes it and `DeviceBuffer.import` opens it; between
 * the two it is plain data. It never changes. Whoever holds it can open nothing without the pool's handle.
 *
 * @example Over any transport, as bytes or as JSON
 * ```ts
 * import { BufferDescriptor } from "@cuda-ipc/cuda-ipc";
 *
 * const descriptor = new BufferDescriptor({
 *   memoryKind: "pool",
 *   deviceUuid: "GPU-01234567-89ab-cdef-0123-456789abcdef",
 *   exporter: { bootId: "01234567-89ab-cdef-0123-456789abcdef", pid: 42, pidNamespace: 4026531836, startTime: 1000 },
 *   poolId: null,
 *   generation: 1,
 *   byteOffset: 0,
 *   byteLength: 1024,
 *   allocationByteLength: 1024,
 *   chunkByteLengths: [],
 *   opaque: new Uint8Array(64),
 * });
 * const fromBytes = BufferDescriptor.fromBytes(descriptor.toBytes());
 * const fromJson = BufferDescriptor.fromJSON(JSON.parse(JSON.stringify(descriptor)));
 * console.log(fromBytes.byteLength === fromJson.byteLength); // true
 * ```
 */
export class BufferDescriptor implements BufferDescriptorInit {
  /** How the exporter made the memory. */
  readonly memoryKind: MemoryKind;
  /** The device that holds it, `"GPU-…"`. */
  readonly deviceUuid: string;
  /** The process that owns it. */
  readonly exporter: ProcessIdentity;
  /** The pool that it comes from, a UUID; null where there is none. */
  readonly poolId: string | null;
  /** The exporter's own number of the allocation: two allocations at one address differ in it. */
  readonly generation: number;
  /** Where the buffer begins in its allocation. */
  readonly byteOffset: number;
  /** The buffer's length. */
  readonly byteLength: number;
  /** The length of the whole allocation, all of which an importer maps. */
  readonly allocationByteLength: number;
  /** Virtual memory only: the length of each piece, one for each handle that travels beside the descriptor. */
  readonly chunkByteLengths: readonly number[];
  readonly #opaque: Uint8Array;
  #bytes: Uint8Array | undefined;

  static {
    opaqueOf = (descriptor) => descriptor.#opaque;
  }

  /**
   * Makes a descriptor of its fields. `buffer.ipcDescriptor` does it for you.
   *
   * @throws {InvalidArgumentError} when a field has the wrong type, is out of range, or contradicts another.
   */
  constructor(init: BufferDescriptorInit) {
    const action = "make a BufferDescriptor";
    checkObject(action, "its argument", init);
    const { memoryKind } = init;
    if (!MEMORY_KINDS.includes(memoryKind)) {
      throw invalid(action, "memoryKind", memoryKind, '"pool", "virtual", "host" or "legacy"');
    }
    this.memoryKind = memoryKind;
    this.deviceUuid = checkDeviceUuid(action, init.deviceUuid);
    this.exporter = checkIdentity(action, init.exporter);
    this.poolId = init.poolId === null ? null : checkUuid(action, "poolId", init.poolId);
    this.generation = checkInteger(action, "generation", init.generation, 0);
    this.allocationByteLength = checkInteger(action, "allocationByteLength", init.allocationByteLength, 0);
    this.byteOffset = checkInteger(action, "byteOffset", init.byteOffset, 0, this.allocationByteLength);
    const room = this.allocationByteLength - this.byteOffset;
    this.byteLength = checkInteger(action, "byteLength", init.byteLength, 0, room);
    this.chunkByteLengths = checkChunks(action, memoryKind, init.chunkByteLengths, this.allocationByteLength);
    this.#opaque = checkOpaque(action, init.opaque, memoryKind === "virtual" ? 0 : OPAQUE_BYTES);
    Object.freeze(this);
  }

  /** What the driver gave for the importer's driver (a copy): 64 bytes, or none for virtual memory. */
  get opaque(): Uint8Array {
    return this.#opaque.slice();
  }

  /** The byte form: versioned, self-describing and with a checksum. Each call gives a new array. */
  toBytes(): Uint8Array {
    return (this.#bytes ??= this.#encode()).slice();
  }

  #encode(): Uint8Array {
    const fieldBytes = 3 + UUID_BYTES + PROCESS_IDENTITY_BYTES + UUID_BYTES + 4 * 8 + this.#opaque.byteLength +
      8 * this.chunkByteLengths.length;
    const writer = new RecordWriter("buffer descriptor", fieldBytes);
    writer.u8(MEMORY_KINDS.indexOf(this.memoryKind) + 1);
    writer.bytes(deviceUuidBytes(this.deviceUuid)!);
    writer.bytes(encodeProcessIdentity(this.exporter));
    writer.u8(this.poolId === null ? 0 : 1);
    writer.bytes(this.poolId === null ? new Uint8Array(UUID_BYTES) : parseUuid(this.poolId)!);
    writer.size(this.generation);
    writer.size(this.byteOffset);
    writer.size(this.byteLength);
    writer.size(this.allocationByteLength);
    writer.bytes(this.#opaque);
    writer.u8(this.chunkByteLengths.length);
    for (const length of this.chunkByteLengths) writer.size(length);
    return writer.finish();
  }

  /**
   * Reads what {@linkcode toBytes} wrote, perhaps in another process.
   *
   * @throws {InvalidArgumentError} when `bytes` is no Uint8Array.
   * @throws {ProtocolError} when the bytes were truncated, changed or made up, or are of another version or kind.
   */
  static fromBytes(bytes: Uint8Array): BufferDescriptor {
    const reader = new RecordReader("buffer descriptor", bytes);
    const kindNumber = reader.u8("memoryKind");
    const memoryKind = MEMORY_KINDS[kindNumber - 1] ?? reader.refuse("memoryKind", kindNumber, `1 to ${MEMORY_KINDS.length}`);
    const deviceUuid = deviceUuidFrom(formatUuid(reader.bytes("deviceUuid", UUID_BYTES)));
    const exporter = decodeProcessIdentity(reader.bytes("exporter", PROCESS_IDENTITY_BYTES));
    const hasPool = reader.u8("whether poolId is there");
    if (hasPool > 1) reader.refuse("whether poolId is there", hasPool, "0 or 1");
    const pool = reader.bytes("poolId", UUID_BYTES);
    if (hasPool === 0 && pool.some((byte) => byte !== 0)) reader.refuse("poolId", formatUuid(pool), "zeros, as it is not there");
    const generation = reader.size("generation");
    const byteOffset = reader.size("byteOffset");
    const byteLength = reader.size("byteLength");
    const allocationByteLength = reader.size("allocationByteLength");
    const opaque = reader.bytes("opaque", memoryKind === "virtual" ? 0 : OPAQUE_BYTES);
    const count = reader.u8("the count of chunkByteLengths");
    const chunkByteLengths = Array.from({ length: count }, (_, index) => reader.size(`chunkByteLengths[${index}]`));
    reader.end();
    const poolId = hasPool === 0 ? null : formatUuid(pool);
    return received(() =>
      new BufferDescriptor({
        memoryKind,
        deviceUuid,
        exporter,
        poolId,
        generation,
        byteOffset,
        byteLength,
        allocationByteLength,
        chunkByteLengths,
        opaque,
      })
    );
  }

  /** The JSON form, which `JSON.stringify` takes by itself. */
  toJSON(): BufferDescriptorJson {
    return {
      type: "buffer descriptor",
      version: FORMAT_VERSION,
      memoryKind: this.memoryKind,
      deviceUuid: this.deviceUuid,
      exporter: this.exporter,
      poolId: this.poolId,
      generation: this.generation,
      byteOffset: this.byteOffset,
      byteLength: this.byteLength,
      allocationByteLength: this.allocationByteLength,
      chunkByteLengths: this.chunkByteLengths,
      opaque: toHex(this.#opaque),
      checksum: checksumOf(this.toBytes()),
    };
  }

  /**
   * Reads what {@linkcode toJSON} gave, after `JSON.parse`.
   *
   * @throws {InvalidArgumentError} when `value` is no object.
   * @throws {ProtocolError} when a field is missing, unknown, changed or out of range, or the version is another.
   */
  static fromJSON(value: unknown): BufferDescriptor {
    const json = readJson("buffer descriptor", value, [
      "memoryKind",
      "deviceUuid",
      "exporter",
      "poolId",
      "generation",
      "byteOffset",
      "byteLength",
      "allocationByteLength",
      "chunkByteLengths",
      "opaque",
    ]);
    const descriptor = received(() =>
      new BufferDescriptor({ ...json, opaque: readJsonBytes("buffer descriptor", "opaque", json.opaque) } as BufferDescriptorInit)
    );
    checkJsonChecksum("buffer descriptor", json.checksum, descriptor.toBytes());
    return descriptor;
  }
}

/**
 * Names an interprocess event. `event.ipcDescriptor` makes it and `CudaEvent.import` opens it; between the two it is
 * plain data. It never changes.
 *
 * @example Over any transport, as bytes or as JSON
 * ```ts
 * import { EventDescriptor } from "@cuda-ipc/cuda-ipc";
 *
 * const descriptor = new EventDescriptor({
 *   deviceUuid: "GPU-01234567-89ab-cdef-0123-456789abcdef",
 *   exporter: { bootId: "01234567-89ab-cdef-0123-456789abcdef", pid: 42, pidNamespace: 4026531836, startTime: 1000 },
 *   opaque: new Uint8Array(64),
 * });
 * const fromBytes = EventDescriptor.fromBytes(descriptor.toBytes());
 * const fromJson = EventDescriptor.fromJSON(JSON.parse(JSON.stringify(descriptor)));
 * console.log(fromBytes.deviceUuid === fromJson.deviceUuid); // true
 * ```
 */
export class EventDescriptor implements EventDescriptorInit {
  /** The device whose work the event marks, `"GPU-…"`. */
  readonly deviceUuid: string;
  /** The process that owns it. */
  readonly exporter: ProcessIdentity;
  readonly #opaque: Uint8Array;
  #bytes: Uint8Array | undefined;

  /**
   * Makes a descriptor of its fields. `event.ipcDescriptor` does it for you.
   *
   * @throws {InvalidArgumentError} when a field has the wrong type or is out of range.
   */
  constructor(init: EventDescriptorInit) {
    const action = "make an EventDescriptor";
    checkObject(action, "its argument", init);
    this.deviceUuid = checkDeviceUuid(action, init.deviceUuid);
    this.exporter = checkIdentity(action, init.exporter);
    this.#opaque = checkOpaque(action, init.opaque, OPAQUE_BYTES);
    Object.freeze(this);
  }

  /** The 64 bytes of `cuIpcGetEventHandle` (a copy). */
  get opaque(): Uint8Array {
    return this.#opaque.slice();
  }

  /** The byte form: versioned, self-describing and with a checksum. Each call gives a new array. */
  toBytes(): Uint8Array {
    return (this.#bytes ??= this.#encode()).slice();
  }

  #encode(): Uint8Array {
    const writer = new RecordWriter("event descriptor", UUID_BYTES + PROCESS_IDENTITY_BYTES + OPAQUE_BYTES);
    writer.bytes(deviceUuidBytes(this.deviceUuid)!);
    writer.bytes(encodeProcessIdentity(this.exporter));
    writer.bytes(this.#opaque);
    return writer.finish();
  }

  /**
   * Reads what {@linkcode toBytes} wrote, perhaps in another process.
   *
   * @throws {InvalidArgumentError} when `bytes` is no Uint8Array.
   * @throws {ProtocolError} when the bytes were truncated, changed or made up, or are of another version or kind.
   */
  static fromBytes(bytes: Uint8Array): EventDescriptor {
    const reader = new RecordReader("event descriptor", bytes);
    const deviceUuid = deviceUuidFrom(formatUuid(reader.bytes("deviceUuid", UUID_BYTES)));
    const exporter = decodeProcessIdentity(reader.bytes("exporter", PROCESS_IDENTITY_BYTES));
    const opaque = reader.bytes("opaque", OPAQUE_BYTES);
    reader.end();
    return received(() => new EventDescriptor({ deviceUuid, exporter, opaque }));
  }

  /** The JSON form, which `JSON.stringify` takes by itself. */
  toJSON(): EventDescriptorJson {
    return {
      type: "event descriptor",
      version: FORMAT_VERSION,
      deviceUuid: this.deviceUuid,
      exporter: this.exporter,
      opaque: toHex(this.#opaque),
      checksum: checksumOf(this.toBytes()),
    };
  }

  /**
   * Reads what {@linkcode toJSON} gave, after `JSON.parse`.
   *
   * @throws {InvalidArgumentError} when `value` is no object.
   * @throws {ProtocolError} when a field is missing, unknown, changed or out of range, or the version is another.
   */
  static fromJSON(value: unknown): EventDescriptor {
    const json = readJson("event descriptor", value, [
      "deviceUuid",
      "exporter",
      "opaque",
    ]);
    const descriptor = received(() =>
      new EventDescriptor({ ...json, opaque: readJsonBytes("event descriptor", "opaque", json.opaque) } as EventDescriptorInit)
    );
    checkJsonChecksum("event descriptor", json.checksum, descriptor.toBytes());
    return descriptor;
  }
}

/** Pieces cover the allocation, and only virtual memory has any. */
function checkChunks(action: string, kind: MemoryKind, value: unknown, allocationByteLength: number): readonly number[] {
  if (!Array.isArray(value)) throw invalid(action, "chunkByteLengths", value, "an array");
  const [min, max] = kind === "virtual" ? [1, MAX_VIRTUAL_CHUNKS] : [0, 0];
  if (value.length < min || value.length > max) {
    throw new InvalidArgumentError(
      `Cannot ${action}: chunkByteLengths has ${value.length} elements, expected ${min} to ${max} for memoryKind ${shown(kind)}`,
    );
  }
  const chunks = Array.from(value, (length, index) => checkInteger(action, `chunkByteLengths[${index}]`, length, 1));
  const sum = chunks.reduce((total, length) => total + length, 0);
  if (kind === "virtual" && (sum < allocationByteLength || !Number.isSafeInteger(sum))) {
    throw invalid(action, "the sum of chunkByteLengths", sum, `at least allocationByteLength, ${allocationByteLength}`);
  }
  return Object.freeze(chunks);
}
