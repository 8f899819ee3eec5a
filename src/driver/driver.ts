/**
 * The seam between this module and a driver: one method per driver function, in the driver's own vocabulary and order.
 * Two implementations: `native.ts` (libcuda) and `simulator/` (no GPU).
 *
 * @module
 */
import type { Address, NativeBlock, Size, StructValues } from "../../ffi/mod.ts";
import type { CU_MEM_ACCESS_DESC, CU_MEM_ALLOCATION_PROP, CU_MEM_LOCATION, CU_MEM_POOL_PROPS, CUDA_MEMCPY2D } from "./structs.ts";

export type MemPoolProps = StructValues<typeof CU_MEM_POOL_PROPS>;
export type MemLocation = StructValues<typeof CU_MEM_LOCATION>;
export type MemAccessDesc = StructValues<typeof CU_MEM_ACCESS_DESC>;
export type MemAllocationProp = StructValues<typeof CU_MEM_ALLOCATION_PROP>;
export type Memcpy2D = StructValues<typeof CUDA_MEMCPY2D>;

/** An opened CUDA driver, from `openDriver`: libcuda or the simulator. */
export interface Driver {
  /** Which one it is. */
  readonly kind: "cuda" | "simulator";
}

/**
 * A CUDA driver as this module calls it. Each method returns the CUresult number and never throws for a driver's refusal; `check` turns the
 * number into an error. What C writes through out-parameters lands in `out`, the first at byte 0, the second at byte 8
 * (blocks of 16 or 64 bytes at byte 0), and is read before the next call.
 */
export interface CudaDriver extends Driver {
  /** Where out-parameters land. Valid until the next call of this driver. */
  readonly out: NativeBlock;

  // ---- start and devices
  init(flags: number): number;
  driverGetVersion(): number; // i32
  deviceGetCount(): number; // i32
  deviceGet(ordinal: number): number; // i32
  deviceGetName(device: number): number; // NUL-terminated text
  deviceGetUuid(device: number): number; // 16 bytes
  deviceTotalMem(device: number): number; // size
  deviceGetAttribute(attribute: number, device: number): number; // i32
  deviceCanAccessPeer(device: number, peer: number): number; // i32
  devicePrimaryCtxRetain(device: number): number; // address
  devicePrimaryCtxRelease(device: number): number;
  ctxSetCurrent(context: Address): number;
  ctxGetCurrent(): number; // address
  ctxGetStreamPriorityRange(): number; // i32 least at 0, i32 greatest at 8
  memGetInfo(): number; // size free at 0, size total at 8

  // ---- streams
  streamCreateWithPriority(flags: number, priority: number): number; // address
  streamDestroy(stream: Address): number;
  streamSynchronize(stream: Address): number;
  streamQuery(stream: Address): number;
  streamWaitEvent(stream: Address, event: Address, flags: number): number;
  /** 500 (NOT_FOUND) where the driver is too old to have it. */
  streamWriteValue64(stream: Address, address: Address, value: bigint, flags: number): number;
  /** 500 (NOT_FOUND) where the driver is too old to have it. */
  streamWaitValue64(stream: Address, address: Address, value: bigint, flags: number): number;

  // ---- events
  eventCreate(flags: number): number; // address
  eventDestroy(event: Address): number;
  eventRecord(event: Address, stream: Address): number;
  eventQuery(event: Address): number;
  eventSynchronize(event: Address): number;
  eventElapsedTime(start: Address, end: Address): number; // float, milliseconds
  ipcGetEventHandle(event: Address): number; // 64 bytes
  ipcOpenEventHandle(handle: Uint8Array): number; // address

