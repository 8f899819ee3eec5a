/** The driver's memory pool behind a MemoryPool: counted, since allocations outlive the object that the user closed. */
import type { Text } from "../arguments.ts";
import type { Address } from "../../ffi/mod.ts";
import type { Context } from "../context.ts";
import { check } from "../driver/check.ts";
import {
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
  CU_MEM_ALLOCATION_TYPE_PINNED,
  CU_MEM_HANDLE_TYPE_NONE,
  CU_MEM_LOCATION_TYPE_DEVICE,
} from "../driver/enums.ts";
import type { Allocation } from "./allocation.ts";
import { closeOsHandle, ipcHandleType, readOsHandle, securityAttributes } from "./os_handle.ts";

export class NativePool {
  readonly context: Context;
  readonly handle: Address;
  readonly id: string;
  readonly isIpcEnabled: boolean;
  readonly isImported: boolean;
  /** The allocations that were exported, by generation: an import in this same process becomes an alias. */
  readonly exported: Map<number, Allocation> = new Map();
  #holders = 1;
  #isExported = false;

  constructor(context: Context, handle: Address, kind: { id: string; ipc: boolean; imported: boolean }) {
    this.context = context;
    this.handle = handle;
    this.id = kind.id;
    this.isIpcEnabled = kind.ipc;
    this.isImported = kind.imported;
    context.hold();
  }

  /** Makes a pool of device memory (`cuMemPoolCreate`). `maxBytes` 0 is no limit. */
  static create(context: Context, id: string, ipc: boolean, maxBytes: number): NativePool {
    const { driver } = context;
    context.makeCurrent();
    const props = {
      allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
      handleTypes: ipc ? ipcHandleType() : CU_MEM_HANDLE_TYPE_NONE,
      locationType: CU_MEM_LOCATION_TYPE_DEVICE,
      locationId: context.ordinal,
      win32SecurityAttributes: ipc ? securityAttributes() : undefined,
      maxSize: maxBytes,
    };
    check(driver.memPoolCreate(props), "cuMemPoolCreate", context);
    return new NativePool(context, driver.out.readAddress(0), { id, ipc, imported: false });
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
    if (context === this.context) return true;
    const { driver } = this.context;
    if (context.driver !== driver) return false;
    const location = { type: CU_MEM_LOCATION_TYPE_DEVICE, id: context.ordinal };
    check(driver.memPoolGetAccess(this.handle, location), "cuMemPoolGetAccess", this);
    return driver.out.readU32(0) === CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }

  hold(): void {
    this.#holders++;
  }

  /** The last release destroys the pool. An imported one cannot be destroyed: the driver keeps it. */
  release(): void {
    if (--this.#holders > 0) return;
    this.context.makeCurrent();
    const result = this.isImported ? 0 : this.context.driver.memPoolDestroy(this.handle);
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
