/** Virtual memory behind a DeviceBuffer: chunks of physical memory, mapped as one range, shared by their handles. */
import { toSize } from "../../ffi/mod.ts";
import type { Text } from "../arguments.ts";
import type { Context } from "../context.ts";
import { check } from "../driver/check.ts";
import { CU_MEM_HANDLE_TYPE_FABRIC } from "../driver/enums.ts";
import { InvalidArgumentError, ProtocolError } from "../errors.ts";
import type { NativeStream } from "../native_stream.ts";
import { ownIdentity } from "../os/process.ts";
import type { BufferDescriptor } from "../wire/descriptor.ts";
import { Allocation, type AllocationDescription, descriptionOf, nextGeneration } from "./allocation.ts";
import { type AllocationHandle, checkDriverHandle, driverHandle, ownDriverHandle } from "./allocation_handle.ts";
import type { NativePool } from "./native_pool.ts";
import { closeOsHandle, duplicateOsHandle, ipcHandleType, readOsHandle } from "./os_handle.ts";
import { reapAfter } from "./reaper.ts";
import { granularityOf, PhysicalChunk, VirtualRange } from "./virtual_range.ts";

const FABRIC_HANDLE_BYTES = 64;

/** Where a range of virtual memory comes from. */
interface Origin {
  /** What it may be exported as; 0 for nothing. */
  readonly handleTypes: number;
  /** The pool that it counts as part of. */
  readonly pool?: NativePool;
  /** What it was imported by. */
  readonly descriptor?: BufferDescriptor;
  /** The handles that it was imported by: our own ones, since the driver exports no imported memory. */
  readonly handles?: readonly (number | Uint8Array)[];
}

/** A mapped range of this process's or another process's virtual memory. */
export class VirtualAllocation extends Allocation {
  override readonly kind = "virtual" as const;
  readonly range: VirtualRange;
  readonly #origin: Origin;
  #description: AllocationDescription | undefined;

  private constructor(context: Context, range: VirtualRange, byteLength: number, stream: NativeStream, origin: Origin) {
    super(context, range.address, byteLength, toSize(byteLength), stream);
    this.range = range;
    this.#origin = origin;
    context.hold();
    origin.pool?.addVirtual(this);
  }

  /** Takes physical memory and maps it, for the devices with the given ordinals. */
  static create(
    context: Context,
    byteLength: number,
    stream: NativeStream,
    handleTypes: number,
    ordinals: readonly number[],
    pool?: NativePool,
  ): VirtualAllocation {
    const granularity = granularityOf(context, handleTypes);
    const chunk = PhysicalChunk.create(context, roundUp(byteLength, granularity), handleTypes);
    const range = VirtualRange.map(context, [chunk], ordinals);
    return new VirtualAllocation(context, range, byteLength, stream, { handleTypes, pool });
  }

  /** Maps another process's memory by the handles of its chunks, which stay the caller's. */
  static import(
    context: Context,
    descriptor: BufferDescriptor,
    handles: readonly (AllocationHandle | Uint8Array)[],
    stream: NativeStream,
    action: Text,
  ): VirtualAllocation {
    const { chunkByteLengths, allocationByteLength } = descriptor;
    if (handles.length !== chunkByteLengths.length) {
      throw new InvalidArgumentError(
        `Cannot ${action}: got ${handles.length} handles, its descriptor has ${chunkByteLengths.length} chunks. ` +
          `Pass what exportHandles() gave, in its order`,
      );
    }
    const handleTypes = handles.some((handle) => handle instanceof Uint8Array) ? CU_MEM_HANDLE_TYPE_FABRIC : ipcHandleType();
    if (handleTypes === CU_MEM_HANDLE_TYPE_FABRIC && !handles.every((handle) => handle instanceof Uint8Array)) {
      throw new InvalidArgumentError(`Cannot ${action}: some handles are fabric handles and some are not, expected one kind`);
    }
    const granularity = granularityOf(context, handleTypes);
    chunkByteLengths.forEach((byteLength, index) => {
      if (byteLength % granularity !== 0) {
        throw new ProtocolError(
          `Cannot ${action}: chunk ${index} has ${byteLength} bytes, expected a multiple of ${granularity}`,
        );
      }
    });
    for (const handle of handles) {
      if (handle instanceof Uint8Array) checkFabricHandle(action, handle);
      else checkDriverHandle(action, handle, context.driver.kind === "simulator");
    }
    const chunks: PhysicalChunk[] = [];
    const kept: (number | Uint8Array)[] = [];
    try {
      handles.forEach((handle, index) => {
        const [native, type] = handle instanceof Uint8Array
          ? [handle, CU_MEM_HANDLE_TYPE_FABRIC]
          : [driverHandle(handle), ipcHandleType()];
        kept.push(handle instanceof Uint8Array ? handle.slice() : duplicateOsHandle(handle.fd));
        chunks.push(PhysicalChunk.import(context, native, type, chunkByteLengths[index]));
      });
      const range = VirtualRange.map(context, chunks.splice(0), [context.ordinal]);
      return new VirtualAllocation(context, range, allocationByteLength, stream, { handleTypes, descriptor, handles: kept });
    } catch (error) {
      for (const chunk of chunks) chunk.release();
      closeKept(kept);
      throw error;
    }
  }

