/** The driver's memory pool behind a MemoryPool: counted, since allocations outlive the object that the user closed. */
import type { Text } from "../arguments.ts";
import { type Address, toSize } from "../../ffi/mod.ts";
import type { Context } from "../context.ts";
import { check, resultName } from "../driver/check.ts";
import {
  CU_MEM_ACCESS_FLAGS_PROT_NONE,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
  CU_MEM_ALLOCATION_TYPE_PINNED,
  CU_MEM_HANDLE_TYPE_NONE,
  CU_MEM_LOCATION_TYPE_DEVICE,
  CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
  CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
  CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
  CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
  CU_MEMPOOL_ATTR_USED_MEM_HIGH,
} from "../driver/enums.ts";
import { CUDA_ERROR_OUT_OF_MEMORY } from "../driver/results.ts";
import { OutOfMemoryError } from "../errors.ts";
import { hideDriverFds } from "../os/driver_fds.ts";
import { IS_WINDOWS } from "../os/windows.ts";
import { MAX_POOL_ALLOCATION_BYTES } from "../wire/limits.ts";
import type { Allocation } from "./allocation.ts";
import { type AllocationHandle, driverHandle } from "./allocation_handle.ts";
import type { VirtualAllocation } from "./virtual_allocation.ts";
import { pendingBytes } from "./reaper.ts";
import { closeOsHandle, ipcHandleType, readOsHandle, securityAttributes } from "./os_handle.ts";

/** The driver rounds a pool's size up to multiples of this. */
const LIMIT_STEP_BYTES = 32 * 1024 * 1024;

const KEEP_ALL = 0xffff_ffff_ffff_ffffn;

export class NativePool {
  readonly context: Context;
  readonly handle: Address;
  readonly id: string;
  readonly isIpcEnabled: boolean;
  readonly isImported: boolean;
  /** The allocations that were exported, by generation: an import in this same process becomes an alias. */
  readonly exported: Map<number, Allocation> = new Map();
  /** Bytes of its allocations that other processes hold by a lease. */
  leasedBytes = 0;
  /** Virtual memory that counts as the pool's: what is too large for the driver to share it from a pool. */
  readonly #virtual = new Set<VirtualAllocation>();
  #virtualBytes = 0;
  #virtualHigh = { reserved: 0, used: 0 };
  /** What the driver makes of the limit; 0 is none. */
  readonly maxBytes: number;
  #holders = 1;
  #isExported = false;
  #hasPeers = false;

  constructor(context: Context, handle: Address, kind: { id: string; ipc: boolean; imported: boolean; maxBytes?: number }) {
    this.context = context;
    this.handle = handle;
    this.id = kind.id;
    this.isIpcEnabled = kind.ipc;
    this.isImported = kind.imported;
    this.maxBytes = Math.ceil((kind.maxBytes ?? 0) / LIMIT_STEP_BYTES) * LIMIT_STEP_BYTES;
    context.hold();
  }

  /** Makes a pool (`cuMemPoolCreate`), of the device's memory unless another place is named. `maxBytes` 0 is no limit. */
  static create(
    context: Context,
    id: string,
    ipc: boolean,
    maxBytes: number,
    location: { type: number; id: number } = { type: CU_MEM_LOCATION_TYPE_DEVICE, id: context.ordinal },
  ): NativePool {
    const { driver } = context;
    context.makeCurrent();
    const props = {
      allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
      handleTypes: ipc ? ipcHandleType() : CU_MEM_HANDLE_TYPE_NONE,
      locationType: location.type,
      locationId: location.id,
      win32SecurityAttributes: ipc ? securityAttributes() : undefined,
      maxSize: maxBytes,
    };
    check(driver.memPoolCreate(props), "cuMemPoolCreate", context);
    return new NativePool(context, driver.out.readAddress(0), { id, ipc, imported: false, maxBytes });
  }

