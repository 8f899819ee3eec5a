/** Opening a buffer of a pool by its descriptor: everything that arrives is checked before the driver sees it. */
import { Action, invalid } from "../arguments.ts";
import type { Device } from "../device.ts";
import { check } from "../driver/check.ts";
import { DeviceNotVisibleError, InvalidArgumentError, ProtocolError, SameProcessError } from "../errors.ts";
import { nativeStream } from "../native_stream.ts";
import { ownIdentity } from "../os/process.ts";
import { ImportedMapping } from "../share/import_registry.ts";
import type { CudaStream } from "../stream.ts";
import { type BufferDescriptor, opaqueOf } from "../wire/descriptor.ts";
import { isSameProcess } from "../wire/identity.ts";
import { MAX_POOL_ALLOCATION_BYTES } from "../wire/limits.ts";
import { type Allocation, ImportedAllocation } from "./allocation.ts";
import { exportedRange } from "./export_layout.ts";
import { importLimitError } from "./import_limit.ts";
import { importAt, isPlaceEnding } from "./import_place.ts";
import type { NativeHostPool } from "./native_host_pool.ts";
import type { NativePool } from "./native_pool.ts";
import { withStream } from "./own_stream.ts";

/** A mapping of another process's allocation; in the exporter's own process the allocation itself. */
export function openFromPool(
  native: NativePool,
  device: Device,
  descriptor: BufferDescriptor,
  given: CudaStream | undefined,
): Allocation {
  const action = new Action("import a buffer from", native);
  const stream = nativeStream(given, action);
  if (!native.isAccessibleFrom(stream.context)) {
    throw new InvalidArgumentError(
      `Cannot ${action}: the stream belongs to ${stream.context}. Use a stream of the pool's device, or pool.setPeerAccess()`,
    );
  }
  checkKind(descriptor, native, action);
  if (descriptor.deviceUuid !== device.uuid) {
    throw new DeviceNotVisibleError(
      `Cannot ${action}: its memory is on ${descriptor.deviceUuid}, the pool's on ${device.uuid}`,
    );
  }
  checkPoolId(descriptor, native, action);
  if (!native.isImported) return findOwn(native.exported, descriptor, action);
  if (descriptor.allocationByteLength > MAX_POOL_ALLOCATION_BYTES) {
    throw importLimitError(action, descriptor.allocationByteLength);
  }
  const { context } = native;
  const range = exportedRange(context, descriptor, device.totalMemoryBytes);
  context.makeCurrent();
  const { driver } = context;
  const mapping = importAt(native, range, action, () => {
    check(driver.memPoolImportPointer(native.handle, opaqueOf(descriptor)), "cuMemPoolImportPointer", native);
    const address = driver.out.readAddress(0);
    const mapping = ImportedMapping.at(driver, native.handle, address) ??
      ImportedMapping.add(driver, native.handle, address, descriptor.allocationByteLength, range);
    mapping.addUser(descriptor.generation);
    return mapping;
  });
  return new ImportedAllocation(native, descriptor, mapping, stream);
}

/** Whether memory that was given up here, and waits for its streams' work, is in the way of an import. */
export function mustImportLater(native: NativePool, device: Device, descriptor: BufferDescriptor): boolean {
  return native.isImported && isPlaceEnding(native, exportedRange(native.context, descriptor, device.totalMemoryBytes));
}

/** Opens host memory, where a stream is not needed. */
export function openFromHostPool(
  native: NativeHostPool,
  descriptor: BufferDescriptor,
  given: CudaStream | undefined,
): Allocation {
  const action = new Action("import a buffer from", native);
  if (descriptor.memoryKind !== "host") throw invalid(action, "descriptor.memoryKind", descriptor.memoryKind, '"host"');
  checkPoolId(descriptor, native, action);
  if (!native.isImported) return findOwn(native.exported, descriptor, action);
  return withStream(native.context, given, action, (stream) => native.open(descriptor, stream, action));
}

function checkKind({ memoryKind }: BufferDescriptor, native: NativePool, action: Action): void {
  if (memoryKind === "pool" || (memoryKind === "virtual" && !native.isImported)) return;
  if (memoryKind !== "virtual") throw invalid(action, "descriptor.memoryKind", memoryKind, '"pool"');
  throw new InvalidArgumentError(
    `Cannot ${action}: its memory is virtual, which a pool's handle does not open. Use DeviceBuffer.importVirtual with ` +
      `what the exporter's buffer.exportHandles() gave`,
  );
}

function checkPoolId({ poolId }: BufferDescriptor, native: { readonly id: string }, action: Action): void {
  if (native.id !== "" && poolId !== null && poolId !== native.id) {
    throw invalid(action, "descriptor.poolId", poolId, `the pool's id ${native.id}`);
  }
}

/** Interprocess objects do not work within a process, and are not needed there. */
function findOwn(exported: ReadonlyMap<number, Allocation>, descriptor: BufferDescriptor, action: Action): Allocation {
  if (!isSameProcess(descriptor.exporter, ownIdentity())) {
    throw new InvalidArgumentError(
      `Cannot ${action}: the descriptor comes from process ${descriptor.exporter.pid}, this pool is our own`,
    );
  }
  const original = exported.get(descriptor.generation);
  if (original === undefined) {
    throw new SameProcessError(`Cannot ${action}: this process exported it and has freed it since. Use the original buffer`);
  }
  if (descriptor.allocationByteLength !== original.byteLength) {
    throw new ProtocolError(
      `Cannot ${action}: the descriptor names an allocation of ${descriptor.allocationByteLength} bytes, it has ${original.byteLength}`,
    );
  }
  original.hold();
  return original;
}
