/**
 * Host memory for drivers without host pools: shared memory of the operating system (memfd) that each process registers
 * with its device (`cuMemHostRegister`). One sparse file for each pool; what was freed stays registered for reuse.
 */
import { type Address, createHostView, toSize } from "../../ffi/mod.ts";
import type { Text } from "../arguments.ts";
import type { Context } from "../context.ts";
import { check, resultName } from "../driver/check.ts";
import { CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE } from "../driver/enums.ts";
import { CUDA_ERROR_OUT_OF_MEMORY } from "../driver/results.ts";
import { InvalidArgumentError, NotSupportedError, OutOfMemoryError, ProtocolError } from "../errors.ts";
import type { NativeStream } from "../native_stream.ts";
import { duplicateFd, inspectFd } from "../os/fd.ts";
import { checkSharedMemory, createSharedMemory, mapMemory, unmapMemory } from "../os/memory.ts";
import { readBytesAt } from "../os/file.ts";
import { ownIdentity } from "../os/process.ts";
import type { BufferDescriptor } from "../wire/descriptor.ts";
import { Allocation, type AllocationDescription, descriptionOf, nextGeneration } from "./allocation.ts";
import { type AllocationHandle, ownDriverHandle } from "./allocation_handle.ts";
import { HostOnlyContext } from "./host_only.ts";
import type { HostPoolUsage, NativeHostPool } from "./native_host_pool.ts";
import { closeOsHandle } from "./os_handle.ts";
import { reap, reapAfter, reapWhenIdle } from "./reaper.ts";

/** The largest page of the platforms: ranges begin and end at multiples of it. */
const PAGE_BYTES = 65536;
/** The file's first page says what it is. */
const MAGIC: Uint8Array = new TextEncoder().encode("cuda-ipc host 1\n");
/** The file is sparse: without `maxBytes` this much of it may be used. */
const DEFAULT_MAX_BYTES = 2 ** 40;

/** A mapped part of the file, registered with the device where there is one. */
interface Slab {
  readonly byteOffset: number;
  readonly byteLength: number;
  readonly hostAddress: Address;
  readonly deviceAddress: Address;
}

/** Memory of a pool of this process, or of another one's. */
class SharedHostAllocation extends Allocation {
  override readonly kind = "host" as const;
  readonly #pool: SharedHostPool;
  readonly #slab: Slab;
  readonly #descriptor: BufferDescriptor | undefined;
  #description: AllocationDescription | undefined;

  constructor(pool: SharedHostPool, slab: Slab, byteLength: number, stream: NativeStream, descriptor?: BufferDescriptor) {
    super(pool.context, slab.deviceAddress, byteLength, toSize(byteLength), stream);
    this.#pool = pool;
    this.#slab = slab;
    this.#descriptor = descriptor;
    pool.hold();
  }

  override get isImported(): boolean {
    return this.#descriptor !== undefined;
  }

  override get hostAddress(): Address {
    return this.#slab.hostAddress;
  }