  /**
   * Exports the pool (`cuMemPoolExportToShareableHandle`): a fresh handle, as a number, which the caller closes. The
   * driver refuses to export a pointer of a pool that was never exported itself.
   */
  export(): number {
    const { driver } = this.context;
    const result = driver.memPoolExportToShareableHandle(this.handle, ipcHandleType());
    check(result, "cuMemPoolExportToShareableHandle", this);
    this.#isExported = true;
    return readOsHandle(driver.out);
  }

  exportOnce(): void {
    if (!this.#isExported) closeOsHandle(this.export());
  }

  /** Whether streams of that device may use the memory: asked of the driver, since others of the process may change it. */
  isAccessibleFrom(context: Context): boolean {
    return context === this.context || (context.driver === this.context.driver && this.#hasAccess(context.ordinal));
  }

  /**
   * Lets streams of exactly these devices, beside the pool's own, use its memory (`cuMemPoolSetAccess`). The driver
   * refuses a list that names the owner as a whole, so there is one call for each device.
   */
  setPeers(ordinals: readonly number[]): void {
    for (const ordinal of this.#otherDevices()) {
      const allowed = ordinals.includes(ordinal);
      if (this.#hasAccess(ordinal) === allowed) continue; // a change takes up to seconds
      this.#hasPeers = true;
      check(this.#setAccess(ordinal, allowed), "cuMemPoolSetAccess", this);
      for (const { range } of this.#virtual) range.setAccess([ordinal], allowed);
    }
  }

  /** Lets streams of a device use memory that is not its own: of the host. */
  allow(ordinal: number): void {
    check(this.#setAccess(ordinal, true), "cuMemPoolSetAccess", this);
  }

  #setAccess(ordinal: number, allowed: boolean): number {
    const flags = allowed ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    const access = { locationType: CU_MEM_LOCATION_TYPE_DEVICE, locationId: ordinal, flags };
    return this.context.driver.memPoolSetAccess(this.handle, [access]);
  }

  /** The devices, beside the pool's own, whose streams may use its memory: as the driver says. */
  peers(): number[] {
    return this.#otherDevices().filter((ordinal) => this.#hasAccess(ordinal));
  }

  #otherDevices(): number[] {
    const { driver, ordinal: own } = this.context;
    check(driver.deviceGetCount(), "cuDeviceGetCount", this);
    return Array.from({ length: driver.out.readI32(0) }, (_, ordinal) => ordinal).filter((ordinal) => ordinal !== own);
  }

  #hasAccess(ordinal: number): boolean {
    const { driver } = this.context;
    check(driver.memPoolGetAccess(this.handle, { type: CU_MEM_LOCATION_TYPE_DEVICE, id: ordinal }), "cuMemPoolGetAccess", this);
    return driver.out.readU32(0) === CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }

  /** Called by the allocation itself, at its beginning and at its end. */
  addVirtual(allocation: VirtualAllocation): void {
    this.hold();
    this.#virtual.add(allocation);
    this.#countVirtual(allocation.range.byteLength);
  }

  removeVirtual(allocation: VirtualAllocation): void {
    this.#virtual.delete(allocation);
    this.#countVirtual(-allocation.range.byteLength);
    this.release();
  }

  /** The driver's high marks begin anew with each change, so that they can be added to what is virtual meanwhile. */
  #countVirtual(byteLength: number): void {
    const { reservedHighBytes, usedHighBytes } = this.usage();
    this.#virtualHigh = { reserved: reservedHighBytes, used: usedHighBytes };
    const { driver } = this.context;
    for (const mark of [CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, CU_MEMPOOL_ATTR_USED_MEM_HIGH]) {
      check(driver.memPoolSetAttribute(this.handle, mark, 0n), "cuMemPoolSetAttribute", this);
    }
    this.#virtualBytes += byteLength;
  }

  /** Throws OutOfMemoryError when the driver, which knows nothing of virtual memory, would pass `maxBytes`. */
  checkRoom(byteLength: number): void {
    if (this.maxBytes === 0 || (this.#virtualBytes === 0 && byteLength <= MAX_POOL_ALLOCATION_BYTES)) return;
    const { usedBytes, reservedBytes } = this.usage();
    if (usedBytes + byteLength <= this.maxBytes) {
      if (reservedBytes + byteLength > this.maxBytes) this.trim(0);
      return;
    }
    throw new OutOfMemoryError(
      `Cannot allocate ${byteLength} bytes from ${this}: ${usedBytes} bytes are in use and maxBytes allows ${this.maxBytes}; ` +
        `${pendingBytes()} bytes wait for their streams, ${this.leasedBytes} are leased to other processes`,
      { code: CUDA_ERROR_OUT_OF_MEMORY, resultName: resultName(CUDA_ERROR_OUT_OF_MEMORY), call: "cuMemCreate" },
    );
  }

  /** What the pool holds, in bytes, virtual memory included. */
  usage(): { reservedBytes: number; usedBytes: number; reservedHighBytes: number; usedHighBytes: number } {
    const virtual = this.#virtualBytes;
    const high = this.#virtualHigh;
    return {
      reservedBytes: this.attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) + virtual,
      usedBytes: this.attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT) + virtual,
      reservedHighBytes: Math.max(high.reserved, this.attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) + virtual),
      usedHighBytes: Math.max(high.used, this.attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH) + virtual),
    };
  }

