/** Ranges of GPU memory. */
import { addOffset, type Address, addressToBigInt, createHostView, type HostView, type Size, toSize } from "../../ffi/mod.ts";
import { Action, checkBytes, checkInteger, checkOptions, checkSignal, invalid, type Text } from "../arguments.ts";
import { Closable, type WaitOptions } from "../closable.ts";
import { type Context, contextOf } from "../context.ts";
import { Device } from "../device.ts";
import { check } from "../driver/check.ts";
import { ClosedError, DeviceNotVisibleError, InvalidArgumentError, NotSupportedError } from "../errors.ts";
import { type NativeStream, nativeStream } from "../native_stream.ts";
import type { CudaStream } from "../stream.ts";
import { BufferDescriptor } from "../wire/descriptor.ts";
import type { AllocationHandle } from "./allocation_handle.ts";
import type { Allocation, BufferKind } from "./allocation.ts";
import { nativePool } from "./native_pool.ts";
import type { HostPool } from "./host_pool.ts";
import { checkOverlap, checkStream, copy, copy2D, type PitchedPlace } from "./copy.ts";
import { ForeignAllocation } from "./foreign_allocation.ts";
import { hostPoolParts } from "./native_host_pool.ts";
import { withStream } from "./own_stream.ts";
import type { MemoryPool } from "./pool.ts";
import { openFromHostPool, openFromPool } from "./pool_import.ts";
import { reaped } from "./reaper.ts";
import { copyFromDevice, copyFromDeviceSync, copyToDevice, copyToDeviceSync } from "./staging.ts";
import { VirtualAllocation } from "./virtual_allocation.ts";

/** Where work on a buffer is queued. */
export interface StreamOption {
  /** Default: the buffer's own stream, which it was allocated or imported on. */
  readonly stream?: CudaStream;
}

/** Options of `write`. */
export interface WriteOptions extends StreamOption, WaitOptions {
  /** Where in the buffer to begin. Default: 0. */
  readonly byteOffset?: number;
}

/** Options of `read`. */
export interface ReadOptions extends StreamOption, WaitOptions {
  /** Where in the buffer to begin, before its end. Default: 0. */
  readonly byteOffset?: number;
  /** How much to read, from 1 on. Default: what `into` holds, else up to the buffer's end. */
  readonly byteLength?: number;
  /** Where to put the bytes, not empty. Default: a new array. */
  readonly into?: Uint8Array;
}

/** Options of `wrap`. */
export interface WrapOptions extends StreamOption {
  /** Kept from being collected for as long as the buffer: whatever holds the memory. */
  readonly owner?: unknown;
}

/** Options of `chunks`. */
export interface ChunksOptions extends StreamOption, WaitOptions {
  /** The length of each chunk but the last, from 1 on. Default: 16 MiB. */
  readonly chunkBytes?: number;
}

/** Options of `fill`. */
export interface FillOptions extends StreamOption {
  /** Bytes of one element: 1, 2 or 4. Default: 1. */
  readonly width?: 1 | 2 | 4;
}

/** Options of `copyFrom2D`. */
export interface Copy2DOptions extends StreamOption {
  /** The length of each row, from 1 on. */
  readonly rowBytes: number;
  /** How many rows to copy, from 1 on. */
  readonly rows: number;
  /** From the begin of one row to the next in this buffer. Default: `rowBytes`. */
  readonly pitchBytes?: number;
  /** The same in the other buffer. Default: `rowBytes`. */
  readonly sourcePitchBytes?: number;
}

/** Options of `fill2D`. */
export interface Fill2DOptions extends FillOptions {
  /** The length of each row, from 1 on. */
  readonly rowBytes: number;
  /** How many rows to fill, from 1 on. */
  readonly rows: number;
  /** From the begin of one row to the next. Default: `rowBytes`. */
  readonly pitchBytes?: number;
}

/** What an array holds in both runtimes. */
const MAX_ARRAY_BYTES = 2 ** 32;
const DEFAULT_CHUNK_BYTES = 16 * 1024 * 1024;
const TOKEN: unique symbol = Symbol("DeviceBuffer");

/** Which part of an allocation a buffer is. */
interface Range {
  readonly byteOffset: number;
  readonly byteLength: number;
}

let allocationIn: (buffer: DeviceBuffer) => Allocation;
let make: (allocation: Allocation, device: Device | null, pool: MemoryPool | HostPool | null, range: Range) => DeviceBuffer;

