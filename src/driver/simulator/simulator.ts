/** The door of the simulated driver: what every call has in common, and one method for each function. */
import { setTimeout } from "node:timers";
import type { Address, NativeBlock, Size } from "../../../ffi/mod.ts";
import { InvalidArgumentError, SystemCallError } from "../../errors.ts";
import type { CudaDriver, MemAccessDesc, MemAllocationProp, Memcpy2D, MemLocation, MemPoolProps } from "../driver.ts";
import { CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_OPERATING_SYSTEM, CUDA_ERROR_OUT_OF_MEMORY } from "../results.ts";
import { OPAQUE_BYTES } from "../structs.ts";
import { Backing } from "./backing.ts";
import { callNumber, type DriverCall } from "./calls.ts";
import { Control } from "./control.ts";
import { Copies } from "./copy.ts";
import { Devices } from "./device.ts";
import { Events } from "./event.ts";
import { KILL, NO_FAULT } from "./faults.ts";
import { LegacyHandles } from "./legacy.ts";
import { Allocations } from "./memory.ts";
import { killSelf, toNumber } from "./native.ts";
import { Pools } from "./pool.ts";
import { Refusal } from "./refusal.ts";
import { Streams } from "./stream.ts";
import { TableFullError } from "./table.ts";
import { VirtualMemory } from "./vmm.ts";
import type { World } from "./world.ts";

/** How often the queues are looked at while work is pending and nobody calls. */
const SHORT_TICK_MS = 1;
const LONG_TICK_MS = 8;
const SHORT_TICKS = 200;

const MEMORY_ERRNOS = ["ENOMEM", "ENOSPC"];

export class SimulatedDriver implements CudaDriver {
  readonly kind = "simulator" as const;
  readonly out: NativeBlock;
  readonly control: Control;
  readonly #world: World;
  readonly #devices: Devices;
  readonly #streams: Streams;
  readonly #events: Events;
  readonly #pools: Pools;
  readonly #allocations: Allocations;
  readonly #copies: Copies;
  readonly #virtual: VirtualMemory;
  readonly #legacy: LegacyHandles;
  #isTicking = false;

  constructor(world: World) {
    this.#world = world;
    this.out = world.out;
    const backing = new Backing(world);
    this.#streams = new Streams(world);
    this.#events = new Events(world, this.#streams);
    this.#pools = new Pools(world, backing, this.#streams);
    this.#allocations = new Allocations(world, backing, this.#pools, this.#streams);
    this.#devices = new Devices(world, this.#events, this.#allocations);
    this.#copies = new Copies(world, this.#pools, this.#streams);
    this.#virtual = new VirtualMemory(world, backing);
    this.#legacy = new LegacyHandles(world, backing, this.#allocations);
    this.control = new Control(world, backing, this.#streams);
    world.faults.armFromEnvironment();
  }

  /** Every call goes through here: one at a time in the process, with the queues brought up to now. */
  #call(name: DriverCall, body: () => number): number {
    const world = this.#world;
    const { state, queue } = world;
    state.lock();
    try {
      world.call = callNumber(name);
      const fault = world.faults.next(world.call);
      if (fault === KILL) killSelf();
      if (fault !== NO_FAULT) return fault;
      if (state.process.initialized === 0 && name !== "cuInit") return CUDA_ERROR_NOT_INITIALIZED;
      const refusal = world.machine.profile.refusals?.[name];
      if (refusal !== undefined) return refusal;
      queue.advance();
      return body();
    } catch (error) {
      return resultOf(error);
    } finally {
      state.unlock();
      if (queue.hasWork) this.#tick(0);
    }
  }

  /** Time goes on for the devices when nobody calls; the timer does not keep the process alive. */
  #tick(idleTicks: number): void {
    if (this.#isTicking) return;
    this.#isTicking = true;
    setTimeout(() => {
      this.#isTicking = false;
      const { state, queue } = this.#world;
      state.lock();
      let hasMoved: boolean;
      try {
        hasMoved = queue.advance();
      } finally {
        state.unlock();
      }
      if (queue.hasWork) this.#tick(hasMoved ? 0 : idleTicks + 1);
    }, idleTicks < SHORT_TICKS ? SHORT_TICK_MS : LONG_TICK_MS).unref();
  }