  /** How many bytes of freed memory the pool keeps for later allocations; Infinity is all. */
  setReleaseThreshold(bytes: number): void {
    const value = bytes === Infinity ? KEEP_ALL : BigInt(bytes);
    const result = this.context.driver.memPoolSetAttribute(this.handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, value);
    check(result, "cuMemPoolSetAttribute", this);
  }

  /** Gives back what no allocation uses, down to `minBytesToKeep`. */
  trim(minBytesToKeep: number): void {
    check(this.context.driver.memPoolTrimTo(this.handle, toSize(minBytesToKeep)), "cuMemPoolTrimTo", this);
  }

  attribute(attribute: number): number {
    const { driver } = this.context;
    check(driver.memPoolGetAttribute(this.handle, attribute), "cuMemPoolGetAttribute", this);
    return driver.out.readNumber(0);
  }

  /** Opens another process's pool by its handle (`cuMemPoolImportFromShareableHandle`). */
  static import(context: Context, handle: AllocationHandle, id: string): NativePool {
    const { driver } = context;
    const result = driver.memPoolImportFromShareableHandle(driverHandle(handle), ipcHandleType());
    check(result, "cuMemPoolImportFromShareableHandle", context);
    const pool = new NativePool(context, driver.out.readAddress(0), { id, ipc: true, imported: true });
    if (driver.kind === "cuda" && !IS_WINDOWS) hideDriverFds();
    return pool;
  }

  hold(): void {
    this.#holders++;
  }

  /** The last release destroys the pool. An imported one cannot be destroyed: the driver keeps it. */
  release(): void {
    if (--this.#holders > 0) return;
    // The driver gives a later pool the same handle, and with it the access that was not revoked
    if (this.#hasPeers) { for (const ordinal of this.#otherDevices()) this.#setAccess(ordinal, false); }
    let result = 0;
    if (!this.isImported) {
      this.context.makeCurrent();
      result = this.context.driver.memPoolDestroy(this.handle);
    }
    this.context.release();
    check(result, "cuMemPoolDestroy", this);
  }

  toString(): string {
    return `MemoryPool ${this.id} on ${this.context}${this.isImported ? " (imported)" : ""}`;
  }
}

type PoolAccess = (value: unknown, action: Text) => NativePool;
let access: PoolAccess;

/** pool.ts lends its view into MemoryPool, so that the modules below it need not import it. */
export function providePoolAccess(provided: PoolAccess): void {
  access = provided;
}

/** Gives the NativePool of an open MemoryPool, else throws InvalidArgumentError or ClosedError. */
export function nativePool(value: unknown, action: Text): NativePool {
  return access(value, action);
}
