/** Device memory that somebody else allocated in this process, by its address. */
import { addOffset, type Address, addressFromBigInt, addressToBigInt, isNull, toSize } from "../../ffi/mod.ts";
import type { Text } from "../arguments.ts";
import type { Context } from "../context.ts";
import { check } from "../driver/check.ts";
import {
  CU_MEMORYTYPE_DEVICE,
  CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
  CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
  CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
} from "../driver/enums.ts";
import { CUDA_ERROR_INVALID_VALUE } from "../driver/results.ts";
import { InvalidArgumentError, NotSupportedError } from "../errors.ts";
import type { NativeStream } from "../native_stream.ts";
import { ownIdentity } from "../os/process.ts";
import { Allocation, type AllocationDescription, nextGeneration } from "./allocation.ts";
import { type AllocationHandle, ownDriverHandle } from "./allocation_handle.ts";
import { describeLegacy } from "./legacy_allocation.ts";
import { closeOsHandle, ipcHandleType, readOsHandle } from "./os_handle.ts";
import { granularityOf } from "./virtual_range.ts";

/** A piece of physical memory, by a use of its handle that is ours. */
interface Chunk {
  readonly handle: Address;
  byteLength: number;
}

/** The ids of pools that others made: the same pool has the same one. */
const poolIds = new Map<Address, string>();

/** A whole allocation of somebody else. It is never freed here. */
export class ForeignAllocation extends Allocation {
  override readonly kind = "foreign" as const;
  /** Kept from being collected while the memory is used. */
  readonly owner: unknown;
  #description: AllocationDescription | undefined;

  private constructor(context: Context, address: Address, byteLength: number, stream: NativeStream, owner: unknown) {
    super(context, address, byteLength, toSize(byteLength), stream);
    this.owner = owner;
  }

