/** Pinned host memory that other processes can map, also those without a GPU. */
import { checkBoolean, checkInteger, checkOptions, invalid } from "../arguments.ts";
import { Closable } from "../closable.ts";
import { type Context, contextOf } from "../context.ts";
import type { Device } from "../device.ts";
import { check, resultName } from "../driver/check.ts";
import type { Driver } from "../driver/driver.ts";
import { CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED } from "../driver/enums.ts";
import { chosenDriver } from "../driver/mod.ts";
import { CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OUT_OF_MEMORY } from "../driver/results.ts";
import { ClosedError, CudaDriverError, InvalidArgumentError, NotSupportedError, OutOfMemoryError } from "../errors.ts";
import { IS_WINDOWS } from "../os/windows.ts";
import { parseUuid } from "../wire/hex.ts";
import { MAX_ALLOCATION_BYTES, MAX_POOL_ALLOCATION_BYTES } from "../wire/limits.ts";
import { AllocationHandle, checkDriverHandle } from "./allocation_handle.ts";
import { type DeviceBuffer, type StreamOption, wrapAllocation } from "./buffer.ts";
import { DriverHostPool } from "./host_driver_pool.ts";
import { HostOnlyContext } from "./host_only.ts";
import { SharedHostPool } from "./host_shared_pool.ts";
import { type NativeHostPool, provideHostPoolAccess } from "./native_host_pool.ts";
import { withStream } from "./own_stream.ts";

/** How to make a host pool. */
export interface HostPoolOptions {
  /** Its allocations can be mapped by other processes. Default: false. */
  readonly ipc?: boolean;
  /** The most that it may hold, in bytes, from 1 on. Default: no limit. */
  readonly maxBytes?: number;
  /** The NUMA node whose memory it takes. Default: the node nearest to the device. */
  readonly numaNode?: number;
}

/** How to open another process's host pool. */
export interface HostPoolImportOptions {
  /** The device whose streams will use the memory. Default: none; then only `buffer.view` reaches it. */
  readonly device?: Device;
  /** Without a device: the driver to ask. Default: what `openDriver()` gives. */
  readonly driver?: Driver;
  /** The exporter's `pool.id`, so that a buffer of another pool is refused by name. */
  readonly id?: string;
}

/** What a host pool holds, in bytes. */
export interface HostPoolAttributes {
  /** Taken from the host now. */
  readonly reservedBytes: number;
  /** In use by allocations now. */
  readonly usedBytes: number;
}

const TOKEN: unique symbol = Symbol("HostPool");

/**
 * A pool of pinned host memory (`CU_MEM_LOCATION_TYPE_HOST_NUMA`). The host uses its buffers as plain bytes
 * (`buffer.view`, without a copy) and devices copy from and to them at full speed. Other processes map them by the
 * pool's handle and the buffers' descriptors, even without a device. Where the driver has no such pools, registered
 * shared memory does the same. What was freed is kept for later allocations until the pool is closed.
 *
 * @example
 * ```ts
 * import { Device, HostPool } from "@cuda-ipc/cuda-ipc";
 *
 * using device = Device.open(0);
 * using pool = HostPool.create(device, { ipc: true });
 * using buffer = pool.allocate(4096);
 * buffer.view.fill(7);
 * ```
 */
export class HostPool extends Closable {
  readonly #device: Device | null;
  readonly #native: NativeHostPool;
  readonly #maxBytes: number;
  /** For what is too large to be shared from a pool of the driver's. */
  #large: HostPool | undefined;

  /** Not for users: see {@linkcode HostPool.create} and {@linkcode HostPool.import}. */
  private constructor(token: typeof TOKEN, device: Device | null, native: NativeHostPool, maxBytes = 0) {
    super();
    if (token !== TOKEN) {
      throw new InvalidArgumentError("Cannot construct a HostPool: use HostPool.create() or HostPool.import()");
    }
    this.#device = device;
    this.#native = native;
    this.#maxBytes = maxBytes;
    this.protect("HostPool", native);
  }

