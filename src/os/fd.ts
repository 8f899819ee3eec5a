/** File descriptors: closing, close-on-exec, and what kind of thing one is. */
import { errno, NativeBlock } from "../../ffi/mod.ts";
import { ENOENT } from "./errno.ts";
import { cString, libc, systemError, systemErrorOf } from "./libc.ts";

const F_GETFD = 1;
const F_SETFD = 2;
const F_DUPFD_CLOEXEC = 1030;
const FD_CLOEXEC = 1;

const AT_FDCWD = -100;
const AT_SYMLINK_NOFOLLOW = 0x100;
const AT_EMPTY_PATH = 0x1000;
const STATX_BASIC_AND_BIRTH = 0xfff;
const STATX_BYTES = 256;
const STATX = {
  mode: 28,
  ino: 32,
  size: 40,
  birthSeconds: 80,
  birthNanoseconds: 88,
  rdevMajor: 128,
  rdevMinor: 132,
  devMajor: 136,
  devMinor: 140,
};
const S_IFMT = 0xf000;

/** What a descriptor or a path refers to. */
export interface FdInfo {
  readonly kind: "character device" | "regular file" | "directory" | "fifo" | "socket" | "block device" | "other";
  readonly byteLength: number;
  /** Device, inode and time of birth: the same for two descriptors of one file, and only for them. */
  readonly identity: string;
  readonly inode: number;
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

/** Closes descriptors while another error is on its way, which must not be hidden. Linux frees the number in any case. */
export function discardFds(...fds: number[]): void {
  for (const fd of fds) libc().close(fd);
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
  const info = statx(fd, "", AT_EMPTY_PATH);
  if (info === undefined) throw systemErrorOf(ENOENT, "statx", `Cannot look at file descriptor ${fd}`);
  return info;
}

/** Looks at a directory entry; a symbolic link is followed unless `nofollow`. Undefined when there is none. */
export function inspectPath(path: string, { nofollow = false }: { nofollow?: boolean } = {}): FdInfo | undefined {
  return statx(AT_FDCWD, path, nofollow ? AT_SYMLINK_NOFOLLOW : 0);
}

function statx(fd: number, path: string, flags: number): FdInfo | undefined {
  const block = statBlock ??= new NativeBlock(STATX_BYTES);
  if (libc().statx(fd, cString(path), flags, STATX_BASIC_AND_BIRTH, block.addressAt(0)) !== 0) {
    const code = errno();
    if (code === ENOENT) return undefined;
    throw systemErrorOf(code, "statx", `Cannot look at ${path === "" ? `file descriptor ${fd}` : path}`);
  }
  const { view } = block;
  const inode = block.readNumber(STATX.ino);
  const device = `${view.getUint32(STATX.devMajor, true)}:${view.getUint32(STATX.devMinor, true)}`;
  const birth = `${block.readNumber(STATX.birthSeconds)}.${view.getUint32(STATX.birthNanoseconds, true)}`;
  return {
    kind: KINDS[view.getUint16(STATX.mode, true) & S_IFMT] ?? "other",
    byteLength: block.readNumber(STATX.size),
    identity: `${device}:${inode}:${birth}`,
    inode,
    deviceMajor: view.getUint32(STATX.rdevMajor, true),
    deviceMinor: view.getUint32(STATX.rdevMinor, true),
  };
}