  /** The same memory and more behind it, in a new range; this one stays as it is. */
  grow(byteLength: number, stream: NativeStream, action: Text): VirtualAllocation {
    const { context, range } = this;
    const { handleTypes, pool, descriptor } = this.#origin;
    if (descriptor !== undefined) {
      throw new InvalidArgumentError(`Cannot ${action}: it is imported. Its exporter can grow it and send it anew`);
    }
    if (pool !== undefined) {
      throw new InvalidArgumentError(`Cannot ${action}: it belongs to ${pool}. Allocate it with VirtualMemory.allocate()`);
    }
    const missing = byteLength - range.byteLength;
    const added = missing <= 0
      ? []
      : [PhysicalChunk.create(context, roundUp(missing, granularityOf(context, handleTypes)), handleTypes)];
    for (const chunk of range.chunks) chunk.hold();
    const grown = VirtualRange.map(context, [...range.chunks, ...added], [context.ordinal]);
    return new VirtualAllocation(context, grown, byteLength, stream, { handleTypes });
  }

  override get isImported(): boolean {
    return this.#origin.descriptor !== undefined;
  }

  override isAccessibleFrom(context: Context): boolean {
    return context === this.context || this.range.isAccessibleFrom(context);
  }

  override describe(deviceUuid: string, action: Text): AllocationDescription {
    return this.#description ??= this.#describe(deviceUuid, action);
  }

  #describe(deviceUuid: string, action: Text): AllocationDescription {
    const { descriptor, pool } = this.#origin;
    if (descriptor !== undefined) return descriptionOf(descriptor);
    this.#checkShareable(action, ipcHandleType() | CU_MEM_HANDLE_TYPE_FABRIC);
    const generation = nextGeneration();
    pool?.exported.set(generation, this);
    return {
      memoryKind: "virtual",
      deviceUuid,
      exporter: ownIdentity(),
      poolId: pool?.id ?? null,
      generation,
      allocationByteLength: this.byteLength,
      chunkByteLengths: this.range.chunks.map(({ byteLength }) => byteLength),
      opaque: new Uint8Array(0),
    };
  }

  override exportHandles(action: Text): AllocationHandle[] {
    this.#checkShareable(action, ipcHandleType());
    const { driver } = this.context;
    const { handles: kept } = this.#origin;
    const handles: AllocationHandle[] = [];
    try {
      for (const handle of kept ?? []) if (typeof handle === "number") handles.push(ownDriverHandle(duplicateOsHandle(handle)));
      for (const { handle } of kept === undefined ? this.range.chunks : []) {
        check(driver.memExportToShareableHandle(handle, ipcHandleType()), "cuMemExportToShareableHandle", this.context);
        handles.push(ownDriverHandle(readOsHandle(driver.out)));
      }
      return handles;
    } catch (error) {
      for (const handle of handles) handle.close();
      throw error;
    }
  }

  /** The fabric handle of each chunk, for processes on other nodes of the fabric. */
  exportFabricHandles(action: Text): Uint8Array[] {
    this.#checkShareable(action, CU_MEM_HANDLE_TYPE_FABRIC);
    const { driver } = this.context;
    const { handles: kept } = this.#origin;
    if (kept !== undefined) return kept.filter((handle) => handle instanceof Uint8Array).map((bytes) => bytes.slice());
    return this.range.chunks.map(({ handle }) => {
      check(driver.memExportToShareableHandle(handle, CU_MEM_HANDLE_TYPE_FABRIC), "cuMemExportToShareableHandle", this.context);
      return driver.out.bytes.slice(0, 64);
    });
  }

  #checkShareable(action: Text, handleTypes: number): void {
    if ((this.#origin.handleTypes & handleTypes) !== 0) return;
    const option = handleTypes === CU_MEM_HANDLE_TYPE_FABRIC ? "fabric" : "ipc";
    throw new InvalidArgumentError(`Cannot ${action}: it was allocated without { ${option}: true }`);
  }

  protected override countLeased(bytes: number): void {
    if (this.#origin.pool !== undefined) this.#origin.pool.leasedBytes += bytes;
  }

  protected override giveBack(stream: NativeStream): () => boolean {
    const { pool } = this.#origin;
    if (this.#description !== undefined) pool?.exported.delete(this.#description.generation);
    // The driver unmaps without waiting for the work that uses the range
    return reapAfter([stream], () => {
      try {
        this.range.unmap();
      } finally {
        pool?.removeVirtual(this);
        this.context.release();
        closeKept(this.#origin.handles ?? []);
      }
    }, this.range.byteLength);
  }
}

function closeKept(handles: readonly (number | Uint8Array)[]): void {
  for (const handle of handles) if (typeof handle === "number") closeOsHandle(handle);
}

function checkFabricHandle(action: Text, handle: Uint8Array): void {
  if (handle.byteLength !== FABRIC_HANDLE_BYTES) {
    throw new InvalidArgumentError(
      `Cannot ${action}: a fabric handle has ${handle.byteLength} bytes, expected ${FABRIC_HANDLE_BYTES}`,
    );
  }
}

function roundUp(value: number, multiple: number): number {
  return Math.ceil(value / multiple) * multiple;
}