  static {
    provideHostPoolAccess((value, action) => {
      if (typeof value !== "object" || value === null || !(#native in value)) return undefined;
      if (action !== undefined && value.isClosed) throw new ClosedError(`Cannot ${action}: ${value} is closed`);
      return { native: value.#native, device: value.#device };
    });
  }

  /**
   * Makes a pool of host memory which the device can use. The caller closes it.
   *
   * @throws {InvalidArgumentError} for a wrong option; on Windows also when an `ipc` pool has no `maxBytes`.
   * @throws {InvalidArgumentError} when the machine has no such NUMA node.
   */
  static create(device: Device, options?: HostPoolOptions): HostPool {
    const context = contextOf(device, "create a host pool");
    const action = `create a host pool on ${context}`;
    const given = checkOptions(action, options, ["ipc", "maxBytes", "numaNode"]);
    const ipc = checkBoolean(action, "ipc", given.ipc, false);
    const maxBytes = given.maxBytes === undefined ? 0 : checkInteger(action, "maxBytes", given.maxBytes, 1);
    const numaNode = given.numaNode === undefined ? undefined : checkInteger(action, "numaNode", given.numaNode, 0);
    if (ipc && IS_WINDOWS && maxBytes === 0) {
      throw new InvalidArgumentError(
        `Cannot ${action}: maxBytes is missing, and Windows needs a shareable pool's size at its creation`,
      );
    }
    return new HostPool(TOKEN, device, createNative(context, crypto.randomUUID(), ipc, maxBytes, numaNode), maxBytes);
  }

  /**
   * Opens another process's host pool by its handle. Its buffers can be imported, nothing can be allocated from it. With
   * a device, that device's streams may use them; without one no context is made, and only the host does. The handle
   * stays the caller's and may be closed right after.
   *
   * @throws {ProtocolError} when the handle is not a pool's.
   */
  static import(handle: AllocationHandle, options?: HostPoolImportOptions): HostPool {
    const { device, driver, id } = checkOptions("import a host pool", options, ["device", "driver", "id"]);
    const context = device === undefined
      ? new HostOnlyContext(chosenDriver("import a host pool", driver))
      : contextOf(device, "import a host pool");
    const action = `import a host pool on ${context}`;
    if (!(handle instanceof AllocationHandle)) throw invalid(action, "handle", handle, "an AllocationHandle");
    if (id !== undefined && (typeof id !== "string" || parseUuid(id) === null)) {
      throw invalid(action, "id", id, "the exporter's pool.id, a UUID");
    }
    const known = id ?? handle.poolId ?? "";
    const shared = IS_WINDOWS ? undefined : SharedHostPool.import(context, handle, known);
    if (shared === undefined) checkDriverHandle(action, handle, context.driver.kind === "simulator");
    return new HostPool(TOKEN, device ?? null, shared ?? DriverHostPool.import(context, handle, known));
  }

  /** The device that it was made or imported for; null for a pool that was imported without one. */
  get device(): Device | null {
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
  /** What it holds now. Of an imported pool: what is mapped here. */
  get attributes(): HostPoolAttributes {
    this.checkOpen("ask for a pool's attributes");
    if (this.isImported) {
      throw new NotSupportedError(`Cannot ask for the attributes of ${this}: only the process that made it can`);
    }
    const own = this.#native.usage();
    const large = this.#large?.attributes;
    if (large === undefined) return own;
    return { reservedBytes: own.reservedBytes + large.reservedBytes, usedBytes: own.usedBytes + large.usedBytes };
  }

  /**
   * Allocates host memory. Its contents are undefined. The host may use it at once, and any stream. It is freed by its
   * holder: its views are detached at once, and the memory goes back when the work of its stream is done.
   *
   * What is larger than 4064 MiB in an `ipc` pool lies in registered shared memory, since importing such an allocation of the
   * driver's would kill the importing process: `buffer.pool` is another pool then, whose handle opens it. A channel knows.
   *
   * @param byteLength how much, from 1 on.
   * @param options `stream` is where its copies are queued by default. Default: a stream of its own.
   * @throws {OutOfMemoryError} when the host or `maxBytes` has no room.
   * @throws {ImportLimitError} above 4064 MiB in an `ipc` pool on Windows: use several buffers.
   * @throws {NotSupportedError} when the pool is imported.
   */
  allocate(byteLength: number, options?: StreamOption): DeviceBuffer {
    this.checkOpen("allocate");
    const action = `allocate from ${this}`;
    checkInteger(action, "byteLength", byteLength, 1, MAX_ALLOCATION_BYTES);
    const { stream: given } = checkOptions(action, options, ["stream"]);
    const native = this.#native;
    if (native.isImported) throw new NotSupportedError(`Cannot ${action}: only the process that made it can`);
    if (this.#isTooLarge(byteLength)) return this.#largePool(byteLength, action).allocate(byteLength, options);
    if (this.#large !== undefined) this.#checkRoom(byteLength, action);
    const allocation = withStream(native.context, given, action, (stream) => native.allocate(byteLength, stream));
    return wrapAllocation(allocation, this.#device, this);
  }

  #isTooLarge(byteLength: number): boolean {
    return byteLength > MAX_POOL_ALLOCATION_BYTES && this.isIpcEnabled && !IS_WINDOWS &&
      !(this.#native instanceof SharedHostPool);
  }

  /** The two pools behind it know nothing of each other. */
  #checkRoom(byteLength: number, action: string): void {
    const { usedBytes } = this.attributes;
    if (this.#maxBytes !== 0 && usedBytes + byteLength > this.#maxBytes) {
      throw new OutOfMemoryError(
        `Cannot ${action}: ${byteLength} bytes are wanted, ${usedBytes} are in use and maxBytes allows ${this.#maxBytes}`,
        { code: CUDA_ERROR_OUT_OF_MEMORY, resultName: resultName(CUDA_ERROR_OUT_OF_MEMORY), call: "cuMemHostRegister" },
      );
    }
  }

  #largePool(byteLength: number, action: string): HostPool {
    this.#checkRoom(byteLength, action);
    return this.#large ??= new HostPool(
      TOKEN,
      this.#device,
      SharedHostPool.create(this.#native.context, crypto.randomUUID(), true, this.#maxBytes),
    );
  }

  /**
   * A handle by which another process imports the pool. Each call opens a fresh one, which the caller closes. **It opens
   * the whole pool, future allocations included**: make one pool for each trust domain.
   *
   * @throws {InvalidArgumentError} when the pool was made without `ipc`.
   * @throws {NotSupportedError} when the pool is imported: its exporter can hand it on.
   */
  exportHandle(): AllocationHandle {
    this.checkOpen("export a pool");
    if (this.isImported) throw new NotSupportedError(`Cannot export ${this}: only the process that made it can`);
    if (!this.isIpcEnabled) throw new InvalidArgumentError(`Cannot export ${this}: it was made without { ipc: true }`);
    return this.#native.exportHandle();
  }

  /** Called once, by `close`. */
  protected override onClose(): void {
    this.#large?.close();
    this.#native.release();
  }

  /** A short name for messages. */
  override toString(): string {
    return this.#native.toString();
  }
}

/** A pool of the driver's, or registered shared memory where the driver has none. */
function createNative(
  context: Context,
  id: string,
  ipc: boolean,
  maxBytes: number,
  numaNode: number | undefined,
): NativeHostPool {
  try {
    return DriverHostPool.create(context, id, ipc, maxBytes, numaNode ?? nearestNode(context));
  } catch (error) {
    // Some drivers have the pools and deny it, so the attribute is asked only after a refusal
    const refused = error instanceof CudaDriverError &&
      (error.code === CUDA_ERROR_NOT_SUPPORTED || error.code === CUDA_ERROR_INVALID_VALUE);
    if (refused && numaNode !== undefined && attribute(context, CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED) > 0) {
      throw new InvalidArgumentError(
        `Cannot create a host pool on ${context}: the driver refuses memory of NUMA node ${numaNode}. Choose one that this ` +
          "machine has, or leave numaNode out",
        { cause: error },
      );
    }
    if (!refused || IS_WINDOWS) throw error;
    return SharedHostPool.create(context, id, ipc, maxBytes);
  }
}

/** -1 is the driver's answer on a machine without NUMA. */
function nearestNode(context: Context): number {
  return Math.max(0, attribute(context, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID));
}

/** 0 where an older driver does not know the attribute. */
function attribute({ driver, device }: Context, number: number): number {
  const result = driver.deviceGetAttribute(number, device);
  if (result === CUDA_ERROR_INVALID_VALUE) return 0;
  check(result, "cuDeviceGetAttribute");
  return driver.out.readI32(0);
}
