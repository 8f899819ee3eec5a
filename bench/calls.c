// What the driver's calls cost from C, for calls.ts to show beside its own. A line each: name, tab, nanoseconds (medians).
//   gcc -O2 -I/usr/local/cuda/include bench/calls.c -L/usr/local/cuda/lib64/stubs -lcuda -o calls
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CALLS 500
#define ROUNDS 15
#define TRIPS 1000
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

static void print(const char *name, double *times, int count) {
  qsort(times, count, sizeof *times, compare);
  printf("%s\t%.0f\n", name, times[count / 2]);
  fflush(stdout);
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
    print(name, times, ROUNDS); \
  } while (0)

// What the importer needs: the pool's descriptor comes beside it.
typedef struct {
  CUipcEventHandle event;
  CUmemPoolPtrExportData buffer;
} Shared;

static void fail(const char *what) {
  perror(what);
  exit(1);
}

static void put(int socket, const void *bytes, size_t length) {
  if (send(socket, bytes, length, MSG_NOSIGNAL) != (ssize_t)length) fail("send");
}

// Gives 0 when the other process has closed its end.
static int take(int socket, void *bytes, size_t length) {
  ssize_t got = recv(socket, bytes, length, MSG_WAITALL);
  if (got != 0 && got != (ssize_t)length) fail("recv");
  return got != 0;
}

static struct msghdr message_with_fd(struct iovec *part, char *control, size_t length) {
  struct msghdr message = {.msg_iov = part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = length};
  return message;
}

static void put_with_fd(int socket, Shared *shared, int fd) {
  _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {0};
  struct iovec part = {shared, sizeof *shared};
  struct msghdr message = message_with_fd(&part, control, sizeof control);
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(header), &fd, sizeof fd);
  if (sendmsg(socket, &message, MSG_NOSIGNAL) != sizeof *shared) fail("sendmsg");
}

static int take_with_fd(int socket, Shared *shared) {
  _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec part = {shared, sizeof *shared};
  struct msghdr message = message_with_fd(&part, control, sizeof control);
  int fd;
  if (recvmsg(socket, &message, MSG_WAITALL) != sizeof *shared) fail("recvmsg");
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  if (header == NULL) fail("no descriptor came");
  memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

static void start(void) {
  CUdevice device;
  CUcontext context;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
}

// The other process: measures imports, then maps what comes and releases it.
static void import_all(int socket) {
  Shared shared;
  int fd = take_with_fd(socket, &shared);
  start();
  CUmemoryPool pool;
  CUevent event;
  CUdeviceptr p;
  CHECK(cuMemPoolImportFromShareableHandle(&pool, (void *)(long)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CHECK(cuIpcOpenEventHandle(&event, shared.event));
  // As the library does: cuMemFree, once the stream is seen idle
  MEASURE("import and free", {
    CHECK(cuMemPoolImportPointer(&p, pool, &shared.buffer));
    CHECK(cuStreamQuery(stream));
    CHECK(cuMemFree(p));
  });
  for (char done = 1;; ) {
    put(socket, &done, 1);
    if (!take(socket, &shared.buffer, sizeof shared.buffer)) break;
    CHECK(cuMemPoolImportPointer(&p, pool, &shared.buffer));
    CHECK(cuStreamWaitEvent(stream, event, 0));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemFree(p));
  }
}

int main(void) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) fail("socketpair");
  pid_t importer = fork(); // before the driver, which does not survive it
  if (importer < 0) fail("fork");
  close(sockets[importer == 0 ? 0 : 1]);
  if (importer == 0) {
    import_all(sockets[1]);
    return 0;
  }
  start();
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

  Shared shared;
  int fd;
  char done;
  CHECK(cuIpcGetEventHandle(&shared.event, ipcEvent));
  CHECK(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)); // before any pointer of it
  CHECK(cuMemPoolExportPointer(&shared.buffer, a));
  put_with_fd(sockets[0], &shared, fd);
  if (!take(sockets[0], &done, 1)) fail("the importer has ended");
  double times[TRIPS];
  for (int trip = -50; trip < TRIPS; trip++) {
    double begin = now();
    CHECK(cuMemAllocFromPoolAsync(&p, 1 << 20, pool, stream));
    CHECK(cuMemPoolExportPointer(&shared.buffer, p));
    CHECK(cuEventRecord(ipcEvent, stream));
    put(sockets[0], &shared.buffer, sizeof shared.buffer);
    if (!take(sockets[0], &done, 1)) fail("the importer has ended");
    CHECK(cuMemFreeAsync(p, stream));
    if (trip >= 0) times[trip] = now() - begin;
  }
  print("a new buffer to a process, mapped there and released", times, TRIPS);
  close(sockets[0]);
  int status;
  if (waitpid(importer, &status, 0) != importer || status != 0) fail("the importer failed");
  return 0;
}