/** Which buffer owns the memory behind a view: the view alone keeps the buffer from being collected. */
const owners = new WeakMap<ArrayBuffer, DeviceBuffer>();

/** What is behind a usable buffer: its allocation, and where it begins in it. */
interface BufferParts {
  readonly allocation: Allocation;
  readonly device: Device | null;
  readonly byteOffset: number;
}

let access: (value: unknown, action: Text) => BufferParts;

/**
 * A range of GPU memory, of this process or mapped from another one, of at least one byte: a length of zero is refused
 * everywhere. It belongs to its holder, who frees it; a
 * `subarray` is a view that ends with its parent. Work on it is ordered by streams, not by calls: what one stream does
 * is seen by another only behind an event or a wait.
 *
 * @example
 * ```ts
 * import { Device, MemoryPool } from "@cuda-ipc/cuda-ipc";
 *
 * using device = Device.open(0);
 * using stream = device.createStream();
 * using pool = MemoryPool.create(device);
 * using buffer = pool.allocate(4096, { stream });
 * buffer.fill(1, { stream });
 * const bytes = await buffer.read({ stream });
 * ```
 */
export class DeviceBuffer extends Closable {
  readonly #allocation: Allocation;
  readonly #device: Device | null;
  readonly #pool: MemoryPool | HostPool | null;
  /** What it is a view of; undefined for a buffer that is no view. */
  readonly #parent: DeviceBuffer | undefined;
  readonly #byteOffset: number;
  readonly #byteLength: number;
  readonly #address: Address;
  readonly #size: Size;
  #freeStream: NativeStream | undefined;
  #view: HostView | undefined;
  /** Itself and its parts, those whose bytes the host has got by `view`. */
  #viewed: Set<DeviceBuffer> | undefined;
  #descriptor: BufferDescriptor | undefined;

  /** Not for users: see `pool.allocate` and {@linkcode DeviceBuffer.import}. */
  private constructor(
    token: typeof TOKEN,
    allocation: Allocation,
    device: Device | null,
    pool: MemoryPool | HostPool | null,
    range: Range,
    parent?: DeviceBuffer,
  ) {
    super();
    if (token !== TOKEN) {
      throw new InvalidArgumentError("Cannot construct a DeviceBuffer: use pool.allocate() or DeviceBuffer.import()");
    }
    this.#allocation = allocation;
    this.#device = device;
    this.#pool = pool;
    this.#byteOffset = range.byteOffset;
    this.#byteLength = range.byteLength;
    if (range.byteLength === allocation.byteLength) { // the frequent case makes no new bigint in Deno
      this.#address = allocation.address;
      this.#size = allocation.size;
    } else {
      this.#address = addOffset(allocation.address, range.byteOffset);
      this.#size = toSize(range.byteLength);
    }
    this.#parent = parent;
    if (parent === undefined) this.protect("DeviceBuffer", allocation);
  }

