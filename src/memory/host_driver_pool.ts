/** Host memory of a driver's pool (`CU_MEM_LOCATION_TYPE_HOST_NUMA`): host and devices use it at one address. */
import { type Address, toSize } from "../../ffi/mod.ts";
import type { Text } from "../arguments.ts";
import type { Context } from "../context.ts";
import { check } from "../driver/check.ts";
import { CU_MEM_LOCATION_TYPE_HOST_NUMA } from "../driver/enums.ts";
import { CUDA_ERROR_OUT_OF_MEMORY } from "../driver/results.ts";
import { NotSupportedError, ProtocolError } from "../errors.ts";
import { NativeStream } from "../native_stream.ts";
import { hostMemoryBytes } from "../os/memory.ts";
import { ImportedMapping, type PoolRange } from "../share/import_registry.ts";
import type { BufferDescriptor } from "../wire/descriptor.ts";
import { readPoolExportData } from "../wire/export_data.ts";
import { MAX_POOL_ALLOCATION_BYTES } from "../wire/limits.ts";
import { type Allocation, ImportedAllocation, PoolAllocation } from "./allocation.ts";
import { type AllocationHandle, ownDriverHandle } from "./allocation_handle.ts";
import { HostOnlyContext } from "./host_only.ts";
import { importLimitError } from "./import_limit.ts";
import { importAt, isPlaceEnding } from "./import_place.ts";
import type { HostPoolUsage, NativeHostPool } from "./native_host_pool.ts";
import { NativePool } from "./native_pool.ts";
import { reap, reapAfter } from "./reaper.ts";

/** Memory of a host pool of this process. */
class HostAllocation extends PoolAllocation {
  override readonly kind = "host" as const;
  /** Where it is freed: it never has other work, so what it gives out next is free of it. */
  readonly #idle: NativeStream;

  constructor(pool: NativePool, address: Address, byteLength: number, stream: NativeStream, idle: NativeStream) {
    super(pool, address, byteLength, toSize(byteLength), stream);
    this.#idle = idle;
    idle.hold();
  }

  override get hostAddress(): Address {
    return this.address;
  }

