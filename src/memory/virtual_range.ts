/** Physical memory of a device (`cuMemCreate`) and the address ranges where it is mapped (`cuMemMap`). */
import { addOffset, type Address, addressFromNumber, toSize } from "../../ffi/mod.ts";
import type { Context } from "../context.ts";
import { check } from "../driver/check.ts";
import {
  CU_MEM_ACCESS_FLAGS_PROT_NONE,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
  CU_MEM_ALLOCATION_TYPE_PINNED,
  CU_MEM_LOCATION_TYPE_DEVICE,
} from "../driver/enums.ts";
import type { MemAllocationProp } from "../driver/driver.ts";
import { CUDA_ERROR_OUT_OF_MEMORY } from "../driver/results.ts";
import { objectAttributes } from "./os_handle.ts";
import { reap } from "./reaper.ts";

function propertiesOf(context: Context, handleTypes: number): MemAllocationProp {
  return {
    type: CU_MEM_ALLOCATION_TYPE_PINNED,
    requestedHandleTypes: handleTypes,
    locationType: CU_MEM_LOCATION_TYPE_DEVICE,
    locationId: context.ordinal,
    win32HandleMetaData: handleTypes === 0 ? undefined : objectAttributes(),
  };
}

/** What the length of a chunk is a multiple of. */
export function granularityOf(context: Context, handleTypes: number): number {
  const { driver } = context;
  context.makeCurrent();
  const props = propertiesOf(context, handleTypes);
  check(
    driver.memGetAllocationGranularity(props, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
    "cuMemGetAllocationGranularity",
    context,
  );
  return driver.out.readNumber(0);
}

/** A piece of physical memory, counted: several ranges may map it. Without a mapping nobody can reach it. */
export class PhysicalChunk {
  readonly handle: Address;
  readonly byteLength: number;
  readonly #context: Context;
  #users = 1;

  private constructor(context: Context, handle: Address, byteLength: number) {
    this.#context = context;
    this.handle = handle;
    this.byteLength = byteLength;
  }

  /** `byteLength` is a multiple of the granularity. */
  static create(context: Context, byteLength: number, handleTypes: number): PhysicalChunk {
    const { driver } = context;
    const props = propertiesOf(context, handleTypes);
    const size = toSize(byteLength);
    context.makeCurrent();
    let result = driver.memCreate(size, props);
    if (result === CUDA_ERROR_OUT_OF_MEMORY && reap() > 0) result = driver.memCreate(size, props);
    check(result, "cuMemCreate", `${byteLength} bytes on ${context}`);
    return new PhysicalChunk(context, driver.out.readAddress(0), byteLength);
  }

  /** Opens another process's memory. The handle stays the caller's. */
  static import(context: Context, handle: Address | Uint8Array, handleType: number, byteLength: number): PhysicalChunk {
    const { driver } = context;
    context.makeCurrent();
    check(driver.memImportFromShareableHandle(handle, handleType), "cuMemImportFromShareableHandle", context);
    return new PhysicalChunk(context, driver.out.readAddress(0), byteLength);
  }

  hold(): void {
    this.#users++;
  }

  /** The last release gives the memory back, once no range and no other process maps it. Gives the driver's result. */
  release(): number {
    return --this.#users > 0 ? 0 : this.#context.driver.memRelease(this.handle);
  }
}

/** One contiguous range of addresses with chunks mapped side by side. */
export class VirtualRange {
  readonly address: Address;
  readonly byteLength: number;
  readonly chunks: readonly PhysicalChunk[];
  readonly #context: Context;

  private constructor(context: Context, address: Address, chunks: readonly PhysicalChunk[]) {
    this.#context = context;
    this.address = address;
    this.chunks = chunks;
    this.byteLength = chunks.reduce((sum, { byteLength }) => sum + byteLength, 0);
  }

  /** Maps the chunks for the devices with these ordinals. Takes over one use of each chunk, also when it fails. */
  static map(context: Context, chunks: readonly PhysicalChunk[], ordinals: readonly number[]): VirtualRange {
    const { driver } = context;
    const total = chunks.reduce((sum, { byteLength }) => sum + byteLength, 0);
    let range: VirtualRange | undefined;
    let mapped = 0;
    try {
      context.makeCurrent();
      check(driver.memAddressReserve(toSize(total), toSize(0), addressFromNumber(0)), "cuMemAddressReserve", `${total} bytes`);
      range = new VirtualRange(context, driver.out.readAddress(0), chunks);
      for (const { address, chunk } of range.#placed()) {
        check(driver.memMap(address, toSize(chunk.byteLength), toSize(0), chunk.handle), "cuMemMap", context);
        mapped++;
      }
      range.setAccess(ordinals, true);
      return range;
    } catch (error) {
      if (range !== undefined) range.#remove(mapped);
      for (const chunk of chunks) chunk.release();
      throw error;
    }
  }

  /** Lets streams of the devices use the range, or forbids it. */
  setAccess(ordinals: readonly number[], allowed: boolean): void {
    const flags = allowed ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    const accesses = ordinals.map((locationId) => ({ locationType: CU_MEM_LOCATION_TYPE_DEVICE, locationId, flags }));
    if (accesses.length === 0) return; // the driver refuses an empty list
    const { driver } = this.#context;
    for (const { address, chunk } of this.#placed()) {
      check(driver.memSetAccess(address, toSize(chunk.byteLength), accesses), "cuMemSetAccess", this.#context);
    }
  }

  /** Whether streams of the device may use the range. */
  isAccessibleFrom(user: Context): boolean {
    const { driver } = this.#context;
    if (user.driver !== driver) return false;
    const location = { type: CU_MEM_LOCATION_TYPE_DEVICE, id: user.ordinal };
    check(driver.memGetAccess(location, this.address), "cuMemGetAccess", this.#context);
    return driver.out.readNumber(0) === CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }

  /** Ends the mapping and its use of the chunks. The driver does not wait for the work that uses it: the caller has. */
  unmap(): void {
    this.#context.makeCurrent();
    const failures = this.#remove(this.chunks.length);
    for (const chunk of this.chunks) failures.push({ result: chunk.release(), call: "cuMemRelease" });
    for (const { result, call } of failures) check(result, call, this.#context);
  }

  /** Unmaps the first `count` chunks one by one, as they were mapped, and frees the addresses. Each step is tried. */
  #remove(count: number): { result: number; call: string }[] {
    const { driver } = this.#context;
    const results = this.#placed().slice(0, count).map(({ address, chunk }) => ({
      result: driver.memUnmap(address, toSize(chunk.byteLength)),
      call: "cuMemUnmap",
    }));
    results.push({ result: driver.memAddressFree(this.address, toSize(this.byteLength)), call: "cuMemAddressFree" });
    return results;
  }

  #placed(): { address: Address; chunk: PhysicalChunk }[] {
    let byteOffset = 0;
    return this.chunks.map((chunk) => {
      const address = addOffset(this.address, byteOffset);
      byteOffset += chunk.byteLength;
      return { address, chunk };
    });
  }
}
