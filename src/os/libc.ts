/** The C library as this module sees it on Linux: every function that is called, with its prototype, and its errors. */
import process from "node:process";
import { errno, libcCandidates, type NativeLibrary, openLibrary, type SymbolTable } from "../../ffi/mod.ts";
import { NotSupportedError, SystemCallError } from "../errors.ts";
import { EINTR, EMFILE, ENFILE, errnoName } from "./errno.ts";

export const LIBC_SYMBOLS = {
  // ---- file descriptors
  open: {
    prototype: "int open(const char *path, int flags, ...)",
    args: ["bytes", "i32", "u32"],
    result: "i32",
    setsErrno: true,
  },
  close: { prototype: "int close(int fd)", args: ["i32"], result: "i32", setsErrno: true },
  read: {
    prototype: "ssize_t read(int fd, void *buf, size_t count)",
    args: ["i32", "address", "size"],
    result: "i64",
    setsErrno: true,
  },
  write: {
    prototype: "ssize_t write(int fd, const void *buf, size_t count)",
    args: ["i32", "address", "size"],
    result: "i64",
    setsErrno: true,
  },
  fcntl: { prototype: "int fcntl(int fd, int cmd, ...)", args: ["i32", "i32", "i32"], result: "i32", setsErrno: true },
  statx: {
    prototype: "int statx(int dirfd, const char *path, int flags, unsigned int mask, struct statx *buf)",
    args: ["i32", "bytes", "i32", "u32", "address"],
    result: "i32",
    setsErrno: true,
  },
  ftruncate: { prototype: "int ftruncate(int fd, off_t length)", args: ["i32", "size"], result: "i32", setsErrno: true },
  unlink: { prototype: "int unlink(const char *path)", args: ["bytes"], result: "i32", setsErrno: true },
  pread: {
    prototype: "ssize_t pread(int fd, void *buf, size_t count, off_t offset)",
    args: ["i32", "address", "size", "size"],
    result: "i64",
    setsErrno: true,
  },
  readlink: {
    prototype: "ssize_t readlink(const char *path, char *buf, size_t count)",
    args: ["bytes", "address", "size"],
    result: "i64",
    setsErrno: true,
  },
  getdents64: {
    prototype: "ssize_t getdents64(int fd, void *buf, size_t count)",
    args: ["i32", "address", "size"],
    result: "i64",
    setsErrno: true,
  },
  link: { prototype: "int link(const char *from, const char *to)", args: ["bytes", "bytes"], result: "i32", setsErrno: true },
  rename: { prototype: "int rename(const char *from, const char *to)", args: ["bytes", "bytes"], result: "i32", setsErrno: true },
  fchmod: { prototype: "int fchmod(int fd, mode_t mode)", args: ["i32", "u32"], result: "i32", setsErrno: true },
  name_to_handle_at: {
    prototype: "int name_to_handle_at(int dirfd, const char *path, struct file_handle *handle, int *mount_id, int flags)",
    args: ["i32", "bytes", "address", "address", "i32"],
    result: "i32",
    setsErrno: true,
  },
  open_by_handle_at: {
    prototype: "int open_by_handle_at(int mount_fd, struct file_handle *handle, int flags)",
    args: ["i32", "address", "i32"],
    result: "i32",
    setsErrno: true,
  },
  // ---- sockets
  socket: {
    prototype: "int socket(int domain, int type, int protocol)",
    args: ["i32", "i32", "i32"],
    result: "i32",
    setsErrno: true,
  },
  bind: {
    prototype: "int bind(int fd, const struct sockaddr *addr, socklen_t len)",
    args: ["i32", "bytes", "u32"],
    result: "i32",
    setsErrno: true,
  },
  listen: { prototype: "int listen(int fd, int backlog)", args: ["i32", "i32"], result: "i32", setsErrno: true },
  accept4: {
    prototype: "int accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags)",
    args: ["i32", "address", "address", "i32"],
    result: "i32",
    setsErrno: true,
  },
  connect: {
    prototype: "int connect(int fd, const struct sockaddr *addr, socklen_t len)",
    args: ["i32", "bytes", "u32"],
    result: "i32",
    setsErrno: true,
  },
  sendmsg: {
    prototype: "ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)",
    args: ["i32", "address", "i32"],
    result: "i64",
    setsErrno: true,
  },
  recvmsg: {
    prototype: "ssize_t recvmsg(int fd, struct msghdr *msg, int flags)",
    args: ["i32", "address", "i32"],
    result: "i64",
    setsErrno: true,
  },
  shutdown: { prototype: "int shutdown(int fd, int how)", args: ["i32", "i32"], result: "i32", setsErrno: true },
  getsockopt: {
    prototype: "int getsockopt(int fd, int level, int name, void *value, socklen_t *len)",
    args: ["i32", "i32", "i32", "address", "address"],
    result: "i32",
    setsErrno: true,
  },
  // ---- readiness
  poll: {
    prototype: "int poll(struct pollfd *fds, nfds_t n, int timeout_ms)",
    args: ["address", "size", "i32"],
    result: "i32",
    setsErrno: true,
  },
  epoll_create1: { prototype: "int epoll_create1(int flags)", args: ["i32"], result: "i32", setsErrno: true },
  epoll_ctl: {
    prototype: "int epoll_ctl(int epfd, int op, int fd, struct epoll_event *event)",
    args: ["i32", "i32", "i32", "address"],
    result: "i32",
    setsErrno: true,
  },
  epoll_wait: {
    prototype: "int epoll_wait(int epfd, struct epoll_event *events, int max, int timeout_ms)",
    args: ["i32", "address", "i32", "i32"],
    result: "i32",
    setsErrno: true,
  },
  eventfd: { prototype: "int eventfd(unsigned int initial, int flags)", args: ["u32", "i32"], result: "i32", setsErrno: true },
  // ---- memory
  memfd_create: {
    prototype: "int memfd_create(const char *name, unsigned int flags)",
    args: ["bytes", "u32"],
    result: "i32",
    setsErrno: true,
  },
  mmap: {
    prototype: "void *mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset)",
    args: ["address", "size", "i32", "i32", "i32", "size"],
    result: "address",
    setsErrno: true,
  },
  munmap: { prototype: "int munmap(void *addr, size_t length)", args: ["address", "size"], result: "i32", setsErrno: true },
  memcpy: {
    prototype: "void *memcpy(void *to, const void *from, size_t n)",
    args: ["address", "address", "size"],
    result: "address",
  },
  memmove: {
    prototype: "void *memmove(void *to, const void *from, size_t n)",
    args: ["address", "address", "size"],
    result: "address",
  },
  memset: { prototype: "void *memset(void *to, int byte, size_t n)", args: ["address", "i32", "size"], result: "address" },
  madvise: {
    prototype: "int madvise(void *addr, size_t length, int advice)",
    args: ["address", "size", "i32"],
    result: "i32",
    setsErrno: true,
  },
  // ---- processes and time
  getpid: { prototype: "pid_t getpid(void)", args: [], result: "i32" },
  // For what older C libraries have no function for. Arguments are longs.
  syscall: { prototype: "long syscall(long number, ...)", args: ["size", "size", "size"], result: "i64", setsErrno: true },
  geteuid: { prototype: "uid_t geteuid(void)", args: [], result: "u32" },
  gettid: { prototype: "pid_t gettid(void)", args: [], result: "i32" },
  usleep: { prototype: "int usleep(useconds_t usec)", args: ["u32"], result: "i32" },
  clock_gettime: {
    prototype: "int clock_gettime(clockid_t clock, struct timespec *now)",
    args: ["i32", "address"],
    result: "i32",
    setsErrno: true,
  },
  kill: { prototype: "int kill(pid_t pid, int sig)", args: ["i32", "i32"], result: "i32", setsErrno: true },
  signal: {
    prototype: "void (*signal(int sig, void (*handler)(int)))(int)",
    args: ["i32", "address"],
    result: "address",
    setsErrno: true,
  },
} as const satisfies SymbolTable;

