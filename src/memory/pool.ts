/** Stream-ordered memory pools, whose allocations other processes can map. */
import { toSize } from "../../ffi/mod.ts";
import { checkBoolean, checkInteger, checkOptions, invalid, type Text } from "../arguments.ts";
import { Closable } from "../closable.ts";
import { contextOf } from "../context.ts";
import type { Device } from "../device.ts";
import { check } from "../driver/check.ts";
import { CU_MEMPOOL_ATTR_RELEASE_THRESHOLD } from "../driver/enums.ts";
import { CUDA_ERROR_OUT_OF_MEMORY } from "../driver/results.ts";
import { ClosedError, InvalidArgumentError, NotSupportedError, OutOfMemoryError } from "../errors.ts";
import { type NativeStream, nativeStream } from "../native_stream.ts";
import { IS_WINDOWS } from "../os/windows.ts";
import type { CudaStream } from "../stream.ts";
import { MAX_ALLOCATION_BYTES, MAX_POOL_ALLOCATION_BYTES } from "../wire/limits.ts";
import { PoolAllocation } from "./allocation.ts";
import { type AllocationHandle, checkDriverHandle, ownDriverHandle } from "./allocation_handle.ts";
import { type DeviceBuffer, wrapAllocation } from "./buffer.ts";
import "./ipc_probe.ts"; // device.ipcSupport() asks it, and cannot import it itself
import { NativePool, providePoolAccess } from "./native_pool.ts";
import { ipcHandleType } from "./os_handle.ts";
import { pendingBytes, reap } from "./reaper.ts";
import { VirtualAllocation } from "./virtual_allocation.ts";

/** How to make a pool. */
export interface MemoryPoolOptions {
  /** Its allocations can be mapped by other processes. Default: false. */
  readonly ipc?: boolean;
  /** The most that it may hold, in bytes, from 1 on; rounded up by the driver (32 MiB steps). Default: no limit. Required on Windows. */
  readonly maxBytes?: number;
  /**
   * How many bytes of freed memory it keeps for later allocations when a stream or device is synchronized; Infinity
   * keeps all. Default: Infinity, which makes repeated allocation fast; `trim` gives memory back.
   */
  readonly releaseThresholdBytes?: number;
}

/** What a pool holds, in bytes. */
export interface MemoryPoolAttributes {
  /** Taken from the device now. */
  readonly reservedBytes: number;
  /** In use by allocations now. */
  readonly usedBytes: number;
  /** The most ever taken from the device. */
  readonly reservedHighBytes: number;
  /** The most ever in use. */
  readonly usedHighBytes: number;
  /** How much freed memory it keeps; Infinity is all. */
  readonly releaseThresholdBytes: number;
}

/** What is known of a pool that is imported. */
export interface MemoryPoolImportOptions {
  /** The exporter's `pool.id`, so that a buffer of another pool is refused by name. */
  readonly id?: string;
}

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

const TOKEN: unique symbol = Symbol("MemoryPool");

/**
 * A pool of device memory (`cuMemPoolCreate`). Allocation and free are ordered in a stream and cost about a
 * microsecond. With `ipc`, other processes import the pool by its handle, and then its buffers by their descriptors.
 *
 * Closing it leaves its live buffers valid; the driver gets the pool back after the last of them.
 *
 * @example
 * ```ts
 * import { Device, MemoryPool } from "@cuda-ipc/cuda-ipc";
 *
 * using device = Device.open(0);
 * using stream = device.createStream();
 * using pool = MemoryPool.create(device, { ipc: true });
 * using buffer = pool.allocate(1024 * 1024, { stream });
 * await buffer.write(new Uint8Array(1024 * 1024).fill(7));
 * ```
 */
export class MemoryPool extends Closable {
  readonly #device: Device;
  readonly #native: NativePool;

  /** Not for users: see {@linkcode MemoryPool.create} and {@linkcode MemoryPool.import}. */
  private constructor(token: typeof TOKEN, device: Device, native: NativePool) {
    super();
    if (token !== TOKEN) {
      throw new InvalidArgumentError("Cannot construct a MemoryPool: use MemoryPool.create() or MemoryPool.import()");
    }
    this.#device = device;
    this.#native = native;
    this.protect("MemoryPool", native);
  }

