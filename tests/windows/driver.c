/*
 * A driver whose device memory is Windows sections, so that Win32 handles pass between real processes. It demands what
 * the documentation of NVIDIA's driver demands of them. Whatever it lacks answers "not supported": see driver.ts.
 */
#include <cuda.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>
#include <winternl.h>

#define EXPORT __declspec(dllexport)
#define GRANULARITY ((size_t)2 << 20)
#define TOTAL_BYTES ((size_t)1 << 30)

/* ---- the device */

EXPORT CUresult CUDAAPI cuInit(unsigned int flags) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuDriverGetVersion(int *version) { *version = CUDA_VERSION; return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuDeviceGetCount(int *count) { *count = 1; return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal; return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuDeviceGetName(char *name, int length, CUdevice device) { strncpy(name, "Sections", length); return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) { memset(uuid, 7, sizeof *uuid); return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) { *bytes = TOTAL_BYTES; return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) { *value = 1; return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { *context = (CUcontext)16; return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device) { return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) { return CUDA_SUCCESS; }

/* ---- work: done at once */

EXPORT CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) { *stream = malloc(16); return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuStreamDestroy_v2(CUstream stream) { free(stream); return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuStreamQuery(CUstream stream) { return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuStreamSynchronize(CUstream stream) { return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) { return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuEventCreate(CUevent *event, unsigned int flags) { *event = malloc(16); return CUDA_SUCCESS; }
/* An imported event: one that is never reached. */
#define IMPORTED ((CUevent)16)
EXPORT CUresult CUDAAPI cuEventDestroy_v2(CUevent event) { if (event != IMPORTED) free(event); return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream) { return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuEventQuery(CUevent event) { return event == IMPORTED ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event) { memset(handle, 9, sizeof *handle); return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle) {
  for (size_t i = 0; i < sizeof handle; i++) if (handle.reserved[i] != 9) return CUDA_ERROR_INVALID_HANDLE;
  *event = IMPORTED;
  return CUDA_SUCCESS;
}

EXPORT CUresult CUDAAPI cuMemHostAlloc(void **memory, size_t size, unsigned int flags) { *memory = malloc(size); return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuMemFreeHost(void *memory) { free(memory); return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) { memcpy((void *)to, (void *)from, size); return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream) { memcpy((void *)to, from, size); return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream) { memcpy(to, (void *)from, size); return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t size, CUstream stream) { memset((void *)to, value, size); return CUDA_SUCCESS; }

/* ---- sections and their handles */

struct memory {
  HANDLE section;
  size_t size;
  char *base; /* of a pool */
  size_t used;
  uint32_t generation;
};

static struct memory *section(HANDLE handle, size_t size) {
  struct memory *memory = calloc(1, sizeof *memory);
  *memory = (struct memory){.section = handle, .size = size};
  return memory;
}
static HANDLE copied(HANDLE handle) {
  HANDLE copy = NULL;
  DuplicateHandle(GetCurrentProcess(), handle, GetCurrentProcess(), &copy, 0, FALSE, DUPLICATE_SAME_ACCESS);
  return copy;
}
static struct memory *create(size_t size, SECURITY_ATTRIBUTES *security) {
  HANDLE handle = CreateFileMappingW(INVALID_HANDLE_VALUE, security, PAGE_READWRITE, size >> 32, (DWORD)size, NULL);
  return handle == NULL ? NULL : section(handle, size);
}
/* As the driver does: inheritable, which the module must take back. */
static CUresult export(void *out, struct memory *memory) {
  HANDLE copy = copied(memory->section);
  SetHandleInformation(copy, HANDLE_FLAG_INHERIT, HANDLE_FLAG_INHERIT);
  *(HANDLE *)out = copy;
  return copy == NULL ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}
static void destroy(struct memory *memory) {
  if (memory->base != NULL) UnmapViewOfFile(memory->base);
  CloseHandle(memory->section);
  free(memory);
}

/* ---- pools */

EXPORT CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props) {
  SECURITY_ATTRIBUTES *security = props->win32SecurityAttributes;
  if (props->handleTypes == CU_MEM_HANDLE_TYPE_WIN32) {
    if (props->maxSize == 0 || security == NULL || security->nLength != sizeof *security) return CUDA_ERROR_INVALID_VALUE;
    if (security->lpSecurityDescriptor != NULL || security->bInheritHandle) return CUDA_ERROR_INVALID_VALUE;
  } else if (props->handleTypes != CU_MEM_HANDLE_TYPE_NONE || security != NULL) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  size_t size = props->maxSize == 0 ? GRANULARITY : (props->maxSize + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
  struct memory *memory = create(size, security);
  if (memory == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
  memory->base = MapViewOfFile(memory->section, FILE_MAP_ALL_ACCESS, 0, 0, 0);
  *pool = (CUmemoryPool)memory;
  return CUDA_SUCCESS;
}
EXPORT CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool) { destroy((struct memory *)pool); return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) { return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags) {
  if (type != CU_MEM_HANDLE_TYPE_WIN32 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return export(out, (struct memory *)pool);
}
EXPORT CUresult CUDAAPI cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type, unsigned long long flags) {
  if (type != CU_MEM_HANDLE_TYPE_WIN32 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  HANDLE copy = copied(handle);
  void *base = copy == NULL ? NULL : MapViewOfFile(copy, FILE_MAP_ALL_ACCESS, 0, 0, 0);
  if (base == NULL) return CUDA_ERROR_INVALID_HANDLE;
  struct memory *memory = section(copy, 0);
  memory->base = base;
  *pool = (CUmemoryPool)memory;
  return CUDA_SUCCESS;
}
/* One pool of a process makes allocations, and they are never reused. */
static struct memory *latest;
static size_t latest_size;
EXPORT CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream) {
  latest = (struct memory *)pool;
  latest_size = size;
  size_t rounded = (size + 511) / 512 * 512;
  if (latest->used + rounded > latest->size) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = (CUdeviceptr)(latest->base + latest->used);
  latest->used += rounded;
  latest->generation++;
  return CUDA_SUCCESS;
}
EXPORT CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr address, CUstream stream) { return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuMemFree_v2(CUdeviceptr address) { return CUDA_SUCCESS; }
/* Where the driver has them, too. */
struct exported { uint64_t unknown[2], generation, offset, size; uint32_t id, rest[5]; };
_Static_assert(sizeof(struct exported) == sizeof(CUmemPoolPtrExportData), "64 bytes");
EXPORT CUresult CUDAAPI cuMemPoolExportPointer(CUmemPoolPtrExportData *out, CUdeviceptr address) {
  struct exported data = {.generation = latest->generation, .offset = (char *)address - latest->base, .size = latest_size};
  memcpy(out, &data, sizeof data);
  return CUDA_SUCCESS;
}
EXPORT CUresult CUDAAPI cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool pool, CUmemPoolPtrExportData *in) {
  struct exported data;
  memcpy(&data, in, sizeof data);
  *address = (CUdeviceptr)(((struct memory *)pool)->base + data.offset);
  return CUDA_SUCCESS;
}

/* ---- virtual memory */

EXPORT CUresult CUDAAPI cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option) {
  *granularity = GRANULARITY;
  return CUDA_SUCCESS;
}
EXPORT CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags) {
  OBJECT_ATTRIBUTES *object = prop->win32HandleMetaData;
  if (prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_WIN32) {
    if (object == NULL || object->Length != sizeof *object || object->ObjectName != NULL) return CUDA_ERROR_INVALID_VALUE;
    if (object->RootDirectory != NULL || object->Attributes != 0) return CUDA_ERROR_INVALID_VALUE;
    if (object->SecurityDescriptor != NULL || object->SecurityQualityOfService != NULL) return CUDA_ERROR_INVALID_VALUE;
  } else if (prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE || object != NULL) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (size == 0 || size % GRANULARITY != 0) return CUDA_ERROR_INVALID_VALUE;
  struct memory *memory = create(size, NULL);
  *handle = (CUmemGenericAllocationHandle)memory;
  return memory == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
EXPORT CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) { destroy((struct memory *)handle); return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags) {
  if (type != CU_MEM_HANDLE_TYPE_WIN32 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return export(out, (struct memory *)handle);
}
EXPORT CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle, CUmemAllocationHandleType type) {
  if (type != CU_MEM_HANDLE_TYPE_WIN32) return CUDA_ERROR_INVALID_VALUE;
  HANDLE copy = copied(os_handle);
  if (copy == NULL) return CUDA_ERROR_INVALID_HANDLE;
  *handle = (CUmemGenericAllocationHandle)section(copy, 0);
  return CUDA_SUCCESS;
}
/* Placeholders: a range that is kept until a section takes its place. */
#define PLACEHOLDER 0x40000
#define REPLACE 0x4000
static void *kernelbase(const char *name) { return (void *)GetProcAddress(GetModuleHandleA("kernelbase.dll"), name); }
EXPORT CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wanted, unsigned long long flags) {
  void *(WINAPI *reserve)(HANDLE, void *, size_t, ULONG, ULONG, void *, ULONG) = kernelbase("VirtualAlloc2");
  void *place = reserve(GetCurrentProcess(), NULL, size, MEM_RESERVE | PLACEHOLDER, PAGE_NOACCESS, NULL, 0);
  *address = (CUdeviceptr)place;
  return place == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
EXPORT CUresult CUDAAPI cuMemAddressFree(CUdeviceptr address, size_t size) { return VirtualFree((void *)address, 0, MEM_RELEASE) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }
/* A range has one chunk in the tests. */
EXPORT CUresult CUDAAPI cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
  void *(WINAPI *map)(HANDLE, HANDLE, void *, ULONG64, size_t, ULONG, ULONG, void *, ULONG) = kernelbase("MapViewOfFile3");
  HANDLE section = ((struct memory *)handle)->section;
  void *view = map(section, GetCurrentProcess(), (void *)address, 0, size, REPLACE, PAGE_READWRITE, NULL, 0);
  return view == NULL ? CUDA_ERROR_MAP_FAILED : CUDA_SUCCESS;
}
EXPORT CUresult CUDAAPI cuMemUnmap(CUdeviceptr address, size_t size) {
  BOOL(WINAPI *unmap)(HANDLE, void *, ULONG) = kernelbase("UnmapViewOfFile2");
  return unmap(GetCurrentProcess(), (void *)address, 2 /* MEM_PRESERVE_PLACEHOLDER */) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
EXPORT CUresult CUDAAPI cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *desc, size_t count) { return CUDA_SUCCESS; }
EXPORT CUresult CUDAAPI cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address) {
  *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return CUDA_SUCCESS;
}
