/** Memory as the driver gave it, behind one or more DeviceBuffers: who uses it, and how it goes back. */
import type { Text } from "../arguments.ts";
import { type Address, type Size, toSize } from "../../ffi/mod.ts";
import type { Context } from "../context.ts";
import { check } from "../driver/check.ts";
import { ClosedError, InvalidArgumentError, NotSupportedError } from "../errors.ts";
import type { NativeStream } from "../native_stream.ts";
import { ownIdentity } from "../os/process.ts";
import type { ImportedMapping } from "../share/import_registry.ts";
import type { BufferDescriptor, BufferDescriptorInit } from "../wire/descriptor.ts";
import type { AllocationHandle } from "./allocation_handle.ts";
import { learnExportLayout } from "./export_layout.ts";
import type { NativePool } from "./native_pool.ts";
import { reapAfter } from "./reaper.ts";

/** The kinds of memory behind a DeviceBuffer. */
export type BufferKind = "pool" | "virtual" | "host" | "legacy" | "foreign";

/** What the descriptors of all buffers of one allocation have in common. */
export type AllocationDescription = Omit<BufferDescriptorInit, "byteOffset" | "byteLength">;

let generations = 0;

/** This process's own number of an allocation, made when it is first described to others. */
export function nextGeneration(): number {
  return ++generations;
}

/** Where an allocation comes from, and how it is given back. */
export abstract class Allocation {
  readonly context: Context;
  readonly address: Address;
  readonly byteLength: number;
  /** The byte length as the driver takes it, converted once. */
  readonly size: Size;
  /** Where it is freed unless another stream is named. Held. */
  readonly stream: NativeStream;
  abstract readonly kind: BufferKind;
  #users = 1;
  /** Streams of users that ended before the last one. */
  #behind: NativeStream[] | undefined;
  #isGone: (() => boolean) | undefined;
  #afterGiveBack: ((stream: NativeStream) => void) | undefined;
  #leases = 0;

  constructor(context: Context, address: Address, byteLength: number, size: Size, stream: NativeStream) {
    this.context = context;
    this.address = address;
    this.byteLength = byteLength;
    this.size = size;
    this.stream = stream;
    stream.hold();
  }

  /** Adds a user: an alias, a lease, a transfer under way. */
  hold(): void {
    this.#users++;
  }

