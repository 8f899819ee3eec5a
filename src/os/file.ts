/** Small files through libc, so that Deno needs no permission beyond `--allow-ffi`. */
import { errno, NativeBlock, toSize } from "../../ffi/mod.ts";
import { ENOENT, ESRCH } from "./errno.ts";
import { discardFds } from "./fd.ts";
import { cString, libc, retryInterrupted, systemError, systemErrorOf } from "./libc.ts";

const O_CLOEXEC = 0x80000;
const CHUNK_BYTES = 4096;

/** struct linux_dirent64 */
const DIRENT_LENGTH = 16;
const DIRENT_NAME = 19;
const ENTRIES_BYTES = 65536;

let chunk: NativeBlock | undefined;
let entries: NativeBlock | undefined;

/** The text of a small file, such as one of /proc. Undefined when there is none, or when its process or thread has gone. */
export function readTextFile(path: string): string | undefined {
  const block = chunk ??= new NativeBlock(CHUNK_BYTES);
  const fd = retryInterrupted(() => libc().open(cString(path), O_CLOEXEC, 0));
  if (fd < 0) {
    const code = errno();
    if (code === ENOENT) return undefined;
    throw systemErrorOf(code, "open", `Cannot read ${path}`);
  }
  try {
    const decoder = new TextDecoder();
    let text = "";
    for (;;) {
      const count = retryInterrupted(() => libc().read(fd, block.addressAt(0), toSize(CHUNK_BYTES)));
      if (count < 0) {
        const code = errno();
        if (code === ESRCH) return undefined;
        throw systemErrorOf(code, "read", `Cannot read ${path}`);
      }
      if (count === 0) return text + decoder.decode();
      text += decoder.decode(block.bytes.slice(0, count), { stream: true });
    }
  } finally {
    discardFds(fd);
  }
}

/** Where a symbolic link points to; undefined when there is none. */
export function readLink(path: string): string | undefined {
  const block = chunk ??= new NativeBlock(CHUNK_BYTES);
  const length = Number(libc().readlink(cString(path), block.addressAt(0), toSize(CHUNK_BYTES)));
  return length < 0 ? undefined : new TextDecoder().decode(block.bytes.slice(0, length));
}

/** The same path, whatever this process's directory is later. */
export function absolutePath(path: string): string {
  return path.startsWith("/") ? path : `${readLink("/proc/self/cwd") ?? "."}/${path}`;
}

/** Up to `byteLength` bytes (4 KiB at most) of an open file; fewer at its end. */
export function readBytesAt(fd: number, byteLength: number, byteOffset: number): Uint8Array {
  const block = chunk ??= new NativeBlock(CHUNK_BYTES);
  const count = retryInterrupted(() => libc().pread(fd, block.addressAt(0), toSize(byteLength), toSize(byteOffset)));
  if (count < 0) throw systemError("pread", `Cannot read file descriptor ${fd}`);
  return block.bytes.slice(0, count);
}

/** The entries of a directory that are numbers; none of one that is gone, as a process's is. Through libc: Deno needs a permission for its own way. */
export function listNumbers(path: string): number[] {
  const fd = libc().open(cString(path), O_CLOEXEC, 0);
  if (fd < 0) {
    const code = errno();
    if (code === ENOENT) return [];
    throw systemErrorOf(code, "open", `Cannot look at ${path}`);
  }
  const { bytes, view } = entries ??= new NativeBlock(ENTRIES_BYTES);
  const numbers: number[] = [];
  try {
    for (;;) {
      const length = Number(libc().getdents64(fd, entries.addressAt(0), toSize(ENTRIES_BYTES)));
      if (length <= 0) return numbers;
      for (let at = 0; at < length; at += view.getUint16(at + DIRENT_LENGTH, true)) {
        const number = parseNumber(bytes, at + DIRENT_NAME);
        if (number !== undefined) numbers.push(number);
      }
    }
  } finally {
    discardFds(fd);
  }
}

function parseNumber(bytes: Uint8Array, at: number): number | undefined {
  let value = 0;
  for (; bytes[at] !== 0; at++) {
    const digit = bytes[at] - 48;
    if (digit < 0 || digit > 9) return undefined;
    value = value * 10 + digit;
  }
  return value;
}