  override describe(deviceUuid: string, action: Text): AllocationDescription {
    if (this.#descriptor !== undefined) return descriptionOf(this.#descriptor);
    return this.#description ??= this.#describe(deviceUuid, action);
  }

  #describe(deviceUuid: string, action: Text): AllocationDescription {
    if (!this.#pool.isIpcEnabled) throw new InvalidArgumentError(`Cannot ${action}: its pool was made without { ipc: true }`);
    const generation = nextGeneration();
    this.#pool.exported.set(generation, this);
    const opaque = new Uint8Array(64);
    opaque.set(MAGIC);
    new DataView(opaque.buffer).setBigUint64(MAGIC.length, BigInt(this.#slab.byteOffset), true);
    return {
      memoryKind: "host",
      deviceUuid,
      exporter: ownIdentity(),
      poolId: this.#pool.id,
      generation,
      allocationByteLength: this.byteLength,
      chunkByteLengths: [],
      opaque,
    };
  }

  protected override giveBack(stream: NativeStream): () => boolean {
    if (this.#description !== undefined) this.#pool.exported.delete(this.#description.generation);
    return reapAfter([stream], () => {
      this.#pool.giveBack(this.#slab);
      this.#pool.release();
    }, this.byteLength);
  }
}

export class SharedHostPool implements NativeHostPool {
  readonly context: Context;
  readonly id: string;
  readonly isImported: boolean;
  readonly isIpcEnabled: boolean;
  /** The allocations that were exported, by generation: an import in this same process becomes an alias. */
  readonly exported: Map<number, Allocation> = new Map();
  readonly #fd: number;
  readonly #fileBytes: number;
  readonly #free: Slab[] = [];
  #end = PAGE_BYTES;
  #usedBytes = 0;
  #holders = 1;

  private constructor(context: Context, fd: number, fileBytes: number, kind: { id: string; ipc: boolean; imported: boolean }) {
    this.context = context;
    this.#fd = fd;
    this.#fileBytes = fileBytes;
    this.id = kind.id;
    this.isIpcEnabled = kind.ipc;
    this.isImported = kind.imported;
    context.hold();
  }

  static create(context: Context, id: string, ipc: boolean, maxBytes: number): SharedHostPool {
    const fileBytes = PAGE_BYTES + toPages(maxBytes === 0 ? DEFAULT_MAX_BYTES : maxBytes);
    const fd = createSharedMemory("cuda-ipc host pool", fileBytes);
    writeMagic(fd);
    return new SharedHostPool(context, fd, fileBytes, { id, ipc, imported: false });
  }

  /** Opens another process's pool; undefined when the handle is not one of this kind. The handle stays the caller's. */
  static import(context: Context, handle: AllocationHandle, id: string): SharedHostPool | undefined {
    const { kind, byteLength } = inspectFd(handle.fd);
    if (kind !== "regular file") return undefined;
    const magic = readBytesAt(handle.fd, MAGIC.length, 0);
    if (magic.length !== MAGIC.length || magic.some((byte, index) => byte !== MAGIC[index])) return undefined;
    checkSharedMemory(handle.fd, byteLength);
    return new SharedHostPool(context, duplicateFd(handle.fd), byteLength, { id, ipc: true, imported: true });
  }

  allocate(byteLength: number, stream: NativeStream): Allocation {
    if (this.isImported) throw new NotSupportedError(`Cannot allocate from ${this}: only the process that made it can`);
    return new SharedHostAllocation(this, this.#take(byteLength), byteLength, stream);
  }

  /** A slab that was freed and is not much too large, else a new one. */
  #take(byteLength: number): Slab {
    const wanted = toPages(byteLength);
    const fits = (slab: Slab) => slab.byteLength >= wanted && slab.byteLength <= 2 * wanted;
    let index = this.#free.findIndex(fits);
    if (index < 0 && this.#end + wanted > this.#fileBytes && reap() > 0) index = this.#free.findIndex(fits);
    const slab = index >= 0 ? this.#free.splice(index, 1)[0] : this.#map(this.#takeNew(wanted), wanted);
    this.#usedBytes += slab.byteLength;
    return slab;
  }

  #takeNew(byteLength: number): number {
    const byteOffset = this.#end;
    if (byteOffset + byteLength > this.#fileBytes) {
      throw new OutOfMemoryError(
        `Cannot allocate ${byteLength} bytes from ${this}: ${this.#usedBytes} bytes are in use and maxBytes allows ` +
          `${this.#fileBytes - PAGE_BYTES}`,
        { code: CUDA_ERROR_OUT_OF_MEMORY, resultName: resultName(CUDA_ERROR_OUT_OF_MEMORY), call: "cuMemHostRegister" },
      );
    }
    this.#end += byteLength;
    return byteOffset;
  }

  #map(byteOffset: number, byteLength: number): Slab {
    const hostAddress = mapMemory(this.#fd, byteLength, byteOffset);
    if (this.context instanceof HostOnlyContext) return { byteOffset, byteLength, hostAddress, deviceAddress: hostAddress };
    const { driver } = this.context;
    try {
      this.context.makeCurrent();
      const flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
      check(driver.memHostRegister(hostAddress, toSize(byteLength), flags), "cuMemHostRegister", this);
      check(driver.memHostGetDevicePointer(hostAddress), "cuMemHostGetDevicePointer", this);
      return { byteOffset, byteLength, hostAddress, deviceAddress: driver.out.readAddress(0) };
    } catch (error) {
      unmapMemory(hostAddress, byteLength);
      throw error;
    }
  }

  #unmap({ hostAddress, byteLength }: Slab): void {
    if (!(this.context instanceof HostOnlyContext)) {
      this.context.makeCurrent();
      check(this.context.driver.memHostUnregister(hostAddress), "cuMemHostUnregister", this);
    }
    unmapMemory(hostAddress, byteLength);
  }

  open(descriptor: BufferDescriptor, stream: NativeStream, action: Text): Allocation {
    const { opaque, allocationByteLength } = descriptor;
    const byteOffset = Number(new DataView(opaque.buffer, opaque.byteOffset).getBigUint64(MAGIC.length, true));
    const byteLength = toPages(allocationByteLength);
    const isOurs = MAGIC.every((byte, index) => byte === opaque[index]) &&
      opaque.subarray(MAGIC.length + 8).every((byte) => byte === 0);
    if (!isOurs || byteOffset % PAGE_BYTES !== 0 || byteOffset < PAGE_BYTES || byteOffset + byteLength > this.#fileBytes) {
      throw new ProtocolError(`Cannot ${action}: its descriptor names no part of this pool`);
    }
    const known = this.#free.findIndex((slab) => slab.byteOffset === byteOffset && slab.byteLength >= byteLength);
    const slab = known >= 0 ? this.#free.splice(known, 1)[0] : this.#map(byteOffset, byteLength);
    this.#usedBytes += slab.byteLength;
    return new SharedHostAllocation(this, slab, allocationByteLength, stream, descriptor);
  }

  /** Called by the allocation at its end. */
  giveBack(slab: Slab): void {
    this.#usedBytes -= slab.byteLength;
    // Unregistering blocks behind all queued work, so it is done once at the end
    this.#free.push(slab);
  }

  mustOpenLater(): boolean {
    return false; // each import is a mapping of its own
  }

  exportHandle(): AllocationHandle {
    return ownDriverHandle(duplicateFd(this.#fd), this.id);
  }

  usage(): HostPoolUsage {
    return { reservedBytes: this.#end - PAGE_BYTES, usedBytes: this.#usedBytes };
  }

  hold(): void {
    this.#holders++;
  }

  release(): void {
    if (--this.#holders > 0) return;
    closeOsHandle(this.#fd);
    reapWhenIdle(this.context, () => {
      for (const slab of this.#free.splice(0)) this.#unmap(slab);
      this.context.release();
    });
  }

  toString(): string {
    return `HostPool ${this.id}${this.isImported ? " (imported)" : ""}`;
  }
}

function writeMagic(fd: number): void {
  const address = mapMemory(fd, PAGE_BYTES);
  const view = createHostView(address, PAGE_BYTES);
  view.bytes.set(MAGIC);
  view.detach();
  unmapMemory(address, PAGE_BYTES);
}

function toPages(byteLength: number): number {
  return Math.ceil(byteLength / PAGE_BYTES) * PAGE_BYTES;
}