  // ---- memory pools
  memPoolCreate(props: MemPoolProps): number; // address
  memPoolDestroy(pool: Address): number;
  memPoolTrimTo(pool: Address, minBytesToKeep: Size): number;
  memPoolSetAttribute(pool: Address, attribute: number, value: bigint): number;
  memPoolGetAttribute(pool: Address, attribute: number): number; // i32 or u64, zero-extended
  memPoolSetAccess(pool: Address, accesses: readonly MemAccessDesc[]): number;
  memPoolGetAccess(pool: Address, location: MemLocation): number; // u32
  memAllocFromPoolAsync(byteLength: Size, pool: Address, stream: Address): number; // address
  memFreeAsync(address: Address, stream: Address): number;
  memPoolExportToShareableHandle(pool: Address, handleType: number): number; // i32 fd, or a HANDLE as address
  memPoolImportFromShareableHandle(handle: Address, handleType: number): number; // address
  memPoolExportPointer(address: Address): number; // 64 bytes
  memPoolImportPointer(pool: Address, exportData: Uint8Array): number; // address

  // ---- plain device memory and pointers
  memAlloc(byteLength: Size): number; // address
  memFree(address: Address): number;
  memGetAddressRange(address: Address): number; // address base at 0, size at 8
  pointerGetAttribute(attribute: number, address: Address): number; // i32, u64 or address, zero-extended

  // ---- host memory
  memHostAlloc(byteLength: Size, flags: number): number; // address
  memFreeHost(address: Address): number;
  memHostRegister(address: Address, byteLength: Size, flags: number): number;
  memHostUnregister(address: Address): number;
  memHostGetDevicePointer(address: Address): number; // address

  // ---- copies and fills
  memcpyHtoDAsync(destination: Address, source: Address, byteLength: Size, stream: Address): number;
  memcpyDtoHAsync(destination: Address, source: Address, byteLength: Size, stream: Address): number;
  memcpyDtoDAsync(destination: Address, source: Address, byteLength: Size, stream: Address): number;
  /** Finds out by itself what kind of memory either side is. */
  memcpyAsync(destination: Address, source: Address, byteLength: Size, stream: Address): number;
  memcpyPeerAsync(
    destination: Address,
    destinationContext: Address,
    source: Address,
    sourceContext: Address,
    byteLength: Size,
    stream: Address,
  ): number;
  memcpy2DAsync(copy: Memcpy2D, stream: Address): number;
  memsetD8Async(destination: Address, value: number, count: Size, stream: Address): number;
  memsetD16Async(destination: Address, value: number, count: Size, stream: Address): number;
  memsetD32Async(destination: Address, value: number, count: Size, stream: Address): number;
  memsetD2D8Async(destination: Address, pitch: Size, value: number, width: Size, height: Size, stream: Address): number;
  memsetD2D16Async(destination: Address, pitch: Size, value: number, width: Size, height: Size, stream: Address): number;
  memsetD2D32Async(destination: Address, pitch: Size, value: number, width: Size, height: Size, stream: Address): number;

  // ---- virtual memory
  memCreate(byteLength: Size, prop: MemAllocationProp): number; // address
  memRelease(handle: Address): number;
  memRetainAllocationHandle(address: Address): number; // address
  memAddressReserve(byteLength: Size, alignment: Size, address: Address): number; // address
  memAddressFree(address: Address, byteLength: Size): number;
  memMap(address: Address, byteLength: Size, byteOffset: Size, handle: Address): number;
  memUnmap(address: Address, byteLength: Size): number;
  memSetAccess(address: Address, byteLength: Size, accesses: readonly MemAccessDesc[]): number;
  memGetAccess(location: MemLocation, address: Address): number; // u64
  /** An fd as i32, a HANDLE as address, or a fabric handle of 64 bytes. */
  memExportToShareableHandle(handle: Address, handleType: number): number;
  /** `osHandle` is an fd or HANDLE as an address, or the 64 bytes of a fabric handle. */
  memImportFromShareableHandle(osHandle: Address | Uint8Array, handleType: number): number; // address
  memGetAllocationGranularity(prop: MemAllocationProp, option: number): number; // size

  // ---- legacy handles
  ipcGetMemHandle(address: Address): number; // 64 bytes
  ipcOpenMemHandle(handle: Uint8Array, flags: number): number; // address
  ipcCloseMemHandle(address: Address): number;
}
