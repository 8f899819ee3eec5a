/**
 * Legacy memory handles (`cuIpcGetMemHandle`), for peers that know nothing else: CuPy, PyTorch, Numba, RAPIDS.
 *
 * Prefer pools. A legacy handle is 64 bytes that name a whole allocation of `cuMemAlloc` (the offset travels beside it),
 * can be opened by any process of the user that learns it, says nothing about its owner or its length, and exists only
 * for memory whose allocation and freeing block the host behind all queued work.
 *
 * @example
 * ```ts
 * import { Device, legacy } from "@cuda-ipc/cuda-ipc";
 *
 * using device = Device.open(0);
 * using buffer = legacy.allocate(device, 1024);
 * const handle = legacy.memHandle(buffer); // 64 bytes for the peer
 * console.log(handle.length);
 * ```
 *
 * @module
 */
import { checkBytes, checkInteger, checkOptions, invalid } from "../arguments.ts";
import { contextOf } from "../context.ts";
import type { Device } from "../device.ts";
import { DeviceNotVisibleError, InvalidArgumentError, NotSupportedError, SameProcessError } from "../errors.ts";
import { ownIdentity } from "../os/process.ts";
import { BufferDescriptor } from "../wire/descriptor.ts";
import { isSameProcess } from "../wire/identity.ts";
import { MAX_ALLOCATION_BYTES } from "../wire/limits.ts";
import { descriptionOf } from "./allocation.ts";
import { bufferParts, type DeviceBuffer, type StreamOption, wrapAllocation, wrapPart } from "./buffer.ts";
import { LegacyAllocation, OpenedLegacyAllocation } from "./legacy_allocation.ts";
import { withStream } from "./own_stream.ts";

/** Which part of the memory behind a handle to open. */
export interface OpenMemHandleOptions extends StreamOption {
  /** Where the peer's data begins, in bytes from the start of its allocation. Default: 0. */
  readonly byteOffset?: number;
  /** How much of it there is, from 1 on. Default: up to the allocation's end. */
  readonly byteLength?: number;
}

const HANDLE_BYTES = 64;
/** PyTorch writes a version and a kind before the driver's bytes. */
const TORCH_VERSION = 2;
const TORCH_PLAIN = 0x63; // "c", of cudaMalloc
const TORCH_EXPANDABLE = 0x65; // "e"
const TORCH_PREFIX_BYTES = 2;

/**
 * Allocates device memory that has a legacy handle (`cuMemAlloc`). Usable at once, on any stream of the device. Its
 * contents are undefined. Freed at a moment when the device is idle: the driver's own free waits for all queued work.
 *
 * @param byteLength how much, from 1 on.
 * @throws {OutOfMemoryError} when the device has no room.
 */
export function allocate(device: Device, byteLength: number, options?: StreamOption): DeviceBuffer {
  const context = contextOf(device, "allocate legacy memory");
  const action = `allocate legacy memory on ${context}`;
  checkInteger(action, "byteLength", byteLength, 1, MAX_ALLOCATION_BYTES);
  const { stream } = checkOptions(action, options, ["stream"]);
  const allocation = withStream(context, stream, action, (native) => LegacyAllocation.create(context, byteLength, native));
  return wrapAllocation(allocation, device, null);
}

/**
 * The 64-byte handle of a buffer's memory (`cuIpcGetMemHandle`), as CuPy's `ipc.getMemHandle` gives it. It names the
 * whole allocation: of a part, send `buffer.ipcDescriptor.byteOffset` and the length beside it.
 *
 * @param buffer one of `legacy.allocate` or `legacy.openMemHandle`, or a wrapped one of `cuMemAlloc` memory.
 * @throws {NotSupportedError} for memory of another kind, which has no such handle.
 */
export function memHandle(buffer: DeviceBuffer): Uint8Array {
  const { allocation } = bufferParts(buffer, "get a legacy handle");
  if (allocation instanceof OpenedLegacyAllocation) return allocation.handle;
  const { kind } = allocation;
  if (kind === "legacy" || kind === "foreign") {
    const descriptor = buffer.ipcDescriptor;
    if (descriptor.memoryKind === "legacy") return descriptor.opaque;
  }
  const instead = kind === "virtual" ? "buffer.exportHandles()" : "buffer.ipcDescriptor and its pool's handle";
  throw new NotSupportedError(
    `Cannot get a legacy handle of ${buffer}: memory of the kind "${kind}" has none. Share it by ${instead}, or allocate it ` +
      `with legacy.allocate()`,
  );
}

