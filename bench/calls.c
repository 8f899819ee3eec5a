// What the driver's calls cost from C, to be held beside calls.ts in one run. Nanoseconds, medians of 15 rounds of 500 calls.
//   gcc -O2 -I/usr/local/cuda/include bench/calls.c -L/usr/local/cuda/lib64/stubs -lcuda -o calls
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CALLS 500
#define ROUNDS 15
#define CHECK(call) \
  do { \
    CUresult result = (call); \
    if (result != CUDA_SUCCESS) { \
      fprintf(stderr, "%s: %d\n", #call, result); \
      exit(1); \
    } \
  } while (0)

static CUstream stream;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e9 + t.tv_nsec;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

#define MEASURE(name, body) \
  do { \
    double times[ROUNDS]; \
    for (int round = -2; round < ROUNDS; round++) { \
      double start = now(); \
      for (int i = 0; i < CALLS; i++) body; \
      double time = (now() - start) / CALLS; \
      CHECK(cuStreamSynchronize(stream)); \
      if (round >= 0) times[round] = time; \
    } \
    qsort(times, ROUNDS, sizeof *times, compare); \
    printf("  %-52s %8.0f\n", name, times[ROUNDS / 2]); \
  } while (0)

int main(void) {
  CUdevice device;
  CUcontext context;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
  CUmemPoolProps props;
  memset(&props, 0, sizeof props);
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemoryPool pool;
  CHECK(cuMemPoolCreate(&pool, &props));
  cuuint64_t all = ~0ull;
  CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
  CUdeviceptr a, b, p;
  CHECK(cuMemAllocFromPoolAsync(&a, 1 << 20, pool, stream));
  CHECK(cuMemAllocFromPoolAsync(&b, 1 << 20, pool, stream));
  CUevent event, ipcEvent;
  CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CHECK(cuEventCreate(&ipcEvent, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));

  printf("\nNanoseconds (C)\n");
  MEASURE("allocate 1 MiB and free", {
    CHECK(cuMemAllocFromPoolAsync(&p, 1 << 20, pool, stream));
    CHECK(cuMemFreeAsync(p, stream));
  });
  MEASURE("event record", CHECK(cuEventRecord(event, stream)));
  CHECK(cuEventSynchronize(event));
  MEASURE("event query", CHECK(cuEventQuery(event)));
  MEASURE("interprocess event record", CHECK(cuEventRecord(ipcEvent, stream)));
  MEASURE("fill 4 KiB", CHECK(cuMemsetD8Async(a, 1, 4096, stream)));
  MEASURE("copy 4 KiB", CHECK(cuMemcpyAsync(b, a, 4096, stream)));
  MEASURE("stream synchronize, idle", CHECK(cuStreamSynchronize(stream)));
  MEASURE("stream query, idle", CHECK(cuStreamQuery(stream)));
  return 0;
}