  // ---- start and devices

  init(flags: number): number {
    return this.#call("cuInit", () => this.#devices.init(flags));
  }
  driverGetVersion(): number {
    return this.#call("cuDriverGetVersion", () => this.#devices.driverVersion());
  }
  deviceGetCount(): number {
    return this.#call("cuDeviceGetCount", () => this.#devices.count());
  }
  deviceGet(ordinal: number): number {
    return this.#call("cuDeviceGet", () => this.#devices.get(ordinal));
  }
  deviceGetName(device: number): number {
    return this.#call("cuDeviceGetName", () => this.#devices.name(device));
  }
  deviceGetUuid(device: number): number {
    return this.#call("cuDeviceGetUuid", () => this.#devices.uuid(device));
  }
  deviceTotalMem(device: number): number {
    return this.#call("cuDeviceTotalMem", () => this.#devices.totalMemory(device));
  }
  deviceGetAttribute(attribute: number, device: number): number {
    return this.#call("cuDeviceGetAttribute", () => this.#devices.attribute(attribute, device));
  }
  deviceCanAccessPeer(device: number, peer: number): number {
    return this.#call("cuDeviceCanAccessPeer", () => this.#devices.canAccessPeer(device, peer));
  }
  devicePrimaryCtxRetain(device: number): number {
    return this.#call("cuDevicePrimaryCtxRetain", () => this.#devices.retainPrimary(device));
  }
  devicePrimaryCtxRelease(device: number): number {
    return this.#call("cuDevicePrimaryCtxRelease", () => this.#devices.releasePrimary(device));
  }
  ctxSetCurrent(context: Address): number {
    return this.#call("cuCtxSetCurrent", () => this.#devices.setCurrent(toNumber(context)));
  }
  ctxGetCurrent(): number {
    return this.#call("cuCtxGetCurrent", () => this.#devices.getCurrent());
  }
  ctxGetStreamPriorityRange(): number {
    return this.#call("cuCtxGetStreamPriorityRange", () => this.#streams.priorityRange());
  }
  memGetInfo(): number {
    return this.#call("cuMemGetInfo", () => this.#allocations.memoryInfo());
  }

  // ---- streams