  static {
    providePoolAccess((value, action) => {
      if (typeof value !== "object" || value === null || !(#native in value)) {
        throw invalid(action, "pool", value, "a MemoryPool");
      }
      if (value.isClosed) throw new ClosedError(`Cannot ${action}: ${value} is closed`);
      return value.#native;
    });
  }

  /**
   * Makes a pool on a device. The caller closes it.
   *
   * @throws {InvalidArgumentError} for a wrong option; on Windows also when an `ipc` pool has no `maxBytes`.
   * @throws {CudaDriverError} when the device has no pools, or none that can be shared.
   */
  static create(device: Device, options?: MemoryPoolOptions): MemoryPool {
    const context = contextOf(device, "create a pool");
    const action = `create a pool on ${context}`;
    const given = checkOptions(action, options, ["ipc", "maxBytes", "releaseThresholdBytes"]);
    const ipc = checkBoolean(action, "ipc", given.ipc, false);
    const maxBytes = given.maxBytes === undefined ? 0 : checkInteger(action, "maxBytes", given.maxBytes, 1);
    if (ipc && IS_WINDOWS && maxBytes === 0) {
      throw new InvalidArgumentError(
        `Cannot ${action}: maxBytes is missing, and Windows needs a shareable pool's size at its creation`,
      );
    }
    const { releaseThresholdBytes: threshold = Infinity } = given;
    if (threshold !== Infinity) checkInteger(action, "releaseThresholdBytes", threshold, 0);
    const native = NativePool.create(context, crypto.randomUUID(), ipc, maxBytes);
    try {
      native.setReleaseThreshold(threshold);
      return new MemoryPool(TOKEN, device, native);
    } catch (error) {
      native.release();
      throw error;
    }
  }

  /**
   * Opens another process's pool by its handle (`cuMemPoolImportFromShareableHandle`). Its buffers can be imported,
   * nothing can be allocated from it. The handle stays the caller's and may be closed right after.
   *
   * @throws {InvalidArgumentError} when the handle is not a pool's.
   */
  static import(device: Device, handle: AllocationHandle, options?: MemoryPoolImportOptions): MemoryPool {
    const context = contextOf(device, "import a pool");
    const action = `import a pool on ${context}`;
    const { id } = checkOptions(action, options, ["id"]);
    if (id !== undefined && (typeof id !== "string" || !UUID.test(id))) {
      throw invalid(action, "id", id, "the exporter's pool.id, a UUID");
    }
    checkDriverHandle(action, handle, context.driver.kind === "simulator");
    context.makeCurrent();
    return new MemoryPool(TOKEN, device, NativePool.import(context, handle, id ?? handle.poolId ?? ""));
  }

  /** The device whose memory it holds. */
  get device(): Device {
    return this.#device;
  }
  /** A UUID made with the pool; the same at an importer that was told it, else `""` there. */
  get id(): string {
    return this.#native.id;
  }
  /** Whether it is another process's. */
  get isImported(): boolean {
    return this.#native.isImported;
  }
  /** Whether its allocations can be mapped by other processes. */
  get isIpcEnabled(): boolean {
    return this.#native.isIpcEnabled;
  }

  /**
   * Allocates device memory, in order with the stream's work (`cuMemAllocFromPoolAsync`). Its contents are undefined.
   * The buffer is freed by its holder, on `stream` unless it says otherwise.
   *
   * Above 4064 MiB in an `ipc` pool the buffer is virtual memory (`kind` is `"virtual"`, and `exportHandles` gives the
   * handles that an importer needs): importing such an allocation of the driver's own pool would kill the importer.
   *
   * @param byteLength how much, from 1 on.
   * @throws {InvalidArgumentError} when `byteLength` is not an integer from 1 on, or the stream is of another device.
   * @throws {OutOfMemoryError} when the device or `maxBytes` has no room.
   * @throws {NotSupportedError} when the pool is imported.
   */
  allocate(byteLength: number, options: { stream: CudaStream }): DeviceBuffer {
    this.checkOpen("allocate");
    const native = this.#native;
    if (!Number.isSafeInteger(byteLength) || byteLength < 1 || byteLength > MAX_ALLOCATION_BYTES) {
      checkInteger(`allocate from ${this}`, "byteLength", byteLength, 1, MAX_ALLOCATION_BYTES);
    }
    const stream = nativeStream(options?.stream, "allocate from a pool");
    const { context } = native;
    if (stream.context !== context) {
      throw new InvalidArgumentError(
        `Cannot allocate from ${this}: the stream belongs to ${stream.context}. Use a stream of the pool's device`,
      );
    }
    if (native.isImported) throw new NotSupportedError(`Cannot allocate from ${this}: only the process that made it can`);
    if (native.isIpcEnabled && byteLength > MAX_POOL_ALLOCATION_BYTES) {
      return wrapAllocation(allocateVirtual(native, byteLength, stream), this.#device, this);
    }
    native.checkRoom(byteLength);
    const size = toSize(byteLength);
    const { driver } = context;
    let result = driver.memAllocFromPoolAsync(size, native.handle, stream.handle);
    if (result === CUDA_ERROR_OUT_OF_MEMORY && reap() > 0) {
      result = driver.memAllocFromPoolAsync(size, native.handle, stream.handle);
    }
    if (result !== 0) {
      const limit = native.maxBytes === 0 ? "" : `maxBytes allows ${native.maxBytes}; `;
      const inUse = `${limit}${pendingBytes()} bytes wait for their streams, ${native.leasedBytes} are leased to other processes`;
      check(result, "cuMemAllocFromPoolAsync", `${byteLength} bytes from ${native}; ${inUse}`);
    }
    const allocation = new PoolAllocation(native, driver.out.readAddress(0), byteLength, size, stream);
    return wrapAllocation(allocation, this.#device, this);
  }

  /** What it holds now (`cuMemPoolGetAttribute`). Not known of an imported pool. */
  get attributes(): MemoryPoolAttributes {
    this.checkOpen("ask for a pool's attributes");
    this.#checkOwn("ask for the attributes of");
    const threshold = this.#native.attribute(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
    return {
      ...this.#native.usage(),
      releaseThresholdBytes: threshold > Number.MAX_SAFE_INTEGER ? Infinity : threshold,
    };
  }

  /**
   * Gives memory that no allocation uses back to the device, down to `minBytesToKeep` (`cuMemPoolTrimTo`). Default: 0.
   * The driver counts memory as unused once it has seen the free done: `stream.synchronize()` shows it, `finished()` does not.
   */
  trim(minBytesToKeep: number = 0): void {
    this.checkOpen("trim a pool");
    checkInteger(`trim ${this}`, "minBytesToKeep", minBytesToKeep, 0);
    this.#checkOwn("trim");
    this.#native.trim(minBytesToKeep);
  }

  /**
   * Lets streams of exactly these devices, beside the pool's own, use its memory (`cuMemPoolSetAccess`): present and
   * future allocations. An importer sets its own. A change may take seconds, as each mapping is updated.
   *
   * @param devices the peers; an empty list revokes. The pool's own device may be named and changes nothing.
   * @throws {NotSupportedError} when one of them cannot reach the pool's device: nothing was changed then.
   */
  setPeerAccess(devices: readonly Device[]): void {
    this.checkOpen("set peer access");
    const { context } = this.#native;
    const action = `set peer access to ${this}`;
    if (!Array.isArray(devices)) throw invalid(action, "devices", devices, "an array of Devices");
    const peers = devices.filter((device) => contextOf(device, action) !== context);
    const unable = peers.filter((device) => !device.canAccessPeer(this.#device));
    if (unable.length > 0) {
      throw new NotSupportedError(
        `Cannot ${action}: ${unable.join(", ")} cannot reach ${this.#device} (device.canAccessPeer). Copy between them instead`,
      );
    }
    this.#native.setPeers(peers.map(({ ordinal }) => ordinal));
  }

  /** The ordinals of the devices, beside the pool's own, whose streams may use its memory: asked of the driver. */
  get peerOrdinals(): number[] {
    this.checkOpen("ask for peer access");
    return this.#native.peers();
  }

  /**
   * A handle by which another process imports the pool (`cuMemPoolExportToShareableHandle`). Each call opens a fresh
   * one, which the caller closes. **It opens the whole pool, future allocations included**: make one pool for each
   * trust domain.
   *
   * @throws {InvalidArgumentError} when the pool was made without `ipc`.
   * @throws {NotSupportedError} when the pool is imported: its exporter can hand it on.
   */
  exportHandle(): AllocationHandle {
    this.checkOpen("export a pool");
    this.#checkOwn("export");
    if (!this.#native.isIpcEnabled) {
      throw new InvalidArgumentError(`Cannot export ${this}: it was made without { ipc: true }`);
    }
    return ownDriverHandle(this.#native.export(), this.#native.id);
  }

  #checkOwn(action: Text): void {
    if (this.#native.isImported) throw new NotSupportedError(`Cannot ${action} ${this}: only the process that made it can`);
  }

  /** Called once, by `close`. */
  protected override onClose(): void {
    this.#native.release();
  }

  /** A short name for messages. */
  override toString(): string {
    return this.#native.toString();
  }
}

/** Virtual memory that counts as the pool's. */
function allocateVirtual(native: NativePool, byteLength: number, stream: NativeStream): VirtualAllocation {
  native.checkRoom(byteLength);
  const ordinals = [native.context.ordinal, ...native.peers()];
  const create = () => VirtualAllocation.create(native.context, byteLength, stream, ipcHandleType(), ordinals, native);
  try {
    return create();
  } catch (error) {
    if (!(error instanceof OutOfMemoryError)) throw error;
    native.trim(0); // what the pool keeps for later allocations stands in the way of this one
    return create();
  }
}
