/** Device memory by physical chunks and address ranges (`cuMemCreate`, `cuMemMap`): shareable at any size, growable. */
import { checkBoolean, checkInteger, checkOptions, invalid } from "../arguments.ts";
import { contextOf } from "../context.ts";
import type { Device } from "../device.ts";
import { CU_MEM_HANDLE_TYPE_FABRIC } from "../driver/enums.ts";
import { InvalidArgumentError } from "../errors.ts";
import { MAX_ALLOCATION_BYTES } from "../wire/limits.ts";
import { bufferParts, type DeviceBuffer, type StreamOption, wrapAllocation } from "./buffer.ts";
import { ipcHandleType } from "./os_handle.ts";
import { withStream } from "./own_stream.ts";
import { VirtualAllocation } from "./virtual_allocation.ts";

/** How to allocate virtual memory. */
export interface VirtualMemoryOptions extends StreamOption {
  /** Other processes can map it. Default: false. */
  readonly ipc?: boolean;
  /**
   * Other nodes of an NVLink fabric can map it (`CU_MEM_HANDLE_TYPE_FABRIC`). Needs an IMEX channel, which
   * `device.ipcSupport().fabric` tells. Default: false.
   */
  readonly fabric?: boolean;
}

/**
 * Device memory that is not a pool's: slower to allocate (milliseconds), of any size, and able to grow. Its buffers are
 * DeviceBuffers of the kind `"virtual"`; another process maps them with `DeviceBuffer.importVirtual`.
 *
 * @example
 * ```ts
 * import { Device, VirtualMemory } from "@cuda-ipc/cuda-ipc";
 *
 * using device = Device.open(0);
 * using buffer = VirtualMemory.allocate(device, 8 * 1024 ** 3, { ipc: true });
 * const descriptor = buffer.ipcDescriptor;
 * const handles = buffer.exportHandles(); // send both, then close the handles
 * for (const handle of handles) handle.close();
 * console.log(descriptor.chunkByteLengths);
 * ```
 */
export class VirtualMemory {
  /** Not for users: all of it is static. */
  private constructor() {
    throw new InvalidArgumentError("Cannot construct VirtualMemory: use VirtualMemory.allocate()");
  }

  /**
   * Allocates device memory and maps it. Its length is what was asked for; physically it is rounded up to the device's
   * granularity (2 MiB). Usable at once, on any stream of the device; freed when the work of its stream is done.
   *
   * @param byteLength how much, from 1 on.
   * @throws {OutOfMemoryError} when the device has no room.
   * @throws {CudaDriverError} with code 800 for `fabric` without an IMEX channel.
   */
  static allocate(device: Device, byteLength: number, options?: VirtualMemoryOptions): DeviceBuffer {
    const context = contextOf(device, "allocate virtual memory");
    const action = `allocate virtual memory on ${context}`;
    checkInteger(action, "byteLength", byteLength, 1, MAX_ALLOCATION_BYTES);
    const given = checkOptions(action, options, ["ipc", "fabric", "stream"]);
    const ipc = checkBoolean(action, "ipc", given.ipc, false);
    const fabric = checkBoolean(action, "fabric", given.fabric, false);
    const handleTypes = (ipc ? ipcHandleType() : 0) | (fabric ? CU_MEM_HANDLE_TYPE_FABRIC : 0);
    const allocation = withStream(
      context,
      given.stream,
      action,
      (stream) => VirtualAllocation.create(context, byteLength, stream, handleTypes, [context.ordinal]),
    );
    return wrapAllocation(allocation, device, null);
  }

  /**
   * Gives a longer buffer that begins with the same memory: new chunks are mapped behind the present ones, in a new
   * contiguous range. The given buffer stays valid, an alias of the beginning, until it is freed. Nothing is copied.
   *
   * @param buffer a buffer of `VirtualMemory.allocate` or `grow`, no view and no import.
   * @param byteLength the new length, more than the present one.
   * @throws {OutOfMemoryError} when the device has no room; the given buffer is as before.
   */
  static grow(buffer: DeviceBuffer, byteLength: number, options?: StreamOption): DeviceBuffer {
    const { allocation, device } = bufferParts(buffer, "grow a buffer");
    const action = `grow ${buffer}`;
    if (!(allocation instanceof VirtualAllocation) || buffer.byteLength !== allocation.byteLength) {
      throw invalid(action, "buffer", buffer, "a whole buffer of VirtualMemory.allocate()");
    }
    checkInteger(action, "byteLength", byteLength, buffer.byteLength + 1, MAX_ALLOCATION_BYTES);
    const { stream = undefined } = checkOptions(action, options, ["stream"]);
    const grown = withStream(
      allocation.context,
      stream,
      action,
      (native) => allocation.grow(byteLength, native, action),
    );
    return wrapAllocation(grown, device, null);
  }

  /**
   * The 64-byte fabric handle of each chunk of a buffer that was allocated with `fabric`, for
   * `DeviceBuffer.importVirtual` on this or another node of the fabric. They are plain data and need no closing.
   *
   * @throws {CudaDriverError} with code 800 where no IMEX channel is there.
   */
  static exportFabricHandles(buffer: DeviceBuffer): Uint8Array[] {
    const { allocation } = bufferParts(buffer, "export fabric handles");
    if (!(allocation instanceof VirtualAllocation)) {
      throw invalid("export fabric handles", "buffer", buffer, "a buffer of VirtualMemory.allocate()");
    }
    return allocation.exportFabricHandles(`export ${buffer}`);
  }
}
