/**
 * The driver through libcuda. Every symbol is called from exactly one place: with two callees at one call site Deno
 * loses its fast path (4 ns -> 53 ns), so there is no dispatch table here.
 */
import { isAbsolute } from "node:path";
import process from "node:process";
import { NativeBlock, type NativeLibrary, openLibrary, systemDirectory, toSize, writeStruct } from "../../ffi/mod.ts";
import type { Address, Size } from "../../ffi/mod.ts";
import { DriverNotFoundError, InvalidArgumentError, LibraryNotFoundError } from "../errors.ts";
import type { CudaDriver, MemAccessDesc, MemAllocationProp, Memcpy2D, MemLocation, MemPoolProps } from "./driver.ts";
import { CUDA_ERROR_NOT_FOUND } from "./results.ts";
import {
  CU_MEM_ACCESS_DESC,
  CU_MEM_ALLOCATION_PROP,
  CU_MEM_LOCATION,
  CU_MEM_POOL_PROPS,
  CUDA_MEMCPY2D,
  OPAQUE_BYTES,
} from "./structs.ts";
import { DRIVER_SYMBOLS } from "./symbols.ts";

const OUT_BYTES = 256;
const NAME_BYTES = 256;
/** One access description for each device; no machine has more. */
const MAX_ACCESS_DESCS = 64;
const IN_BYTES = Math.max(CUDA_MEMCPY2D.byteLength, MAX_ACCESS_DESCS * CU_MEM_ACCESS_DESC.byteLength);

/**
 * Where libcuda may be, best first: the loader's own search, then the places of distributions, containers, WSL and
 * NixOS. `override` (CUDA_IPC_LIBCUDA) replaces the list and must be absolute.
 */
export function libcudaCandidates(override: string | undefined): readonly string[] {
  if (override !== undefined && override !== "") {
    if (!isAbsolute(override)) {
      throw new InvalidArgumentError(`Cannot open the driver: CUDA_IPC_LIBCUDA is "${override}", expected an absolute path`);
    }
    return [override];
  }
  if (process.platform === "win32") return [`${systemDirectory()}\\nvcuda.dll`];
  const triplet = process.arch === "arm64" ? "aarch64-linux-gnu" : "x86_64-linux-gnu";
  return [
    "libcuda.so.1",
    `/usr/lib/${triplet}/libcuda.so.1`,
    "/usr/lib64/libcuda.so.1",
    "/usr/lib/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
    "/run/opengl-driver/lib/libcuda.so.1",
  ];
}

/** Opens libcuda. Throws DriverNotFoundError, which says what was tried and what to do. */
export function createNativeDriver(override: string | undefined): CudaDriver {
  const candidates = libcudaCandidates(override);
  try {
    return new NativeDriver(openLibrary("the CUDA driver", candidates, DRIVER_SYMBOLS));
  } catch (cause) {
    if (!(cause instanceof LibraryNotFoundError)) throw cause;
    throw new DriverNotFoundError(
      `Cannot open the CUDA driver. ${cause.attempts[0]}. Install NVIDIA's driver (version 525 or newer), or set ` +
        `CUDA_IPC_LIBCUDA to the absolute path of libcuda, or choose the simulator (CUDA_IPC_DRIVER=simulator). ` +
        `In Deno, run with --allow-ffi`,
      { cause },
    );
  }
}

class NativeDriver implements CudaDriver {
  readonly kind = "cuda" as const;
  readonly out: NativeBlock = new NativeBlock(OUT_BYTES + NAME_BYTES);
  readonly #in: NativeBlock = new NativeBlock(IN_BYTES);
  readonly #lib: NativeLibrary<typeof DRIVER_SYMBOLS>;
  readonly #out0: Address = this.out.addressAt(0);
  readonly #out8: Address = this.out.addressAt(8);
  readonly #in0: Address = this.#in.addressAt(0);

  constructor(lib: NativeLibrary<typeof DRIVER_SYMBOLS>) {
    this.#lib = lib;
  }