export type Libc = NativeLibrary<typeof LIBC_SYMBOLS>;

let opened: Libc | undefined;
let replaced: Libc | undefined;

/** The C library's functions, opened at the first use. */
export function libc(): Libc {
  return replaced ?? (opened ??= openLibc());
}

/** Puts a table in front of the C library, so that a test can make any call fail; `undefined` takes it away. */
export function setLibcForTests(table: Libc | undefined): void {
  replaced = table;
}

function openLibc(): Libc {
  if (process.platform !== "linux") {
    throw new NotSupportedError(`Cannot use sockets and file descriptors on ${process.platform}: this part is for Linux`);
  }
  return openLibrary("the C library", libcCandidates(), LIBC_SYMBOLS);
}

/** A NUL-terminated text for a call. */
export function cString(text: string): Uint8Array {
  return new TextEncoder().encode(text + "\0");
}

/** Makes a call that gives -1 on failure again until no signal interrupts it. Read `errno()` directly afterwards. */
export function retryInterrupted(call: () => number | bigint): number {
  for (;;) {
    const result = Number(call());
    if (result >= 0 || errno() !== EINTR) return result;
  }
}

const HINTS: ReadonlyMap<number, string> = new Map([
  [EMFILE, "This process has too many files open: close some, or raise the limit (ulimit -n)"],
  [ENFILE, "The whole system has too many files open"],
]);

/** The error of the call that just failed. Call it before any other call of the C library: it reads errno. */
export function systemError(call: string, action: string, hints?: ReadonlyMap<number, string>): SystemCallError {
  return systemErrorOf(errno(), call, action, hints);
}

/** The error for an errno that was read before. `hints` say what to do, by errno. */
export function systemErrorOf(
  code: number,
  call: string,
  action: string,
  hints?: ReadonlyMap<number, string>,
): SystemCallError {
  const name = errnoName(code);
  const hint = hints?.get(code) ?? HINTS.get(code);
  const message = `${action}: ${call} failed with ${name} (${code})${hint === undefined ? "" : `. ${hint}`}`;
  return new SystemCallError(message, { errno: code, errnoName: name, call });
}
