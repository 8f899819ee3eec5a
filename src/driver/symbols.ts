/**
 * Every driver function that is called: its ABI name (the name that cuda.h maps the plain one to: the plain names are
 * older functions), its C prototype, and the neutral declaration that `ffi/` turns into a native call.
 * The conformance suite compiles the prototypes against the machine's own cuda.h.
 */
import type { SymbolTable } from "../../ffi/mod.ts";

export const DRIVER_SYMBOLS = {
  // ---- start and devices
  cuInit: {
    prototype: "CUresult cuInit(unsigned int Flags)",
    args: ["u32"],
    result: "i32",
  },
  cuDriverGetVersion: {
    prototype: "CUresult cuDriverGetVersion(int *driverVersion)",
    args: ["address"],
    result: "i32",
  },
  cuDeviceGetCount: {
    prototype: "CUresult cuDeviceGetCount(int *count)",
    args: ["address"],
    result: "i32",
  },
  cuDeviceGet: {
    prototype: "CUresult cuDeviceGet(CUdevice *device, int ordinal)",
    args: ["address", "i32"],
    result: "i32",
  },
  cuDeviceGetName: {
    prototype: "CUresult cuDeviceGetName(char *name, int len, CUdevice dev)",
    args: ["address", "i32", "i32"],
    result: "i32",
  },
  cuDeviceGetUuid_v2: {
    prototype: "CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)",
    args: ["address", "i32"],
    result: "i32",
  },
  cuDeviceTotalMem_v2: {
    prototype: "CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)",
    args: ["address", "i32"],
    result: "i32",
  },
  cuDeviceGetAttribute: {
    prototype: "CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)",
    args: ["address", "u32", "i32"],
    result: "i32",
  },
  cuDeviceCanAccessPeer: {
    prototype: "CUresult cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev)",
    args: ["address", "i32", "i32"],
    result: "i32",
  },
  cuDevicePrimaryCtxRetain: {
    prototype: "CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)",
    args: ["address", "i32"],
    result: "i32",
  },
  cuDevicePrimaryCtxRelease_v2: {
    prototype: "CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)",
    args: ["i32"],
    result: "i32",
  },
  cuCtxSetCurrent: {
    prototype: "CUresult cuCtxSetCurrent(CUcontext ctx)",
    args: ["address"],
    result: "i32",
  },
  cuCtxGetCurrent: {
    prototype: "CUresult cuCtxGetCurrent(CUcontext *pctx)",
    args: ["address"],
    result: "i32",
  },
  cuCtxGetStreamPriorityRange: {
    prototype: "CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority)",
    args: ["address", "address"],
    result: "i32",
  },
  cuMemGetInfo_v2: {
    prototype: "CUresult cuMemGetInfo_v2(size_t *free, size_t *total)",
    args: ["address", "address"],
    result: "i32",
  },

  // ---- streams
  cuStreamCreateWithPriority: {
    prototype: "CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)",
    args: ["address", "u32", "i32"],
    result: "i32",
  },
  cuStreamDestroy_v2: {
    prototype: "CUresult cuStreamDestroy_v2(CUstream hStream)",
    args: ["address"],
    result: "i32",
  },
  cuStreamSynchronize: {
    prototype: "CUresult cuStreamSynchronize(CUstream hStream)",
    args: ["address"],
    result: "i32",
  },
  cuStreamQuery: {
    prototype: "CUresult cuStreamQuery(CUstream hStream)",
    args: ["address"],
    result: "i32",
  },
  cuStreamWaitEvent: {
    prototype: "CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)",
    args: ["address", "address", "u32"],
    result: "i32",
  },
  cuStreamWriteValue64_v2: {
    prototype: "CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags)",
    args: ["address", "address", "u64", "u32"],
    result: "i32",
    optional: true,
  },
  cuStreamWaitValue64_v2: {
    prototype: "CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags)",
    args: ["address", "address", "u64", "u32"],
    result: "i32",
    optional: true,
  },

  // ---- events
  cuEventCreate: {
    prototype: "CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)",
    args: ["address", "u32"],
    result: "i32",
  },
  cuEventDestroy_v2: {
    prototype: "CUresult cuEventDestroy_v2(CUevent hEvent)",
    args: ["address"],
    result: "i32",
  },
  cuEventRecord: {
    prototype: "CUresult cuEventRecord(CUevent hEvent, CUstream hStream)",
    args: ["address", "address"],
    result: "i32",
  },
  cuEventQuery: {
    prototype: "CUresult cuEventQuery(CUevent hEvent)",
    args: ["address"],
    result: "i32",
  },
  cuEventSynchronize: {
    prototype: "CUresult cuEventSynchronize(CUevent hEvent)",
    args: ["address"],
    result: "i32",
  },
  cuEventElapsedTime_v2: {
    prototype: "CUresult cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd)",
    args: ["address", "address", "address"],
    result: "i32",
    optional: true,
  },
  cuEventElapsedTime: {
    prototype: "CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd)",
    args: ["address", "address", "address"],
    result: "i32",
  },
  cuIpcGetEventHandle: {
    prototype: "CUresult cuIpcGetEventHandle(CUipcEventHandle *pHandle, CUevent event)",
    args: ["address", "address"],
    result: "i32",
  },
  cuIpcOpenEventHandle: {
    prototype: "CUresult cuIpcOpenEventHandle(CUevent *phEvent, CUipcEventHandle handle)",
    args: ["address", "struct64"],
    result: "i32",
  },

  // ---- memory pools
  cuMemPoolCreate: {
    prototype: "CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)",
    args: ["address", "address"],
    result: "i32",
  },
  cuMemPoolDestroy: {
    prototype: "CUresult cuMemPoolDestroy(CUmemoryPool pool)",
    args: ["address"],
    result: "i32",
  },
  cuMemPoolTrimTo: {
    prototype: "CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)",
    args: ["address", "size"],
    result: "i32",
  },
  cuMemPoolSetAttribute: {
    prototype: "CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)",
    args: ["address", "u32", "address"],
    result: "i32",
  },
  cuMemPoolGetAttribute: {
    prototype: "CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)",
    args: ["address", "u32", "address"],
    result: "i32",
  },
  cuMemPoolSetAccess: {
    prototype: "CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)",
    args: ["address", "address", "size"],
    result: "i32",
  },
  cuMemPoolGetAccess: {
    prototype: "CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool, CUmemLocation *location)",
    args: ["address", "address", "address"],
    result: "i32",
  },
  cuMemAllocFromPoolAsync: {
    prototype: "CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream)",
    args: ["address", "size", "address", "address"],
    result: "i32",
  },
  cuMemFreeAsync: {
    prototype: "CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)",
    args: ["address", "address"],
    result: "i32",
  },
  cuMemPoolExportToShareableHandle: {
    prototype:
      "CUresult cuMemPoolExportToShareableHandle(void *handle_out, CUmemoryPool pool, CUmemAllocationHandleType handleType, unsigned long long flags)",
    args: ["address", "address", "u32", "u64"],
    result: "i32",
  },
  cuMemPoolImportFromShareableHandle: {
    prototype:
      "CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *handle, CUmemAllocationHandleType handleType, unsigned long long flags)",
    args: ["address", "address", "u32", "u64"],
    result: "i32",
  },
  cuMemPoolExportPointer: {
    prototype: "CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *shareData_out, CUdeviceptr ptr)",
    args: ["address", "address"],
    result: "i32",
  },
  cuMemPoolImportPointer: {
    prototype: "CUresult cuMemPoolImportPointer(CUdeviceptr *ptr_out, CUmemoryPool pool, CUmemPoolPtrExportData *shareData)",
    args: ["address", "address", "address"],
    result: "i32",
  },

  // ---- plain device memory and pointers
  cuMemAlloc_v2: {
    prototype: "CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)",
    args: ["address", "size"],
    result: "i32",
  },
  cuMemFree_v2: {
    prototype: "CUresult cuMemFree_v2(CUdeviceptr dptr)",
    args: ["address"],
    result: "i32",
  },
  cuMemGetAddressRange_v2: {
    prototype: "CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)",
    args: ["address", "address", "address"],
    result: "i32",
  },
  cuPointerGetAttribute: {
    prototype: "CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)",
    args: ["address", "u32", "address"],
    result: "i32",
  },

  // ---- host memory
  cuMemHostAlloc: {
    prototype: "CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)",
    args: ["address", "size", "u32"],
    result: "i32",
  },
  cuMemFreeHost: {
    prototype: "CUresult cuMemFreeHost(void *p)",
    args: ["address"],
    result: "i32",
  },
  cuMemHostRegister_v2: {
    prototype: "CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags)",
    args: ["address", "size", "u32"],
    result: "i32",
  },
  cuMemHostUnregister: {
    prototype: "CUresult cuMemHostUnregister(void *p)",
    args: ["address"],
    result: "i32",
  },
  cuMemHostGetDevicePointer_v2: {
    prototype: "CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags)",
    args: ["address", "address", "u32"],
    result: "i32",
  },

  // ---- copies and fills
  cuMemcpyHtoDAsync_v2: {
    prototype: "CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream)",
    args: ["address", "address", "size", "address"],
    result: "i32",
  },
  cuMemcpyDtoHAsync_v2: {
    prototype: "CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)",
    args: ["address", "address", "size", "address"],
    result: "i32",
  },
  cuMemcpyDtoDAsync_v2: {
    prototype: "CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)",
    args: ["address", "address", "size", "address"],
    result: "i32",
  },
  cuMemcpyAsync: {
    prototype: "CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)",
    args: ["address", "address", "size", "address"],
    result: "i32",
  },
  cuMemcpyPeerAsync: {
    prototype:
      "CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount, CUstream hStream)",
    args: ["address", "address", "address", "address", "size", "address"],
    result: "i32",
  },
  cuMemcpy2DAsync_v2: {
    prototype: "CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, CUstream hStream)",
    args: ["address", "address"],
    result: "i32",
  },
  cuMemsetD8Async: {
    prototype: "CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream)",
    args: ["address", "u8", "size", "address"],
    result: "i32",
  },
  cuMemsetD16Async: {
    prototype: "CUresult cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream)",
    args: ["address", "u16", "size", "address"],
    result: "i32",
  },
  cuMemsetD32Async: {
    prototype: "CUresult cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream)",
    args: ["address", "u32", "size", "address"],
    result: "i32",
  },
  cuMemsetD2D8Async: {
    prototype:
      "CUresult cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height, CUstream hStream)",
    args: ["address", "size", "u8", "size", "size", "address"],
    result: "i32",
  },
  cuMemsetD2D16Async: {
    prototype:
      "CUresult cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width, size_t Height, CUstream hStream)",
    args: ["address", "size", "u16", "size", "size", "address"],
    result: "i32",
  },
  cuMemsetD2D32Async: {
    prototype:
      "CUresult cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width, size_t Height, CUstream hStream)",
    args: ["address", "size", "u32", "size", "size", "address"],
    result: "i32",
  },

  // ---- virtual memory
  cuMemCreate: {
    prototype:
      "CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)",
    args: ["address", "size", "address", "u64"],
    result: "i32",
  },
  cuMemRelease: {
    prototype: "CUresult cuMemRelease(CUmemGenericAllocationHandle handle)",
    args: ["address"],
    result: "i32",
  },
  cuMemRetainAllocationHandle: {
    prototype: "CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)",
    args: ["address", "address"],
    result: "i32",
  },
  cuMemAddressReserve: {
    prototype:
      "CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags)",
    args: ["address", "size", "size", "address", "u64"],
    result: "i32",
  },
  cuMemAddressFree: {
    prototype: "CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)",
    args: ["address", "size"],
    result: "i32",
  },
  cuMemMap: {
    prototype:
      "CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)",
    args: ["address", "size", "size", "address", "u64"],
    result: "i32",
  },
  cuMemUnmap: {
    prototype: "CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)",
    args: ["address", "size"],
    result: "i32",
  },
  cuMemSetAccess: {
    prototype: "CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)",
    args: ["address", "size", "address", "size"],
    result: "i32",
  },
  cuMemGetAccess: {
    prototype: "CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)",
    args: ["address", "address", "address"],
    result: "i32",
  },
  cuMemExportToShareableHandle: {
    prototype:
      "CUresult cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType handleType, unsigned long long flags)",
    args: ["address", "address", "u32", "u64"],
    result: "i32",
  },
  cuMemImportFromShareableHandle: {
    prototype:
      "CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle, CUmemAllocationHandleType shHandleType)",
    args: ["address", "address", "u32"],
    result: "i32",
  },
  cuMemGetAllocationGranularity: {
    prototype:
      "CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option)",
    args: ["address", "address", "u32"],
    result: "i32",
  },

  // ---- legacy handles
  cuIpcGetMemHandle: {
    prototype: "CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)",
    args: ["address", "address"],
    result: "i32",
  },
  cuIpcOpenMemHandle_v2: {
    prototype: "CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)",
    args: ["address", "struct64", "u32"],
    result: "i32",
  },
  cuIpcCloseMemHandle: {
    prototype: "CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)",
    args: ["address"],
    result: "i32",
  },
} as const satisfies SymbolTable;