  /** Ends one user, whose work is on `stream`. The last one gives the memory back, behind the work of all. */
  release(stream: NativeStream = this.stream): void {
    if (--this.#users > 0) {
      stream.hold();
      (this.#behind ??= []).push(stream);
      return;
    }
    // Freed on a stream of its own device, even when the last user's belongs to another one
    const last = stream.context === this.context ? stream : this.stream;
    if (last !== stream) stream.context.orderStreams(stream.handle, last.handle);
    if (this.#behind !== undefined) {
      for (const earlier of this.#behind) {
        if (earlier !== last) earlier.context.orderStreams(earlier.handle, last.handle);
        earlier.release();
      }
    }
    try {
      this.#isGone = this.giveBack(last);
    } finally {
      try {
        this.#afterGiveBack?.(last);
      } finally {
        this.stream.release();
      }
    }
  }

  /** Calls `hook` once, when nobody here uses the memory any more: with the stream behind whose work it goes back. */
  afterGiveBack(hook: (stream: NativeStream) => void): void {
    this.#afterGiveBack = hook;
  }

  /** Adds another process as a user. */
  lease(): void {
    this.hold();
    if (this.#leases++ === 0) this.countLeased(this.byteLength);
  }

  /** Ends what `lease` began. That process has done its work. */
  endLease(): void {
    if (--this.#leases === 0) this.countLeased(-this.byteLength);
    this.release();
  }

  /** More, or fewer, bytes are in use by other processes. */
  protected countLeased(_bytes: number): void {}

  /** Whether the driver has it back, or other users still hold it. */
  get isSettled(): boolean {
    return this.#users > 0 || (this.#isGone?.() ?? true);
  }

  /** Whether another process owns the memory. */
  get isImported(): boolean {
    return false;
  }

  /** Where the host reaches the memory; undefined where it cannot. */
  get hostAddress(): Address | undefined {
    return undefined;
  }

  /** Whether streams of that device may use the memory. */
  isAccessibleFrom(context: Context): boolean {
    return context === this.context;
  }

  /** What another process must know to open it. `action` starts the message of a refusal. */
  describe(_deviceUuid: string, action: Text): AllocationDescription {
    throw new NotSupportedError(`Cannot ${action}: memory of the kind "${this.kind}" has no descriptor`);
  }

  /** The handles that travel beside the descriptor, for the caller to close. */
  exportHandles(action: Text): AllocationHandle[] {
    throw new NotSupportedError(
      `Cannot ${action}: memory of the kind "${this.kind}" has no handles of its own; only virtual memory has`,
    );
  }

  /** Throws when the memory is no longer what it was, although nobody here has freed it. */
  checkCurrent(_action: Text): void {}

  /** Gives the memory back behind the work of `stream`; tells later whether that has happened. */
  protected abstract giveBack(stream: NativeStream): () => boolean;
}

const done = () => true;

/** Memory of a pool of this process. */
export class PoolAllocation extends Allocation {
  override readonly kind: BufferKind = "pool";
  readonly pool: NativePool;
  #description: AllocationDescription | undefined;

  constructor(pool: NativePool, address: Address, byteLength: number, size: Size, stream: NativeStream) {
    super(pool.context, address, byteLength, size, stream);
    this.pool = pool;
    pool.hold();
  }

  override isAccessibleFrom(context: Context): boolean {
    return this.pool.isAccessibleFrom(context);
  }

  override describe(deviceUuid: string, action: Text): AllocationDescription {
    return this.#description ??= this.#export(deviceUuid, action);
  }

  #export(deviceUuid: string, action: Text): AllocationDescription {
    const { pool, context: { driver } } = this;
    if (!pool.isIpcEnabled) throw new InvalidArgumentError(`Cannot ${action}: its pool was made without { ipc: true }`);
    pool.exportOnce();
    check(driver.memPoolExportPointer(this.address), "cuMemPoolExportPointer", pool);
    const opaque = driver.out.bytes.slice(0, 64);
    if (this.kind === "pool") learnExportLayout(this.context, opaque, this.byteLength);
    const generation = nextGeneration();
    pool.exported.set(generation, this);
    return {
      memoryKind: this.kind === "host" ? "host" : "pool",
      deviceUuid,
      exporter: ownIdentity(),
      poolId: pool.id,
      generation,
      allocationByteLength: this.byteLength,
      chunkByteLengths: [],
      opaque,
    };
  }

  protected override countLeased(bytes: number): void {
    this.pool.leasedBytes += bytes;
  }

  protected override giveBack(stream: NativeStream): () => boolean {
    if (this.#description !== undefined) this.pool.exported.delete(this.#description.generation);
    const result = this.context.driver.memFreeAsync(this.address, stream.handle);
    this.pool.release();
    check(result, "cuMemFreeAsync", this.pool);
    return done; // in stream order
  }
}

/** A mapping of another process's pool memory. */
export class ImportedAllocation extends Allocation {
  override readonly kind: BufferKind = "pool";
  readonly pool: NativePool;
  readonly descriptor: BufferDescriptor;
  readonly #mapping: ImportedMapping;

  constructor(pool: NativePool, descriptor: BufferDescriptor, mapping: ImportedMapping, stream: NativeStream) {
    super(pool.context, mapping.address, descriptor.allocationByteLength, toSize(descriptor.allocationByteLength), stream);
    this.pool = pool;
    this.descriptor = descriptor;
    this.#mapping = mapping;
    pool.hold();
  }

  override get isImported(): boolean {
    return true;
  }

  override isAccessibleFrom(context: Context): boolean {
    return this.pool.isAccessibleFrom(context);
  }

  override describe(): AllocationDescription {
    return descriptionOf(this.descriptor);
  }

  override checkCurrent(action: Text): void {
    if (this.#mapping.isReused(this.descriptor.generation)) {
      throw new ClosedError(
        `Cannot ${action}: the exporter, process ${this.descriptor.exporter.pid}, has freed this memory and allocated it anew`,
      );
    }
  }

  protected override giveBack(stream: NativeStream): () => boolean {
    // The driver unmaps an import without waiting for the work that uses it
    if (!stream.hasWork()) {
      this.#unmap();
      return done;
    }
    this.#mapping.end();
    return reapAfter([stream], () => this.#unmap(), this.byteLength);
  }

  #unmap(): void {
    const result = this.#mapping.release();
    this.pool.release();
    check(result, "cuMemFree", this.pool);
  }
}

/** What an import was described by, so that it may be described to others. */
export function descriptionOf(descriptor: BufferDescriptor): AllocationDescription {
  const { memoryKind, deviceUuid, exporter, poolId, generation, allocationByteLength, chunkByteLengths, opaque } = descriptor;
  return { memoryKind, deviceUuid, exporter, poolId, generation, allocationByteLength, chunkByteLengths, opaque };
}