  /** Finds the allocation around an address; also where in it the address is. */
  static find(
    context: Context,
    address: bigint,
    byteLength: number,
    stream: NativeStream,
    owner: unknown,
    action: Text,
  ): { allocation: ForeignAllocation; byteOffset: number } {
    context.makeCurrent();
    const known = (at: bigint, number: number): boolean =>
      context.driver.pointerGetAttribute(number, addressFromBigInt(at)) === 0;
    const { out } = context.driver;
    if (!known(address, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) || out.readU32(0) !== CU_MEMORYTYPE_DEVICE) {
      throw new InvalidArgumentError(`Cannot ${action}: the driver knows no device memory at address 0x${address.toString(16)}`);
    }
    if (!known(address, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) || out.readI32(0) !== context.ordinal) {
      throw new InvalidArgumentError(`Cannot ${action}: the memory belongs to device ${out.readI32(0)}, this is ${context}`);
    }
    // Not the attributes of its range, which are those of all reserved addresses, mapped or not
    const range = (at: bigint) => {
      if (context.driver.memGetAddressRange(addressFromBigInt(at)) !== 0) return undefined;
      const start = out.readU64(0);
      return { start, end: start + out.readU64(8) };
    };
    const first = range(address);
    const says = (number: number): boolean => known(address, number) && out.readU64(0) !== 0n;
    const isOnePiece = says(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) || says(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
    let end = first?.end ?? address;
    // Of virtual memory each chunk is a range
    while (first !== undefined && !isOnePiece && end < address + BigInt(byteLength)) {
      const next = range(end);
      if (next === undefined || next.end <= end) break;
      end = next.end;
    }
    if (first === undefined || end < address + BigInt(byteLength)) {
      throw new InvalidArgumentError(
        `Cannot ${action}: ${byteLength} bytes pass the end of the memory, which has ${end - address} from that address on`,
      );
    }
    const base = addressFromBigInt(first.start);
    const byteOffset = Number(address - first.start);
    const length = Number(end - first.start);
    return { allocation: new ForeignAllocation(context, base, length, stream, owner), byteOffset };
  }

  override describe(deviceUuid: string, action: Text): AllocationDescription {
    return this.#description ??= this.#describe(deviceUuid, action);
  }

  #describe(deviceUuid: string, action: Text): AllocationDescription {
    const { context, address, byteLength } = this;
    const { driver } = context;
    const pool = this.#pool();
    if (pool !== undefined) {
      closeOsHandle(this.#exportPool(pool)); // the driver demands it before a pointer
      check(driver.memPoolExportPointer(address), "cuMemPoolExportPointer", context);
      return {
        memoryKind: "pool",
        deviceUuid,
        exporter: ownIdentity(),
        poolId: poolIdOf(pool),
        generation: nextGeneration(),
        allocationByteLength: byteLength,
        chunkByteLengths: [],
        opaque: driver.out.bytes.slice(0, 64),
      };
    }
    if (this.#attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) !== 0n) {
      return describeLegacy(context, address, byteLength, deviceUuid);
    }
    const chunkByteLengths = this.#withChunks(action, (chunks) => chunks.map((chunk) => chunk.byteLength));
    return {
      memoryKind: "virtual",
      deviceUuid,
      exporter: ownIdentity(),
      poolId: null,
      generation: nextGeneration(),
      allocationByteLength: byteLength,
      chunkByteLengths,
      opaque: new Uint8Array(0),
    };
  }

  /** The handle of the pool that the memory is of, for `MemoryPool.import`; or those of its chunks, for `importVirtual`. */
  override exportHandles(action: Text): AllocationHandle[] {
    const pool = this.#pool();
    if (pool !== undefined) return [ownDriverHandle(this.#exportPool(pool), poolIdOf(pool))];
    const { driver } = this.context;
    return this.#withChunks(action, (chunks) => {
      const handles: AllocationHandle[] = [];
      try {
        for (const { handle } of chunks) {
          const result = driver.memExportToShareableHandle(handle, ipcHandleType());
          if (result === CUDA_ERROR_INVALID_VALUE) throw this.#notShareable(action); // imported from another process
          check(result, "cuMemExportToShareableHandle", this.context);
          handles.push(ownDriverHandle(readOsHandle(driver.out)));
        }
        return handles;
      } catch (error) {
        for (const handle of handles) handle.close();
        throw error;
      }
    });
  }

  /** Calls `body` with the chunks of virtual memory. The driver tells them by their handles only, one address at a time. */
  #withChunks<T>(action: Text, body: (chunks: readonly Chunk[]) => T): T {
    if ((this.#attribute(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES) & BigInt(ipcHandleType())) === 0n) {
      throw this.#notShareable(action);
    }
    const { driver } = this.context;
    const step = granularityOf(this.context, ipcHandleType());
    const chunks: Chunk[] = [];
    try {
      for (let byteOffset = 0; byteOffset < this.byteLength; byteOffset += step) {
        if (driver.memRetainAllocationHandle(addOffset(this.address, byteOffset)) !== 0) throw this.#notShareable(action);
        const handle = driver.out.readAddress(0);
        const last = chunks.at(-1);
        if (last?.handle !== handle) chunks.push({ handle, byteLength: step });
        else {
          last.byteLength += step;
          driver.memRelease(handle);
        }
      }
      return body(chunks);
    } finally {
      for (const { handle } of chunks) driver.memRelease(handle);
    }
  }

  #exportPool(pool: Address): number {
    const { driver } = this.context;
    const result = driver.memPoolExportToShareableHandle(pool, ipcHandleType());
    check(result, "cuMemPoolExportToShareableHandle", this.context);
    return readOsHandle(driver.out);
  }

  /** The pool that the memory is of, where it can be shared. */
  #pool(): Address | undefined {
    if (this.#attribute(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) === 0n) return undefined;
    const pool = this.context.driver.out.readAddress(0);
    const types = this.#attribute(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
    return isNull(pool) || (types & BigInt(ipcHandleType())) === 0n ? undefined : pool;
  }

  /** 0 where the driver knows no answer. */
  #attribute(number: number): bigint {
    const { driver } = this.context;
    return driver.pointerGetAttribute(number, this.address) === 0 ? driver.out.readU64(0) : 0n;
  }

  #notShareable(action: Text): NotSupportedError {
    return new NotSupportedError(
      `Cannot ${action}: the driver says that the memory at 0x${
        addressToBigInt(this.address).toString(16)
      } can be shared neither ` +
        `by its pool, nor by its chunks, nor by a legacy handle. Copy it to a buffer of a pool with { ipc: true }`,
    );
  }

  protected override giveBack(): () => boolean {
    return () => true;
  }
}

function poolIdOf(pool: Address): string {
  let id = poolIds.get(pool);
  if (id === undefined) poolIds.set(pool, id = crypto.randomUUID());
  return id;
}
