/** The C library as this module sees it on Linux: every function that is called, with its prototype, and its errors. */
import process from "node:process";
import { errno, libcCandidates, type NativeLibrary, openLibrary, prepareErrno, type SymbolTable } from "../../ffi/mod.ts";
import { NotSupportedError, SystemCallError } from "../errors.ts";
import { errnoName } from "./errno.ts";

export const LIBC_SYMBOLS = {
  // ---- file descriptors
  open: { prototype: "int open(const char *path, int flags, ...)", args: ["bytes", "i32", "u32"], result: "i32" },
  close: { prototype: "int close(int fd)", args: ["i32"], result: "i32" },
  read: { prototype: "ssize_t read(int fd, void *buf, size_t count)", args: ["i32", "address", "size"], result: "i64" },
  write: { prototype: "ssize_t write(int fd, const void *buf, size_t count)", args: ["i32", "address", "size"], result: "i64" },
  fcntl: { prototype: "int fcntl(int fd, int cmd, ...)", args: ["i32", "i32", "i32"], result: "i32" },
  statx: {
    prototype: "int statx(int dirfd, const char *path, int flags, unsigned int mask, struct statx *buf)",
    args: ["i32", "bytes", "i32", "u32", "address"],
    result: "i32",
  },
  ftruncate: { prototype: "int ftruncate(int fd, off_t length)", args: ["i32", "size"], result: "i32" },
  unlink: { prototype: "int unlink(const char *path)", args: ["bytes"], result: "i32" },
  // ---- memory
  memfd_create: {
    prototype: "int memfd_create(const char *name, unsigned int flags)",
    args: ["bytes", "u32"],
    result: "i32",
  },
  mmap: {
    prototype: "void *mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset)",
    args: ["address", "size", "i32", "i32", "i32", "size"],
    result: "address",
  },
  munmap: { prototype: "int munmap(void *addr, size_t length)", args: ["address", "size"], result: "i32" },
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
  // ---- processes and time
  getpid: { prototype: "pid_t getpid(void)", args: [], result: "i32" },
  getuid: { prototype: "uid_t getuid(void)", args: [], result: "i32" },
  gettid: { prototype: "pid_t gettid(void)", args: [], result: "i32" },
  usleep: { prototype: "int usleep(useconds_t usec)", args: ["u32"], result: "i32" },
} as const satisfies SymbolTable;

let opened: NativeLibrary<typeof LIBC_SYMBOLS> | undefined;

/** The C library's functions, opened at the first use. */
export function libc(): NativeLibrary<typeof LIBC_SYMBOLS> {
  return opened ??= openLibc();
}

function openLibc(): NativeLibrary<typeof LIBC_SYMBOLS> {
  if (process.platform !== "linux") {
    throw new NotSupportedError(`Cannot use sockets and file descriptors on ${process.platform}: this part is for Linux`);
  }
  prepareErrno();
  return openLibrary("the C library", libcCandidates(), LIBC_SYMBOLS);
}

/** A NUL-terminated text for a call. */
export function cString(text: string): Uint8Array {
  return new TextEncoder().encode(text + "\0");
}

/** The error of the call that just failed. Call it before any other native call: it reads errno. */
export function systemError(call: string, action: string): SystemCallError {
  return systemErrorOf(errno(), call, action);
}

/** The error for an errno that was read before. */
export function systemErrorOf(code: number, call: string, action: string): SystemCallError {
  const name = errnoName(code);
  return new SystemCallError(`${action}: ${call} failed with ${name} (${code})`, { errno: code, errnoName: name, call });
}