/**
 * Maps another process's memory by its legacy handle (`cuIpcOpenMemHandle`). The memory is the exporter's: what either
 * writes, both see, and nothing orders the two. It is closed at a moment when the device is idle.
 *
 * @param handle 64 bytes; or PyTorch's 66 of `untyped_storage()._share_cuda_()`, whose offset is in another field; or
 *   the descriptor of a buffer of this module, which brings offset and length with it.
 * @throws {SameProcessError} when this process exported it.
 * @throws {InvalidArgumentError} when the part does not lie within the memory.
 * @throws {NotSupportedError} for a PyTorch handle of expandable segments, which is no driver handle.
 */
export function openMemHandle(
  device: Device,
  handle: Uint8Array | BufferDescriptor,
  options?: OpenMemHandleOptions,
): DeviceBuffer {
  const context = contextOf(device, "open a legacy handle");
  const action = `open a legacy handle on ${context}`;
  const given = checkOptions(action, options, ["byteOffset", "byteLength", "stream"]);
  const origin = handle instanceof BufferDescriptor ? handle : undefined;
  if (origin !== undefined) checkDescriptor(action, origin, device);
  const bytes = origin?.opaque ?? plainHandle(action, handle);
  const wantedOffset = given.byteOffset === undefined ? origin?.byteOffset ?? 0 : given.byteOffset;
  const byteOffset = checkInteger(action, "byteOffset", wantedOffset, 0);
  const wanted = given.byteLength === undefined ? origin?.byteLength : checkInteger(action, "byteLength", given.byteLength, 1);
  return withStream(context, given.stream, action, (stream) => {
    const description = origin && descriptionOf(origin);
    const allocation = OpenedLegacyAllocation.open(context, bytes, stream, action, description);
    const byteLength = wanted ?? allocation.byteLength - byteOffset;
    if (byteLength < 1 || byteOffset + byteLength > allocation.byteLength) {
      allocation.release();
      throw new InvalidArgumentError(
        `Cannot ${action}: ${byteLength} bytes at byteOffset ${byteOffset} do not lie within its ${allocation.byteLength} bytes`,
      );
    }
    return wrapPart(allocation, device, { byteOffset, byteLength });
  });
}

function checkDescriptor(action: string, { memoryKind, deviceUuid, exporter }: BufferDescriptor, device: Device): void {
  if (memoryKind !== "legacy") throw invalid(action, "descriptor.memoryKind", memoryKind, '"legacy"');
  if (isSameProcess(exporter, ownIdentity())) {
    throw new SameProcessError(`Cannot ${action}: this process exported it. Use the original buffer`);
  }
  if (deviceUuid !== device.uuid) {
    throw new DeviceNotVisibleError(
      `Cannot ${action}: its memory is on ${deviceUuid}, this is ${device.uuid}. Open it on its own device`,
    );
  }
}

/** The driver's 64 bytes in what a peer has sent. */
function plainHandle(action: string, handle: unknown): Uint8Array {
  const bytes = checkBytes(action, "handle", handle);
  if (bytes.byteLength === HANDLE_BYTES) return bytes.slice();
  const [version, kind] = bytes;
  if (version === TORCH_VERSION && kind === TORCH_PLAIN && bytes.byteLength === TORCH_PREFIX_BYTES + HANDLE_BYTES) {
    return bytes.slice(TORCH_PREFIX_BYTES);
  }
  if (version === TORCH_VERSION && kind === TORCH_EXPANDABLE) {
    throw new NotSupportedError(
      `Cannot ${action}: it is PyTorch's for an expandable segment, which only PyTorch can open. Set ` +
        `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False in the process that sends it`,
    );
  }
  throw invalid(action, "handle.byteLength", bytes.byteLength, "64, or 66 for PyTorch's form");
}