  streamCreateWithPriority(flags: number, priority: number): number {
    return this.#call("cuStreamCreateWithPriority", () => this.#streams.create(flags, priority));
  }
  streamDestroy(stream: Address): number {
    return this.#call("cuStreamDestroy", () => this.#streams.destroy(toNumber(stream)));
  }
  streamSynchronize(stream: Address): number {
    return this.#call("cuStreamSynchronize", () => this.#streams.synchronize(toNumber(stream)));
  }
  streamQuery(stream: Address): number {
    return this.#call("cuStreamQuery", () => this.#streams.query(toNumber(stream)));
  }
  streamWaitEvent(stream: Address, event: Address, flags: number): number {
    return this.#call("cuStreamWaitEvent", () => this.#events.wait(toNumber(stream), toNumber(event), flags));
  }
  streamWriteValue64(stream: Address, address: Address, value: bigint, flags: number): number {
    return this.#call(
      "cuStreamWriteValue64",
      () => this.#streams.writeValue64(toNumber(stream), toNumber(address), value, flags),
    );
  }
  streamWaitValue64(stream: Address, address: Address, value: bigint, flags: number): number {
    return this.#call(
      "cuStreamWaitValue64",
      () => this.#streams.waitValue64(toNumber(stream), toNumber(address), value, flags),
    );
  }

  // ---- events

  eventCreate(flags: number): number {
    return this.#call("cuEventCreate", () => this.#events.create(flags));
  }
  eventDestroy(event: Address): number {
    return this.#call("cuEventDestroy", () => this.#events.destroy(toNumber(event)));
  }
  eventRecord(event: Address, stream: Address): number {
    return this.#call("cuEventRecord", () => this.#events.record(toNumber(event), toNumber(stream)));
  }
  eventQuery(event: Address): number {
    return this.#call("cuEventQuery", () => this.#events.query(toNumber(event)));
  }
  eventSynchronize(event: Address): number {
    return this.#call("cuEventSynchronize", () => this.#events.synchronize(toNumber(event)));
  }
  eventElapsedTime(start: Address, end: Address): number {
    return this.#call("cuEventElapsedTime", () => this.#events.elapsedTime(toNumber(start), toNumber(end)));
  }
  ipcGetEventHandle(event: Address): number {
    return this.#call("cuIpcGetEventHandle", () => this.#events.getIpcHandle(toNumber(event)));
  }
  ipcOpenEventHandle(handle: Uint8Array): number {
    return this.#call("cuIpcOpenEventHandle", () => this.#events.openIpcHandle(checkOpaque(handle)));
  }

  // ---- memory pools

  memPoolCreate(props: MemPoolProps): number {
    return this.#call("cuMemPoolCreate", () => this.#pools.create(props));
  }
  memPoolDestroy(pool: Address): number {
    return this.#call("cuMemPoolDestroy", () => this.#pools.destroy(toNumber(pool)));
  }
  memPoolTrimTo(pool: Address, minBytesToKeep: Size): number {
    return this.#call("cuMemPoolTrimTo", () => this.#pools.trim(toNumber(pool), toNumber(minBytesToKeep)));
  }
  memPoolSetAttribute(pool: Address, attribute: number, value: bigint): number {
    return this.#call("cuMemPoolSetAttribute", () => this.#pools.setAttribute(toNumber(pool), attribute, value));
  }
  memPoolGetAttribute(pool: Address, attribute: number): number {
    return this.#call("cuMemPoolGetAttribute", () => this.#pools.getAttribute(toNumber(pool), attribute));
  }
  memPoolSetAccess(pool: Address, accesses: readonly MemAccessDesc[]): number {
    return this.#call("cuMemPoolSetAccess", () => this.#pools.setAccess(toNumber(pool), accesses));
  }
  memPoolGetAccess(pool: Address, location: MemLocation): number {
    return this.#call("cuMemPoolGetAccess", () => this.#pools.getAccess(toNumber(pool), location));
  }
  memAllocFromPoolAsync(byteLength: Size, pool: Address, stream: Address): number {
    return this.#call(
      "cuMemAllocFromPoolAsync",
      () => this.#pools.allocate(toNumber(byteLength), toNumber(pool), toNumber(stream)),
    );
  }
  memFreeAsync(address: Address, stream: Address): number {
    return this.#call("cuMemFreeAsync", () => this.#allocations.freeAsync(toNumber(address), toNumber(stream)));
  }
  memPoolExportToShareableHandle(pool: Address, handleType: number): number {
    return this.#call("cuMemPoolExportToShareableHandle", () => this.#pools.exportHandle(toNumber(pool), handleType));
  }
  memPoolImportFromShareableHandle(handle: Address, handleType: number): number {
    return this.#call("cuMemPoolImportFromShareableHandle", () => this.#pools.importHandle(toNumber(handle), handleType));
  }
  memPoolExportPointer(address: Address): number {
    return this.#call("cuMemPoolExportPointer", () => this.#pools.exportPointer(toNumber(address)));
  }
  memPoolImportPointer(pool: Address, exportData: Uint8Array): number {
    return this.#call("cuMemPoolImportPointer", () => this.#pools.importPointer(toNumber(pool), checkOpaque(exportData)));
  }

  // ---- plain device memory and pointers

  memAlloc(byteLength: Size): number {
    return this.#call("cuMemAlloc", () => this.#allocations.allocate(toNumber(byteLength)));
  }
  memFree(address: Address): number {
    return this.#call("cuMemFree", () => this.#allocations.free(toNumber(address)));
  }
  memGetAddressRange(address: Address): number {
    return this.#call("cuMemGetAddressRange", () => this.#allocations.addressRange(toNumber(address)));
  }
  pointerGetAttribute(attribute: number, address: Address): number {
    return this.#call("cuPointerGetAttribute", () => this.#allocations.pointerAttribute(attribute, toNumber(address)));
  }

  // ---- host memory

  memHostAlloc(byteLength: Size, flags: number): number {
    return this.#call("cuMemHostAlloc", () => this.#allocations.hostAlloc(toNumber(byteLength), flags));
  }
  memFreeHost(address: Address): number {
    return this.#call("cuMemFreeHost", () => this.#allocations.freeHost(toNumber(address)));
  }
  memHostRegister(address: Address, byteLength: Size, flags: number): number {
    return this.#call("cuMemHostRegister", () => this.#allocations.register(toNumber(address), toNumber(byteLength), flags));
  }
  memHostUnregister(address: Address): number {
    return this.#call("cuMemHostUnregister", () => this.#allocations.unregister(toNumber(address)));
  }
  memHostGetDevicePointer(address: Address): number {
    return this.#call("cuMemHostGetDevicePointer", () => this.#allocations.hostDevicePointer(toNumber(address)));
  }

  // ---- copies and fills

  memcpyHtoDAsync(destination: Address, source: Address, byteLength: Size, stream: Address): number {
    return this.#call(
      "cuMemcpyHtoDAsync",
      () => this.#copies.hostToDevice(toNumber(destination), toNumber(source), toNumber(byteLength), toNumber(stream)),
    );
  }
  memcpyDtoHAsync(destination: Address, source: Address, byteLength: Size, stream: Address): number {
    return this.#call(
      "cuMemcpyDtoHAsync",
      () => this.#copies.deviceToHost(toNumber(destination), toNumber(source), toNumber(byteLength), toNumber(stream)),
    );
  }
  memcpyDtoDAsync(destination: Address, source: Address, byteLength: Size, stream: Address): number {
    return this.#call(
      "cuMemcpyDtoDAsync",
      () => this.#copies.deviceToDevice(toNumber(destination), toNumber(source), toNumber(byteLength), toNumber(stream)),
    );
  }
  memcpyAsync(destination: Address, source: Address, byteLength: Size, stream: Address): number {
    return this.#call(
      "cuMemcpyAsync",
      () => this.#copies.unified(toNumber(destination), toNumber(source), toNumber(byteLength), toNumber(stream)),
    );
  }
  memcpyPeerAsync(
    destination: Address,
    destinationContext: Address,
    source: Address,
    sourceContext: Address,
    byteLength: Size,
    stream: Address,
  ): number {
    return this.#call("cuMemcpyPeerAsync", () => {
      this.#devices.resolveContext(toNumber(destinationContext));
      this.#devices.resolveContext(toNumber(sourceContext));
      return this.#copies.deviceToDevice(toNumber(destination), toNumber(source), toNumber(byteLength), toNumber(stream));
    });
  }
  memcpy2DAsync(copy: Memcpy2D, stream: Address): number {
    return this.#call("cuMemcpy2DAsync", () => this.#copies.copy2D(copy, toNumber(stream)));
  }
  memsetD8Async(destination: Address, value: number, count: Size, stream: Address): number {
    return this.#call("cuMemsetD8Async", () => this.#fill(1, destination, value, count, stream));
  }
  memsetD16Async(destination: Address, value: number, count: Size, stream: Address): number {
    return this.#call("cuMemsetD16Async", () => this.#fill(2, destination, value, count, stream));
  }
  memsetD32Async(destination: Address, value: number, count: Size, stream: Address): number {
    return this.#call("cuMemsetD32Async", () => this.#fill(4, destination, value, count, stream));
  }
  memsetD2D8Async(destination: Address, pitch: Size, value: number, width: Size, height: Size, stream: Address): number {
    return this.#call("cuMemsetD2D8Async", () => this.#fill2D(1, destination, pitch, value, width, height, stream));
  }
  memsetD2D16Async(destination: Address, pitch: Size, value: number, width: Size, height: Size, stream: Address): number {
    return this.#call("cuMemsetD2D16Async", () => this.#fill2D(2, destination, pitch, value, width, height, stream));
  }
  memsetD2D32Async(destination: Address, pitch: Size, value: number, width: Size, height: Size, stream: Address): number {
    return this.#call("cuMemsetD2D32Async", () => this.#fill2D(4, destination, pitch, value, width, height, stream));
  }

  #fill(elementBytes: number, destination: Address, value: number, count: Size, stream: Address): number {
    return this.#copies.fill(elementBytes, toNumber(destination), 0, value, toNumber(count), 1, toNumber(stream));
  }
  #fill2D(
    elementBytes: number,
    destination: Address,
    pitch: Size,
    value: number,
    width: Size,
    height: Size,
    stream: Address,
  ): number {
    const [rowPitch, elements, rows] = [toNumber(pitch), toNumber(width), toNumber(height)];
    return this.#copies.fill(elementBytes, toNumber(destination), rowPitch, value, elements, rows, toNumber(stream));
  }

  // ---- virtual memory

  memCreate(byteLength: Size, prop: MemAllocationProp): number {
    return this.#call("cuMemCreate", () => this.#virtual.create(toNumber(byteLength), prop));
  }
  memRelease(handle: Address): number {
    return this.#call("cuMemRelease", () => this.#virtual.release(toNumber(handle)));
  }
  memRetainAllocationHandle(address: Address): number {
    return this.#call("cuMemRetainAllocationHandle", () => this.#virtual.retain(toNumber(address)));
  }
  memAddressReserve(byteLength: Size, alignment: Size, _address: Address): number {
    return this.#call("cuMemAddressReserve", () => this.#virtual.reserve(toNumber(byteLength), toNumber(alignment)));
  }
  memAddressFree(address: Address, byteLength: Size): number {
    return this.#call("cuMemAddressFree", () => this.#virtual.free(toNumber(address), toNumber(byteLength)));
  }
  memMap(address: Address, byteLength: Size, byteOffset: Size, handle: Address): number {
    return this.#call(
      "cuMemMap",
      () => this.#virtual.map(toNumber(address), toNumber(byteLength), toNumber(byteOffset), toNumber(handle)),
    );
  }
  memUnmap(address: Address, byteLength: Size): number {
    return this.#call("cuMemUnmap", () => this.#virtual.unmap(toNumber(address), toNumber(byteLength)));
  }
  memSetAccess(address: Address, byteLength: Size, accesses: readonly MemAccessDesc[]): number {
    return this.#call("cuMemSetAccess", () => this.#virtual.setAccess(toNumber(address), toNumber(byteLength), accesses));
  }
  memGetAccess(location: MemLocation, address: Address): number {
    return this.#call("cuMemGetAccess", () => this.#virtual.getAccess(location, toNumber(address)));
  }
  memExportToShareableHandle(handle: Address, handleType: number): number {
    return this.#call("cuMemExportToShareableHandle", () => this.#virtual.exportHandle(toNumber(handle), handleType));
  }
  memImportFromShareableHandle(osHandle: Address | Uint8Array, handleType: number): number {
    const handle = osHandle instanceof Uint8Array ? checkOpaque(osHandle) : toNumber(osHandle);
    return this.#call("cuMemImportFromShareableHandle", () => this.#virtual.importHandle(handle, handleType));
  }
  memGetAllocationGranularity(prop: MemAllocationProp, option: number): number {
    return this.#call("cuMemGetAllocationGranularity", () => this.#virtual.granularity(prop, option));
  }

  // ---- legacy handles

  ipcGetMemHandle(address: Address): number {
    return this.#call("cuIpcGetMemHandle", () => this.#legacy.get(toNumber(address)));
  }
  ipcOpenMemHandle(handle: Uint8Array, flags: number): number {
    return this.#call("cuIpcOpenMemHandle", () => this.#legacy.open(checkOpaque(handle), flags));
  }
  ipcCloseMemHandle(address: Address): number {
    return this.#call("cuIpcCloseMemHandle", () => this.#legacy.close(toNumber(address)));
  }
}

/** What stopped a call, as the driver would say it. Anything else is an error of the simulator itself. */
function resultOf(error: unknown): number {
  if (error instanceof Refusal) return error.code;
  if (error instanceof TableFullError) return CUDA_ERROR_OUT_OF_MEMORY;
  if (error instanceof SystemCallError) {
    return MEMORY_ERRNOS.includes(error.errnoName) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
  }
  throw error;
}

function checkOpaque(bytes: Uint8Array): Uint8Array {
  if (bytes.byteLength !== OPAQUE_BYTES) {
    throw new InvalidArgumentError(`Cannot pass ${bytes.byteLength} opaque bytes to the driver, expected ${OPAQUE_BYTES}`);
  }
  return bytes;
}