  protected override giveBack(stream: NativeStream): () => boolean {
    return reapAfter([stream], () => {
      super.giveBack(this.#idle);
      // The driver counts memory as free once it has seen the free done. There is no work to wait for
      check(this.context.driver.streamSynchronize(this.#idle.handle), "cuStreamSynchronize", this.pool);
      this.#idle.release();
    }, this.byteLength);
  }
}

/** A mapping of another process's host memory. */
class ImportedHostAllocation extends ImportedAllocation {
  override readonly kind = "host" as const;

  override get hostAddress(): Address {
    return this.address;
  }
}

/** Where the allocation lies in its pool, as the driver's bytes say. */
function exportedRange({ opaque, allocationByteLength }: BufferDescriptor, action: Text): PoolRange {
  const { byteOffset, byteLength } = readPoolExportData(opaque);
  if (byteLength !== BigInt(allocationByteLength) || byteOffset + byteLength > BigInt(hostMemoryBytes())) {
    throw new ProtocolError(
      `Cannot ${action}: the driver's bytes name ${byteLength} bytes at offset ${byteOffset} of the pool, ` +
        `its descriptor ${allocationByteLength} bytes`,
    );
  }
  return { byteOffset: Number(byteOffset), byteLength: Number(byteLength) };
}

export class DriverHostPool implements NativeHostPool {
  readonly #pool: NativePool;
  readonly #idle: NativeStream | undefined;

  private constructor(pool: NativePool, idle?: NativeStream) {
    this.#pool = pool;
    this.#idle = idle;
  }

  /** Throws CudaDriverError where the driver has no such pools. */
  static create(context: Context, id: string, ipc: boolean, maxBytes: number, numaNode: number): DriverHostPool {
    const pool = NativePool.create(context, id, ipc, maxBytes, { type: CU_MEM_LOCATION_TYPE_HOST_NUMA, id: numaNode });
    try {
      pool.allow(context.ordinal);
      pool.setReleaseThreshold(Infinity); // pinning memory anew costs milliseconds
      return new DriverHostPool(pool, NativeStream.create(context, true, 0));
    } catch (error) {
      pool.release();
      throw error;
    }
  }

  /** Without a device the context is a HostOnlyContext. */
  static import(context: Context, handle: AllocationHandle, id: string): DriverHostPool {
    const pool = NativePool.import(context, handle, id);
    try {
      if (!(context instanceof HostOnlyContext)) pool.allow(context.ordinal);
      return new DriverHostPool(pool);
    } catch (error) {
      pool.release();
      throw error;
    }
  }

  get context(): Context {
    return this.#pool.context;
  }
  get id(): string {
    return this.#pool.id;
  }
  get isImported(): boolean {
    return this.#pool.isImported;
  }
  get isIpcEnabled(): boolean {
    return this.#pool.isIpcEnabled;
  }
  get exported(): ReadonlyMap<number, Allocation> {
    return this.#pool.exported;
  }

  allocate(byteLength: number, stream: NativeStream): Allocation {
    const idle = this.#idle;
    if (idle === undefined) throw new NotSupportedError(`Cannot allocate from ${this}: only the process that made it can`);
    if (this.isIpcEnabled && byteLength > MAX_POOL_ALLOCATION_BYTES) throw importLimitError(`allocate from ${this}`, byteLength);
    const { driver } = this.context;
    const size = toSize(byteLength);
    let result = driver.memAllocFromPoolAsync(size, this.#pool.handle, idle.handle);
    if (result === CUDA_ERROR_OUT_OF_MEMORY && reap() > 0) {
      result = driver.memAllocFromPoolAsync(size, this.#pool.handle, idle.handle);
    }
    check(result, "cuMemAllocFromPoolAsync", this.#pool);
    const address = driver.out.readAddress(0);
    // Nothing but allocations and frees is ever queued there, so this does not wait for work
    check(driver.streamSynchronize(idle.handle), "cuStreamSynchronize", this.#pool);
    return new HostAllocation(this.#pool, address, byteLength, stream, idle);
  }

  open(descriptor: BufferDescriptor, stream: NativeStream, action: Text): Allocation {
    const { allocationByteLength, generation, opaque } = descriptor;
    if (allocationByteLength > MAX_POOL_ALLOCATION_BYTES) throw importLimitError(action, allocationByteLength);
    const { driver } = this.context;
    const { handle } = this.#pool;
    const range = exportedRange(descriptor, action);
    const mapping = importAt(this.#pool, range, action, () => {
      // The driver refuses a second import of host memory, and tells no address: the place in the pool is the key
      let mapping = ImportedMapping.of(driver, handle, range);
      if (mapping === undefined) {
        check(driver.memPoolImportPointer(handle, opaque), "cuMemPoolImportPointer", this.#pool);
        mapping = ImportedMapping.add(driver, handle, driver.out.readAddress(0), allocationByteLength, range);
      }
      mapping.addUser(generation);
      return mapping;
    });
    return new ImportedHostAllocation(this.#pool, descriptor, mapping, stream);
  }

  mustOpenLater(descriptor: BufferDescriptor, action: Text): boolean {
    return this.isImported && isPlaceEnding(this.#pool, exportedRange(descriptor, action));
  }

  exportHandle(): AllocationHandle {
    return ownDriverHandle(this.#pool.export(), this.id);
  }

  usage(): HostPoolUsage {
    const { reservedBytes, usedBytes } = this.#pool.usage();
    return { reservedBytes, usedBytes };
  }

  release(): void {
    this.#idle?.release();
    this.#pool.release();
  }

  toString(): string {
    return `HostPool ${this.id}${this.isImported ? " (imported)" : ""}`;
  }
}