  /** The driver writes 4 of the 8 bytes for some attributes: the rest must not be left from an earlier call. */
  #clearOut(): void {
    this.out.writeU64(0, 0n);
  }

  #writeAccesses(accesses: readonly MemAccessDesc[]): Size {
    if (accesses.length > MAX_ACCESS_DESCS) {
      throw new InvalidArgumentError(`Cannot set access for ${accesses.length} devices, expected at most ${MAX_ACCESS_DESCS}`);
    }
    accesses.forEach((desc, index) => writeStruct(this.#in, index * CU_MEM_ACCESS_DESC.byteLength, CU_MEM_ACCESS_DESC, desc));
    return toSize(accesses.length);
  }

  #writeOpaque(bytes: Uint8Array): Address {
    if (bytes.byteLength !== OPAQUE_BYTES) {
      throw new InvalidArgumentError(`Cannot pass ${bytes.byteLength} opaque bytes to the driver, expected ${OPAQUE_BYTES}`);
    }
    this.#in.bytes.set(bytes);
    return this.#in0;
  }

  // ---- start and devices

  init(flags: number): number {
    return this.#lib.cuInit(flags);
  }
  driverGetVersion(): number {
    return this.#lib.cuDriverGetVersion(this.#out0);
  }
  deviceGetCount(): number {
    return this.#lib.cuDeviceGetCount(this.#out0);
  }
  deviceGet(ordinal: number): number {
    return this.#lib.cuDeviceGet(this.#out0, ordinal);
  }
  deviceGetName(device: number): number {
    return this.#lib.cuDeviceGetName(this.#out0, NAME_BYTES, device);
  }
  deviceGetUuid(device: number): number {
    return this.#lib.cuDeviceGetUuid_v2(this.#out0, device);
  }
  deviceTotalMem(device: number): number {
    return this.#lib.cuDeviceTotalMem_v2(this.#out0, device);
  }
  deviceGetAttribute(attribute: number, device: number): number {
    return this.#lib.cuDeviceGetAttribute(this.#out0, attribute, device);
  }
  deviceCanAccessPeer(device: number, peer: number): number {
    return this.#lib.cuDeviceCanAccessPeer(this.#out0, device, peer);
  }
  devicePrimaryCtxRetain(device: number): number {
    return this.#lib.cuDevicePrimaryCtxRetain(this.#out0, device);
  }
  devicePrimaryCtxRelease(device: number): number {
    return this.#lib.cuDevicePrimaryCtxRelease_v2(device);
  }
  ctxSetCurrent(context: Address): number {
    return this.#lib.cuCtxSetCurrent(context);
  }
  ctxGetCurrent(): number {
    return this.#lib.cuCtxGetCurrent(this.#out0);
  }
  ctxGetStreamPriorityRange(): number {
    return this.#lib.cuCtxGetStreamPriorityRange(this.#out0, this.#out8);
  }
  memGetInfo(): number {
    return this.#lib.cuMemGetInfo_v2(this.#out0, this.#out8);
  }

  // ---- streams

  streamCreateWithPriority(flags: number, priority: number): number {
    return this.#lib.cuStreamCreateWithPriority(this.#out0, flags, priority);
  }
  streamDestroy(stream: Address): number {
    return this.#lib.cuStreamDestroy_v2(stream);
  }
  streamSynchronize(stream: Address): number {
    return this.#lib.cuStreamSynchronize(stream);
  }
  streamQuery(stream: Address): number {
    return this.#lib.cuStreamQuery(stream);
  }
  streamWaitEvent(stream: Address, event: Address, flags: number): number {
    return this.#lib.cuStreamWaitEvent(stream, event, flags);
  }
  streamWriteValue64(stream: Address, address: Address, value: bigint, flags: number): number {
    const write = this.#lib.cuStreamWriteValue64_v2;
    return write === null ? CUDA_ERROR_NOT_FOUND : write(stream, address, value, flags);
  }
  streamWaitValue64(stream: Address, address: Address, value: bigint, flags: number): number {
    const wait = this.#lib.cuStreamWaitValue64_v2;
    return wait === null ? CUDA_ERROR_NOT_FOUND : wait(stream, address, value, flags);
  }

  // ---- events

  eventCreate(flags: number): number {
    return this.#lib.cuEventCreate(this.#out0, flags);
  }
  eventDestroy(event: Address): number {
    return this.#lib.cuEventDestroy_v2(event);
  }
  eventRecord(event: Address, stream: Address): number {
    return this.#lib.cuEventRecord(event, stream);
  }
  eventQuery(event: Address): number {
    return this.#lib.cuEventQuery(event);
  }
  eventSynchronize(event: Address): number {
    return this.#lib.cuEventSynchronize(event);
  }
  eventElapsedTime(start: Address, end: Address): number {
    const elapsed = this.#lib.cuEventElapsedTime_v2; // from CUDA 12.8 on; the same prototype
    return elapsed === null ? this.#lib.cuEventElapsedTime(this.#out0, start, end) : elapsed(this.#out0, start, end);
  }
  ipcGetEventHandle(event: Address): number {
    return this.#lib.cuIpcGetEventHandle(this.#out0, event);
  }
  ipcOpenEventHandle(handle: Uint8Array): number {
    return this.#lib.cuIpcOpenEventHandle(this.#out0, handle);
  }

  // ---- memory pools

  memPoolCreate(props: MemPoolProps): number {
    writeStruct(this.#in, 0, CU_MEM_POOL_PROPS, props);
    return this.#lib.cuMemPoolCreate(this.#out0, this.#in0);
  }
  memPoolDestroy(pool: Address): number {
    return this.#lib.cuMemPoolDestroy(pool);
  }
  memPoolTrimTo(pool: Address, minBytesToKeep: Size): number {
    return this.#lib.cuMemPoolTrimTo(pool, minBytesToKeep);
  }
  memPoolSetAttribute(pool: Address, attribute: number, value: bigint): number {
    this.#in.writeU64(0, value);
    return this.#lib.cuMemPoolSetAttribute(pool, attribute, this.#in0);
  }
  memPoolGetAttribute(pool: Address, attribute: number): number {
    this.#clearOut();
    return this.#lib.cuMemPoolGetAttribute(pool, attribute, this.#out0);
  }
  memPoolSetAccess(pool: Address, accesses: readonly MemAccessDesc[]): number {
    const count = this.#writeAccesses(accesses);
    return this.#lib.cuMemPoolSetAccess(pool, this.#in0, count);
  }
  memPoolGetAccess(pool: Address, location: MemLocation): number {
    writeStruct(this.#in, 0, CU_MEM_LOCATION, location);
    return this.#lib.cuMemPoolGetAccess(this.#out0, pool, this.#in0);
  }
  memAllocFromPoolAsync(byteLength: Size, pool: Address, stream: Address): number {
    return this.#lib.cuMemAllocFromPoolAsync(this.#out0, byteLength, pool, stream);
  }
  memFreeAsync(address: Address, stream: Address): number {
    return this.#lib.cuMemFreeAsync(address, stream);
  }
  memPoolExportToShareableHandle(pool: Address, handleType: number): number {
    this.#clearOut();
    return this.#lib.cuMemPoolExportToShareableHandle(this.#out0, pool, handleType, 0n);
  }
  memPoolImportFromShareableHandle(handle: Address, handleType: number): number {
    return this.#lib.cuMemPoolImportFromShareableHandle(this.#out0, handle, handleType, 0n);
  }
  memPoolExportPointer(address: Address): number {
    return this.#lib.cuMemPoolExportPointer(this.#out0, address);
  }
  memPoolImportPointer(pool: Address, exportData: Uint8Array): number {
    const data = this.#writeOpaque(exportData);
    return this.#lib.cuMemPoolImportPointer(this.#out0, pool, data);
  }

  // ---- plain device memory and pointers

  memAlloc(byteLength: Size): number {
    return this.#lib.cuMemAlloc_v2(this.#out0, byteLength);
  }
  memFree(address: Address): number {
    return this.#lib.cuMemFree_v2(address);
  }
  memGetAddressRange(address: Address): number {
    return this.#lib.cuMemGetAddressRange_v2(this.#out0, this.#out8, address);
  }
  pointerGetAttribute(attribute: number, address: Address): number {
    this.#clearOut();
    return this.#lib.cuPointerGetAttribute(this.#out0, attribute, address);
  }

  // ---- host memory

  memHostAlloc(byteLength: Size, flags: number): number {
    return this.#lib.cuMemHostAlloc(this.#out0, byteLength, flags);
  }
  memFreeHost(address: Address): number {
    return this.#lib.cuMemFreeHost(address);
  }
  memHostRegister(address: Address, byteLength: Size, flags: number): number {
    return this.#lib.cuMemHostRegister_v2(address, byteLength, flags);
  }
  memHostUnregister(address: Address): number {
    return this.#lib.cuMemHostUnregister(address);
  }
  memHostGetDevicePointer(address: Address): number {
    return this.#lib.cuMemHostGetDevicePointer_v2(this.#out0, address, 0);
  }

  // ---- copies and fills

  memcpyHtoDAsync(destination: Address, source: Address, byteLength: Size, stream: Address): number {
    return this.#lib.cuMemcpyHtoDAsync_v2(destination, source, byteLength, stream);
  }
  memcpyDtoHAsync(destination: Address, source: Address, byteLength: Size, stream: Address): number {
    return this.#lib.cuMemcpyDtoHAsync_v2(destination, source, byteLength, stream);
  }
  memcpyDtoDAsync(destination: Address, source: Address, byteLength: Size, stream: Address): number {
    return this.#lib.cuMemcpyDtoDAsync_v2(destination, source, byteLength, stream);
  }
  memcpyAsync(destination: Address, source: Address, byteLength: Size, stream: Address): number {
    return this.#lib.cuMemcpyAsync(destination, source, byteLength, stream);
  }
  memcpyPeerAsync(
    destination: Address,
    destinationContext: Address,
    source: Address,
    sourceContext: Address,
    byteLength: Size,
    stream: Address,
  ): number {
    return this.#lib.cuMemcpyPeerAsync(destination, destinationContext, source, sourceContext, byteLength, stream);
  }
  memcpy2DAsync(copy: Memcpy2D, stream: Address): number {
    writeStruct(this.#in, 0, CUDA_MEMCPY2D, copy);
    return this.#lib.cuMemcpy2DAsync_v2(this.#in0, stream);
  }
  memsetD8Async(destination: Address, value: number, count: Size, stream: Address): number {
    return this.#lib.cuMemsetD8Async(destination, value, count, stream);
  }
  memsetD16Async(destination: Address, value: number, count: Size, stream: Address): number {
    return this.#lib.cuMemsetD16Async(destination, value, count, stream);
  }
  memsetD32Async(destination: Address, value: number, count: Size, stream: Address): number {
    return this.#lib.cuMemsetD32Async(destination, value, count, stream);
  }
  memsetD2D8Async(destination: Address, pitch: Size, value: number, width: Size, height: Size, stream: Address): number {
    return this.#lib.cuMemsetD2D8Async(destination, pitch, value, width, height, stream);
  }
  memsetD2D16Async(destination: Address, pitch: Size, value: number, width: Size, height: Size, stream: Address): number {
    return this.#lib.cuMemsetD2D16Async(destination, pitch, value, width, height, stream);
  }
  memsetD2D32Async(destination: Address, pitch: Size, value: number, width: Size, height: Size, stream: Address): number {
    return this.#lib.cuMemsetD2D32Async(destination, pitch, value, width, height, stream);
  }

  // ---- virtual memory

  memCreate(byteLength: Size, prop: MemAllocationProp): number {
    writeStruct(this.#in, 0, CU_MEM_ALLOCATION_PROP, prop);
    return this.#lib.cuMemCreate(this.#out0, byteLength, this.#in0, 0n);
  }
  memRelease(handle: Address): number {
    return this.#lib.cuMemRelease(handle);
  }
  memRetainAllocationHandle(address: Address): number {
    return this.#lib.cuMemRetainAllocationHandle(this.#out0, address);
  }
  memAddressReserve(byteLength: Size, alignment: Size, address: Address): number {
    return this.#lib.cuMemAddressReserve(this.#out0, byteLength, alignment, address, 0n);
  }
  memAddressFree(address: Address, byteLength: Size): number {
    return this.#lib.cuMemAddressFree(address, byteLength);
  }
  memMap(address: Address, byteLength: Size, byteOffset: Size, handle: Address): number {
    return this.#lib.cuMemMap(address, byteLength, byteOffset, handle, 0n);
  }
  memUnmap(address: Address, byteLength: Size): number {
    return this.#lib.cuMemUnmap(address, byteLength);
  }
  memSetAccess(address: Address, byteLength: Size, accesses: readonly MemAccessDesc[]): number {
    const count = this.#writeAccesses(accesses);
    return this.#lib.cuMemSetAccess(address, byteLength, this.#in0, count);
  }
  memGetAccess(location: MemLocation, address: Address): number {
    writeStruct(this.#in, 0, CU_MEM_LOCATION, location);
    return this.#lib.cuMemGetAccess(this.#out0, this.#in0, address);
  }
  memExportToShareableHandle(handle: Address, handleType: number): number {
    this.#clearOut();
    return this.#lib.cuMemExportToShareableHandle(this.#out0, handle, handleType, 0n);
  }
  memImportFromShareableHandle(osHandle: Address | Uint8Array, handleType: number): number {
    const handle = osHandle instanceof Uint8Array ? this.#writeOpaque(osHandle) : osHandle;
    return this.#lib.cuMemImportFromShareableHandle(this.#out0, handle, handleType);
  }
  memGetAllocationGranularity(prop: MemAllocationProp, option: number): number {
    writeStruct(this.#in, 0, CU_MEM_ALLOCATION_PROP, prop);
    return this.#lib.cuMemGetAllocationGranularity(this.#out0, this.#in0, option);
  }

  // ---- legacy handles

  ipcGetMemHandle(address: Address): number {
    return this.#lib.cuIpcGetMemHandle(this.#out0, address);
  }
  ipcOpenMemHandle(handle: Uint8Array, flags: number): number {
    return this.#lib.cuIpcOpenMemHandle_v2(this.#out0, handle, flags);
  }
  ipcCloseMemHandle(address: Address): number {
    return this.#lib.cuIpcCloseMemHandle(address);
  }
}
