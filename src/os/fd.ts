/** File descriptors: closing, close-on-exec, and what kind of thing one is. */
import { NativeBlock } from "../../ffi/mod.ts";
import { cString, libc, systemError } from "./libc.ts";

const F_GETFD = 1;
const F_SETFD = 2;
const F_DUPFD_CLOEXEC = 1030;
const FD_CLOEXEC = 1;

const AT_EMPTY_PATH = 0x1000;
const STATX_BASIC = 0x7ff;
const STATX_BYTES = 256;
const STATX = { mode: 28, ino: 32, size: 40, rdevMajor: 128, rdevMinor: 132, devMajor: 136, devMinor: 140 };
const S_IFMT = 0xf000;

/** What a descriptor refers to. */
export interface FdInfo {
  readonly kind: "character device" | "regular file" | "directory" | "fifo" | "socket" | "block device" | "other";
  readonly byteLength: number;
  /** Device and inode: the same for two descriptors of one file. */
  readonly identity: string;
  /** For devices. */
  readonly deviceMajor: number;
  readonly deviceMinor: number;
}

const KINDS: Record<number, FdInfo["kind"]> = {
  0x2000: "character device",
  0x8000: "regular file",
  0x4000: "directory",
  0x1000: "fifo",
  0xc000: "socket",
  0x6000: "block device",
};

/** Closes a descriptor that this module owns. */
export function closeFd(fd: number): void {
  if (libc().close(fd) !== 0) throw systemError("close", `Cannot close file descriptor ${fd}`);
}

/** Marks the descriptor as one that a started program does not inherit. */
export function setCloseOnExec(fd: number): void {
  const flags = libc().fcntl(fd, F_GETFD, 0);
  if (flags < 0 || libc().fcntl(fd, F_SETFD, flags | FD_CLOEXEC) < 0) {
    throw systemError("fcntl", `Cannot mark file descriptor ${fd} close-on-exec`);
  }
}

/** Whether a started program would not inherit the descriptor. */
export function isCloseOnExec(fd: number): boolean {
  const flags = libc().fcntl(fd, F_GETFD, 0);
  if (flags < 0) throw systemError("fcntl", `Cannot look at file descriptor ${fd}`);
  return (flags & FD_CLOEXEC) !== 0;
}

/** A new descriptor, close-on-exec, for the same thing. */
export function duplicateFd(fd: number): number {
  const copy = libc().fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) throw systemError("fcntl", `Cannot duplicate file descriptor ${fd}`);
  return copy;
}

let statBlock: NativeBlock | undefined;

/** Looks at what a descriptor refers to (statx), before anything is done with it. */
export function inspectFd(fd: number): FdInfo {
  const block = statBlock ??= new NativeBlock(STATX_BYTES);
  if (libc().statx(fd, cString(""), AT_EMPTY_PATH, STATX_BASIC, block.addressAt(0)) !== 0) {
    throw systemError("statx", `Cannot look at file descriptor ${fd}`);
  }
  const { view } = block;
  return {
    kind: KINDS[view.getUint16(STATX.mode, true) & S_IFMT] ?? "other",
    byteLength: block.readNumber(STATX.size),
    identity: `${view.getUint32(STATX.devMajor, true)}:${view.getUint32(STATX.devMinor, true)}:${block.readNumber(STATX.ino)}`,
    deviceMajor: view.getUint32(STATX.rdevMajor, true),
    deviceMinor: view.getUint32(STATX.rdevMinor, true),
  };
}