  static {
    allocationIn = (buffer) => buffer.#allocation;
    access = (value, action) => {
      if (typeof value !== "object" || value === null || !(#allocation in value)) {
        throw invalid(action, "buffer", value, "a DeviceBuffer");
      }
      value.#checkUsable(action);
      return { allocation: value.#allocation, device: value.#device, byteOffset: value.#byteOffset };
    };
    make = (allocation, device, pool, range) => new DeviceBuffer(TOKEN, allocation, device, pool, range);
  }

  /**
   * Maps a buffer of another process (`cuMemPoolImportPointer`). The memory is the exporter's: what either writes, both
   * see. Importing the same allocation again counts users of one mapping. In the exporter's own process it gives an
   * alias. The exporter must not free the memory before all importers have: the driver does not prevent it. Tell it only after
   * `closeAsync()`: a freed import stays mapped until its stream's work is done, and an import of other memory at its place
   * is refused until then. A channel takes care of both.
   *
   * `stream` is where the import is freed by default; it is given back when that stream's work is done. Of a HostPool's
   * buffer it may be left out.
   *
   * @throws {ImportLimitError} when the allocation is larger than 4064 MiB.
   * @throws {ProtocolError} when the driver's bytes in the descriptor contradict it.
   * @throws {DeviceNotVisibleError} when the memory is on another device than the pool's.
   * @throws {InvalidArgumentError} when the descriptor is of another pool, or names memory that overlaps an import which is still
   * mapped here.
   */
  static import(pool: MemoryPool | HostPool, descriptor: BufferDescriptor, options?: StreamOption): DeviceBuffer {
    if (!(descriptor instanceof BufferDescriptor)) {
      throw invalid("import a buffer", "descriptor", descriptor, "a BufferDescriptor");
    }
    const { stream } = checkOptions("import a buffer", options, ["stream"]);
    const host = hostPoolParts(pool, "import a buffer");
    return host === undefined
      ? make(openFromPool(nativePool(pool, "import a buffer"), pool.device!, descriptor, stream), pool.device, pool, descriptor)
      : make(openFromHostPool(host.native, descriptor, stream), host.device, pool, descriptor);
  }

  /**
   * Maps another process's virtual memory by the handles of its chunks (`cuMemImportFromShareableHandle`), which the
   * exporter's `buffer.exportHandles` gave, in their order; or by fabric handles of 64 bytes. They stay the caller's and
   * may be closed right after; the buffer keeps a duplicate of each until it is freed, so that it can be sent on, which the
   * driver refuses. In the exporter's own process it gives an alias at another address. The memory lives
   * until its last mapping goes, whoever has it.
   *
   * @param device the device whose streams use it; another one than the memory's must have access to that one.
   * @throws {DeviceNotVisibleError} when this process does not see the memory's device.
   * @throws {NotSupportedError} when `device` cannot reach it.
   * @throws {ProtocolError} when a handle is not the driver's.
   */
  static importVirtual(
    device: Device,
    descriptor: BufferDescriptor,
    handles: readonly (AllocationHandle | Uint8Array)[],
    options?: StreamOption,
  ): DeviceBuffer {
    const context = contextOf(device, "import virtual memory");
    const action = `import virtual memory on ${context}`;
    if (!(descriptor instanceof BufferDescriptor)) throw invalid(action, "descriptor", descriptor, "a BufferDescriptor");
    const { memoryKind, deviceUuid } = descriptor;
    if (memoryKind !== "virtual") throw invalid(action, "descriptor.memoryKind", memoryKind, '"virtual"');
    if (!Array.isArray(handles)) throw invalid(action, "handles", handles, "an array of AllocationHandles");
    if (deviceUuid !== device.uuid) checkReach(action, device, context, deviceUuid);
    const allocation = withStream(
      context,
      checkOptions(action, options, ["stream"]).stream,
      action,
      (stream) => VirtualAllocation.import(context, descriptor, handles, stream, action),
    );
    return make(allocation, device, null, descriptor);
  }

  /**
   * Makes a buffer of device memory that others have allocated in this process: a library, or a kernel's author. It is
   * never freed here; the caller keeps the memory allocated for as long as the buffer and its importers use it. It can
   * be exported where the driver says that the memory can: of a shareable pool (`exportHandles` gives the pool's
   * handle), or of `cuMemAlloc` (see `legacy`).
   *
   * @param address where it begins, as the device sees it.
   * @param byteLength how long it is, from 1 on.
   * @throws {InvalidArgumentError} when the driver knows no such memory of the device there.
   */
  static wrap(device: Device, address: bigint, byteLength: number, options?: WrapOptions): DeviceBuffer {
    const context = contextOf(device, "wrap device memory");
    const action = `wrap device memory on ${context}`;
    if (typeof address !== "bigint" || address < 1n || address > BigInt(Number.MAX_SAFE_INTEGER)) {
      throw invalid(action, "address", address, "a bigint from 1n to 2^53 - 1");
    }
    checkInteger(action, "byteLength", byteLength, 1);
    const { owner, stream: given } = checkOptions(action, options, ["owner", "stream"]);
    const { allocation, byteOffset } = withStream(
      context,
      given,
      action,
      (stream) => ForeignAllocation.find(context, address, byteLength, stream, owner, action),
    );
    return make(allocation, device, null, { byteOffset, byteLength });
  }

  /**
   * The bytes of host memory, without a copy; every reading gives the same array. Freeing the buffer, or closing a
   * part that it is of, detaches it: its length is 0 then. An array of more than 4 GiB cannot be had: view it in parts,
   * `buffer.subarray(begin, end).view`. Do not transfer its ArrayBuffer: what was transferred is not detached by `free`, and
   * reading freed memory kills the process.
   *
   * @throws {NotSupportedError} when the host cannot reach the memory: use {@linkcode read}.
   * @throws {RangeError} above 4 GiB.
   */
  get view(): Uint8Array<ArrayBuffer> {
    this.#checkUsable("view a buffer");
    return (this.#view ??= this.#openView()).bytes;
  }

  #openView(): HostView {
    const { hostAddress } = this.#allocation;
    if (hostAddress === undefined) throw new NotSupportedError(`Cannot view ${this}: the host reaches only a HostPool's memory`);
    if (this.#byteLength > MAX_ARRAY_BYTES) {
      throw new RangeError(`Cannot view ${this}: no array holds more than ${MAX_ARRAY_BYTES} bytes. View it by subarray()`);
    }
    const view = createHostView(addOffset(hostAddress, this.#byteOffset), this.#byteLength);
    for (const buffer of DeviceBuffer.#lineageOf(this)) {
      (buffer.#viewed ??= new Set()).add(this);
      if (buffer.#parent === undefined) owners.set(view.bytes.buffer, buffer);
    }
    return view;
  }

  #closeView(): void {
    for (const buffer of DeviceBuffer.#lineageOf(this)) buffer.#viewed!.delete(this);
    this.#view!.detach();
  }

  /** A buffer, what it is a view of, and so on. */
  static *#lineageOf(view: DeviceBuffer): Iterable<DeviceBuffer> {
    for (let buffer: DeviceBuffer | undefined = view; buffer !== undefined; buffer = buffer.#parent) yield buffer;
  }

  /** Its length in bytes. */
  get byteLength(): number {
    return this.#byteLength;
  }
  /** Its address on the device, for kernels and foreign libraries. Valid until the buffer is freed. */
  get address(): bigint {
    this.checkOpen("take the address of a buffer");
    return addressToBigInt(this.#address);
  }
  /**
   * The device whose memory it is; of host memory, the one that its pool was made or imported for.
   *
   * @throws {NotSupportedError} for host memory that was imported without a device.
   */
  get device(): Device {
    if (this.#device !== null) return this.#device;
    throw new NotSupportedError(`Cannot tell the device of ${this}: its pool was imported without one`);
  }
  /** The pool that it comes from; null where there is none. */
  get pool(): MemoryPool | HostPool | null {
    return this.#pool;
  }
  /** What kind of memory it is. */
  get kind(): BufferKind {
    return this.#allocation.kind;
  }
  /** Whether another process owns the memory. */
  get isImported(): boolean {
    return this.#allocation.isImported;
  }
  /** Whether it, or a buffer that it is a view of, was freed. The same as `isClosed`. */
  get isFreed(): boolean {
    return this.isClosed;
  }
  /** Whether it, or a buffer that it is a view of, was freed. */
  override get isClosed(): boolean {
    return this.#parent === undefined ? super.isClosed : DeviceBuffer.#isEnded(this);
  }

  static #isEnded(view: DeviceBuffer): boolean {
    let buffer: DeviceBuffer | undefined = view;
    while (buffer !== undefined && !buffer.#isClosedItself) buffer = buffer.#parent;
    return buffer !== undefined;
  }

  get #isClosedItself(): boolean {
    return super.isClosed;
  }

  /**
   * A view of a part of the buffer, without a copy. It ends with this buffer, and with it the views of it; closing it frees
   * nothing. Exported, it names its part, but an importer maps the whole allocation: a view is no security boundary.
   *
   * @param begin the first byte.
   * @param end behind the last byte, and so above `begin`: an empty part is refused. Default: the buffer's end.
   */
  subarray(begin: number, end: number = this.#byteLength): DeviceBuffer {
    this.checkOpen("take a part of a buffer");
    const action = new Action("take a part of", this);
    checkInteger(action, "begin", begin, 0, this.#byteLength - 1);
    checkInteger(action, "end", end, begin + 1, this.#byteLength);
    const range = { byteOffset: this.#byteOffset + begin, byteLength: end - begin };
    return new DeviceBuffer(TOKEN, this.#allocation, this.#device, this.#pool, range, this);
  }

  /**
   * Copies bytes into the buffer through pinned staging memory. Resolves when they are there; the event loop goes on.
   * The first pieces (up to 8 MiB) are taken and queued at the call where staging memory is free, later ones as it
   * becomes free: await it before you queue work that depends on it, and do not change the array meanwhile.
   *
   * @throws {InvalidArgumentError} when the bytes are none or do not fit, or the array is transferred away meanwhile.
   */
  async write(bytes: ArrayBufferView, options?: WriteOptions): Promise<void> {
    const { source, address, stream, signal } = this.#prepareWrite(bytes, options);
    this.#allocation.hold();
    try {
      await copyToDevice(address, source, stream, signal);
    } finally {
      this.#allocation.release(stream);
    }
  }

  /** The same as {@linkcode write}, blocking this thread until the stream's work is done. */
  writeSync(bytes: ArrayBufferView, options?: WriteOptions): void {
    const { source, address, stream } = this.#prepareWrite(bytes, options);
    copyToDeviceSync(address, source, stream);
  }

  #prepareWrite(bytes: ArrayBufferView, options: WriteOptions | undefined) {
    const action = new Action("write to", this);
    this.#checkUsable(action);
    const given = checkOptions(action, options, ["byteOffset", "stream", "signal"]);
    const source = checkBytes(action, "bytes", bytes);
    const byteOffset = given.byteOffset === undefined
      ? 0
      : checkInteger(action, "byteOffset", given.byteOffset, 0, this.#byteLength);
    if (source.byteLength > this.#byteLength - byteOffset) {
      throw new InvalidArgumentError(
        `Cannot ${action}: ${source.byteLength} bytes at byteOffset ${byteOffset} do not fit, expected at most ${
          this.#byteLength - byteOffset
        }`,
      );
    }
    const stream = this.#streamOf(given.stream, action);
    const signal = checkSignal(action, given.signal);
    return { source, address: this.#addressAt(byteOffset), stream, signal };
  }

  /**
   * Copies bytes out of the buffer through pinned staging memory, behind what the stream has queued. Resolves when they
   * are there; the event loop goes on.
   *
   * @throws {InvalidArgumentError} when the part is empty or does not lie within the buffer.
   * @throws {RangeError} when no single array can hold the bytes: use {@linkcode chunks}.
   */
  async read(options?: ReadOptions): Promise<Uint8Array> {
    const { destination, address, stream, signal } = this.#prepareRead(options);
    this.#allocation.hold();
    try {
      await copyFromDevice(address, destination, stream, signal);
    } finally {
      this.#allocation.release(stream);
    }
    return destination;
  }

  /** The same as {@linkcode read}, blocking this thread until the stream's work is done. */
  readSync(options?: ReadOptions): Uint8Array {
    const { destination, address, stream } = this.#prepareRead(options);
    copyFromDeviceSync(address, destination, stream);
    return destination;
  }

  #prepareRead(options: ReadOptions | undefined) {
    const action = new Action("read", this);
    this.#checkUsable(action);
    const given = checkOptions(action, options, ["byteOffset", "byteLength", "into", "stream", "signal"]);
    const into = given.into === undefined ? undefined : checkBytes(action, "into", given.into);
    const last = this.#byteLength - 1;
    const byteOffset = given.byteOffset === undefined ? 0 : checkInteger(action, "byteOffset", given.byteOffset, 0, last);
    const room = this.#byteLength - byteOffset;
    const whole = into === undefined ? room : into.byteLength;
    const wanted = given.byteLength === undefined ? whole : given.byteLength;
    const byteLength = checkInteger(action, "byteLength", wanted, 1, Math.min(room, whole));
    const stream = this.#streamOf(given.stream, action);
    const signal = checkSignal(action, given.signal);
    const destination = into?.subarray(0, byteLength) ?? newArray(action, byteLength);
    return { destination, address: this.#addressAt(byteOffset), stream, signal };
  }

  /**
   * Reads the buffer in pieces, for one that is too large for an array or for memory.
   *
   * @example
   * ```ts ignore
   * for await (const bytes of buffer.chunks({ chunkBytes: 1 << 20 })) hash.update(bytes);
   * ```
   */
  async *chunks(options?: ChunksOptions): AsyncGenerator<Uint8Array, void, void> {
    const action = new Action("read", this);
    this.#checkUsable(action);
    const { chunkBytes = DEFAULT_CHUNK_BYTES, stream, signal } = checkOptions(action, options, [
      "chunkBytes",
      "stream",
      "signal",
    ]);
    checkInteger(action, "chunkBytes", chunkBytes, 1);
    for (let byteOffset = 0; byteOffset < this.#byteLength; byteOffset += chunkBytes) {
      const byteLength = Math.min(chunkBytes, this.#byteLength - byteOffset);
      yield await this.read({ byteOffset, byteLength, stream, signal });
    }
  }

  /**
   * Copies another buffer of the same length, which is never zero, into this one, in order with the stream's work (`cuMemcpyDtoDAsync`, or
   * `cuMemcpyPeerAsync` between devices). Use `subarray` for parts.
   *
   * @throws {InvalidArgumentError} when the lengths differ, or the two are parts of one buffer and overlap.
   */
  copyFrom(other: DeviceBuffer, options?: StreamOption): void {
    const action = new Action("copy to", this);
    this.#checkUsable(action);
    if (!(other instanceof DeviceBuffer)) throw invalid(action, "other", other, "a DeviceBuffer");
    other.#checkUsable(action);
    if (other.#byteLength !== this.#byteLength) {
      throw invalid(action, "other.byteLength", other.#byteLength, `this buffer's ${this.#byteLength}`);
    }
    const { stream: given } = checkOptions(action, options, ["stream"]);
    const stream = given === undefined ? this.#allocation.stream : nativeStream(given, action);
    checkStream(this.#allocation, other.#allocation, stream, action);
    const [to, from] = [this.#rows(this.#byteLength), other.#rows(this.#byteLength)];
    checkOverlap(to, from, this.#byteLength, 1, action);
    copy(to, from, this.#size, stream);
  }

  /**
   * Copies rows of another buffer into this one, in order with the stream's work (`cuMemcpy2DAsync`): a rectangle of an
   * image or a matrix whose rows are padded. Both begin at the buffer's first byte; use `subarray` to begin elsewhere.
   *
   * @example
   * ```ts ignore
   * image.subarray(top * pitch + left).copyFrom2D(tile, { rowBytes: 64, rows: 16, pitchBytes: pitch, sourcePitchBytes: 64 });
   * ```
   *
   * @throws {InvalidArgumentError} when the rows do not lie within both buffers, a pitch is less than a row, or rows of one
   * buffer overlap.
   * @throws {NotSupportedError} when the stream's device has no access to the other buffer's.
   */
  copyFrom2D(other: DeviceBuffer, options: Copy2DOptions): void {
    const action = new Action("copy rows to", this);
    this.#checkUsable(action);
    if (!(other instanceof DeviceBuffer)) throw invalid(action, "other", other, "a DeviceBuffer");
    other.#checkUsable(action);
    const { rowBytes, rows, pitchBytes = rowBytes, sourcePitchBytes = rowBytes, stream: given } = checkOptions(action, options, [
      "rowBytes",
      "rows",
      "pitchBytes",
      "sourcePitchBytes",
      "stream",
    ]);
    const width = checkInteger(action, "rowBytes", rowBytes, 1);
    const height = checkInteger(action, "rows", rows, 1);
    const pitch = this.#checkPitch(action, "pitchBytes", pitchBytes, width, height);
    const sourcePitch = other.#checkPitch(action, "sourcePitchBytes", sourcePitchBytes, width, height);
    const stream = given === undefined ? this.#allocation.stream : nativeStream(given, action);
    checkStream(this.#allocation, other.#allocation, stream, action);
    const [to, from] = [this.#rows(pitch), other.#rows(sourcePitch)];
    checkOverlap(to, from, width, height, action);
    copy2D(to, from, width, height, stream, action);
  }

  /** A pitch that holds a row, with which all rows lie within the buffer. */
  #checkPitch(action: Text, name: string, value: unknown, rowBytes: number, rows: number): number {
    const pitch = checkInteger(action, name, value, rowBytes);
    const needed = pitch * (rows - 1) + rowBytes;
    if (needed <= this.#byteLength) return pitch;
    throw new InvalidArgumentError(
      `Cannot ${action}: ${rows} rows of ${rowBytes} bytes, ${pitch} apart, take ${needed} bytes of the ${this.#byteLength} of ${this}`,
    );
  }

  #rows(pitchBytes: number): PitchedPlace {
    return { allocation: this.#allocation, address: this.#address, pitchBytes };
  }

  /** Copies this buffer into another one of the same length, which is never zero: `other.copyFrom(this)`. */
  copyTo(other: DeviceBuffer, options?: StreamOption): void {
    if (!(other instanceof DeviceBuffer)) throw invalid(new Action("copy", this), "other", other, "a DeviceBuffer");
    other.copyFrom(this, options);
  }

  /**
   * Sets every element of the buffer (there is at least one), in order with the stream's work (`cuMemsetD8Async`, `D16`, `D32`).
   *
   * @param value an unsigned integer of `width` bytes.
   * @throws {InvalidArgumentError} when the value does not fit, or length or address is no multiple of `width`.
   */
  fill(value: number, options?: FillOptions): void {
    const action = new Action("fill", this);
    this.#checkUsable(action);
    const { width = 1, stream: given } = checkOptions(action, options, ["width", "stream"]);
    checkFill(action, value, width);
    const stream = this.#streamOf(given, action);
    const { driver } = this.#allocation.context;
    if (width === 1) {
      check(driver.memsetD8Async(this.#address, value, this.#size, stream.handle), "cuMemsetD8Async", this);
      return;
    }
    if (this.#byteLength % width !== 0 || addressToBigInt(this.#address) % BigInt(width) !== 0n) {
      throw new InvalidArgumentError(`Cannot ${action}: its length and its address must be multiples of the width ${width}`);
    }
    const count = toSize(this.#byteLength / width);
    if (width === 2) check(driver.memsetD16Async(this.#address, value, count, stream.handle), "cuMemsetD16Async", this);
    else check(driver.memsetD32Async(this.#address, value, count, stream.handle), "cuMemsetD32Async", this);
  }

  /**
   * Sets every element of a rectangle, in order with the stream's work (`cuMemsetD2D8Async`, `D16`, `D32`). It begins at
   * the buffer's first byte; use `subarray` to begin elsewhere.
   *
   * @param value an unsigned integer of `width` bytes.
   * @throws {InvalidArgumentError} when the value does not fit, the rows do not lie within the buffer, or an address or
   *   length is no multiple of `width`.
   */
  fill2D(value: number, options: Fill2DOptions): void {
    const action = new Action("fill rows of", this);
    this.#checkUsable(action);
    const { width = 1, rowBytes, rows, pitchBytes = rowBytes, stream: given } = checkOptions(action, options, [
      "width",
      "rowBytes",
      "rows",
      "pitchBytes",
      "stream",
    ]);
    checkFill(action, value, width);
    const row = checkInteger(action, "rowBytes", rowBytes, 1);
    const height = checkInteger(action, "rows", rows, 1);
    const pitch = this.#checkPitch(action, "pitchBytes", pitchBytes, row, height);
    if (row % width !== 0 || pitch % width !== 0 || addressToBigInt(this.#address) % BigInt(width) !== 0n) {
      throw new InvalidArgumentError(
        `Cannot ${action}: rowBytes, pitchBytes and the address must be multiples of the width ${width}`,
      );
    }
    const { handle } = this.#streamOf(given, action);
    const { driver } = this.#allocation.context;
    const [to, step, count, lines] = [this.#address, toSize(pitch), toSize(row / width), toSize(height)];
    if (width === 1) check(driver.memsetD2D8Async(to, step, value, count, lines, handle), "cuMemsetD2D8Async", this);
    else if (width === 2) check(driver.memsetD2D16Async(to, step, value, count, lines, handle), "cuMemsetD2D16Async", this);
    else check(driver.memsetD2D32Async(to, step, value, count, lines, handle), "cuMemsetD2D32Async", this);
  }

  /**
   * Ends the buffer: at once for its user, for the driver in order with the stream's work (`cuMemFreeAsync`). An import
   * is unmapped when the stream's work is done. A view only ends itself. Freeing twice is allowed.
   */
  free(options?: StreamOption): void {
    if (this.isClosed) return;
    if (options !== undefined) {
      const action = new Action("free", this);
      const { stream } = checkOptions(action, options, ["stream"]);
      if (stream !== undefined) this.#freeStream = this.#streamOf(stream, action);
    }
    this.close();
  }

  /**
   * What another process needs to import the buffer from its pool, made once (`cuMemPoolExportPointer`). Of an import
   * it is what it came from, so that it may be sent on. Of a view it names the part.
   *
   * @throws {InvalidArgumentError} when the buffer's pool was made without `ipc`.
   */
  get ipcDescriptor(): BufferDescriptor {
    this.#checkUsable("export a buffer");
    return this.#descriptor ??= this.#export();
  }

  /**
   * The handles which an importer of virtual memory needs beside the descriptor, one for each of its chunks. Each call
   * opens fresh ones, which the caller closes. They open the whole allocation to their holder.
   *
   * @throws {NotSupportedError} when the memory is of another kind: a pool's handle opens its buffers.
   */
  exportHandles(): AllocationHandle[] {
    const action = `export ${this}`;
    this.#checkUsable(action);
    return this.#allocation.exportHandles(action);
  }

  #export(): BufferDescriptor {
    const description = this.#allocation.describe(this.#device?.uuid ?? "", `export ${this}`);
    return new BufferDescriptor({ ...description, byteOffset: this.#byteOffset, byteLength: this.#byteLength });
  }

  #addressAt(byteOffset: number): Address {
    return byteOffset === 0 ? this.#address : addOffset(this.#address, byteOffset);
  }

  #streamOf(stream: CudaStream | undefined, action: Text): NativeStream {
    const { context, stream: own } = this.#allocation;
    if (stream === undefined) {
      own.context.makeCurrent(); // refuses for host memory without a device
      return own;
    }
    const given = nativeStream(stream, action);
    if (given.context !== context && !this.#allocation.isAccessibleFrom(given.context)) {
      throw new InvalidArgumentError(
        `Cannot ${action}: the stream belongs to ${given.context}, which has no access to the memory. ` +
          `Use a stream of ${context}, or pool.setPeerAccess()`,
      );
    }
    return given;
  }

  #checkUsable(action: Text): void {
    if (this.isClosed) throw new ClosedError(`Cannot ${action}: it was freed`);
    this.#allocation.checkCurrent(action);
  }

  /** Called once, by `close`. */
  protected override onClose(): void {
    for (const buffer of this.#viewed ?? []) buffer.#closeView();
    if (this.#parent === undefined) this.#allocation.release(this.#freeStream ?? this.#allocation.stream);
  }

  /** Settles when the driver has the memory back. */
  protected override settled(signal: AbortSignal | undefined): Promise<void> {
    return this.#parent === undefined ? reaped(() => this.#allocation.isSettled, signal) : Promise.resolve();
  }

  /** A short name for messages. */
  override toString(): string {
    return `a DeviceBuffer of ${this.#byteLength} bytes on ${this.#allocation.context}${this.isImported ? " (imported)" : ""}`;
  }
}

function checkFill(action: Text, value: unknown, width: unknown): void {
  if (width !== 1 && width !== 2 && width !== 4) throw invalid(action, "width", width, "1, 2 or 4");
  checkInteger(action, "value", value, 0, 2 ** (8 * width) - 1);
}

/** Deno's arrays may be longer than Bun's, and longer than the host's memory: the limit is the same in both. */
function newArray(action: Text, byteLength: number): Uint8Array {
  const tooLong = (): string => `Cannot ${action}: no array can hold ${byteLength} bytes here. Read it in parts with chunks()`;
  if (byteLength > MAX_ARRAY_BYTES) throw new RangeError(tooLong());
  try {
    return new Uint8Array(byteLength);
  } catch (cause) {
    throw new RangeError(tooLong(), { cause });
  }
}

/** Throws unless the device can use the memory of the one with that UUID. */
function checkReach(action: Text, device: Device, { driver }: Context, ownerUuid: string): void {
  const owner = Device.list({ driver }).find(({ uuid }) => uuid === ownerUuid);
  if (owner === undefined) {
    throw new DeviceNotVisibleError(
      `Cannot ${action}: its memory is on ${ownerUuid}, which this process does not see. Check CUDA_VISIBLE_DEVICES`,
    );
  }
  if (!device.canAccessPeer(owner)) {
    throw new NotSupportedError(`Cannot ${action}: its memory is on ${owner}, which this device cannot reach`);
  }
}

/** Gives what is behind an open DeviceBuffer, else throws InvalidArgumentError or ClosedError. */
export function bufferParts(value: unknown, action: Text): BufferParts {
  return access(value, action);
}

/** Makes the buffer that owns an allocation and shows a part of it. */
export function wrapPart(allocation: Allocation, device: Device, range: Range): DeviceBuffer {
  return make(allocation, device, null, range);
}

/** Makes the buffer that owns a whole allocation. */
export function wrapAllocation(
  allocation: Allocation,
  device: Device | null,
  pool: MemoryPool | HostPool | null,
): DeviceBuffer {
  return make(allocation, device, pool, { byteOffset: 0, byteLength: allocation.byteLength });
}

/** The memory behind an open buffer, or behind the one that a view belongs to. */
export function allocationOf(buffer: unknown, action: Text, name: string): Allocation {
  if (!(buffer instanceof DeviceBuffer)) throw invalid(action, name, buffer, "a DeviceBuffer");
  if (buffer.isClosed) throw new ClosedError(`Cannot ${action}: ${name} was freed`);
  return allocationIn(buffer);
}
