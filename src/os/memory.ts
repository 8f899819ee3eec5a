/** Shared memory without a name: memfd and mmap. */
import { type Address, addressFromNumber, addressToBigInt, NativeBlock, toSize } from "../../ffi/mod.ts";
import { NotSupportedError, ProtocolError } from "../errors.ts";
import { discardFds, inspectFd } from "./fd.ts";
import { readTextFile } from "./file.ts";
import { cString, libc, systemError } from "./libc.ts";

const MFD_CLOEXEC = 1;
const MFD_ALLOW_SEALING = 2;
const F_ADD_SEALS = 1033;
const F_GET_SEALS = 1034;
const F_SEAL_SEAL = 1;
const F_SEAL_SHRINK = 2;
const F_SEAL_GROW = 4;
/** Without these a peer's ftruncate would be a SIGBUS in whoever has the memory mapped. */
const SIZE_SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW;

const PROT_READ_WRITE = 3;
const MAP_SHARED = 1;
const MAP_FAILED = 0xffff_ffff_ffff_ffffn;

/** Creates anonymous shared memory of a size that nobody can change any more. The caller owns the descriptor. */
export function createSharedMemory(name: string, byteLength: number): number {
  const fd = libc().memfd_create(cString(name), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) throw systemError("memfd_create", `Cannot create ${byteLength} bytes of shared memory`);
  try {
    if (libc().ftruncate(fd, toSize(byteLength)) !== 0) {
      throw systemError("ftruncate", `Cannot size shared memory to ${byteLength} bytes`);
    }
    if (libc().fcntl(fd, F_ADD_SEALS, SIZE_SEALS) !== 0) throw systemError("fcntl", "Cannot seal shared memory");
    return fd;
  } catch (error) {
    discardFds(fd);
    throw error;
  }
}

/** Refuses a descriptor from another process unless it is sealed shared memory of exactly this size. */
export function checkSharedMemory(fd: number, byteLength: number): void {
  const info = inspectFd(fd);
  if (info.kind !== "regular file") {
    throw new ProtocolError(`Cannot map file descriptor ${fd}: it is a ${info.kind}, expected sealed shared memory`);
  }
  const seals = libc().fcntl(fd, F_GET_SEALS, 0);
  if (seals < 0 || (seals & SIZE_SEALS) !== SIZE_SEALS) {
    throw new ProtocolError(`Cannot map file descriptor ${fd}: it is not sealed, so its size could change under us`);
  }
  if (info.byteLength !== byteLength) {
    throw new ProtocolError(`Cannot map file descriptor ${fd}: it has ${info.byteLength} bytes, expected ${byteLength}`);
  }
}

/** Maps `byteLength` bytes of a descriptor, shared, readable and writable. `byteOffset` is a multiple of the page size. */
export function mapMemory(fd: number, byteLength: number, byteOffset = 0): Address {
  const address = libc().mmap(addressFromNumber(0), toSize(byteLength), PROT_READ_WRITE, MAP_SHARED, fd, toSize(byteOffset));
  // Bun gives -1 as a number, rounded to 2^64
  if (addressToBigInt(address) >= MAP_FAILED) throw systemError("mmap", `Cannot map ${byteLength} bytes of shared memory`);
  return address;
}

/** Unmaps what `mapMemory` mapped. Detach the views first. */
export function unmapMemory(address: Address, byteLength: number): void {
  if (libc().munmap(address, toSize(byteLength)) !== 0) throw systemError("munmap", `Cannot unmap ${byteLength} bytes`);
}

// struct file_handle: u32 handle_bytes, i32 handle_type, then the bytes; shared memory has 12
const FILE_HANDLE_HEAD_BYTES = 8;
const FILE_HANDLE_BYTES = 12;
/** The size of what `sharedMemoryHandle` gives. */
export const SHARED_MEMORY_HANDLE_BYTES: number = FILE_HANDLE_HEAD_BYTES + FILE_HANDLE_BYTES;
const AT_EMPTY_PATH = 0x1000;
const O_RDWR_CLOEXEC = 0o2000002;

/** The kernel's own name for shared memory, the same in every namespace; undefined where the system gives none. */
export function sharedMemoryHandle(fd: number): Uint8Array | undefined {
  const block = new NativeBlock(SHARED_MEMORY_HANDLE_BYTES + 4); // and the mount's id, which nobody needs
  try {
    block.view.setUint32(0, FILE_HANDLE_BYTES, true);
    const [handle, mountId] = [block.addressAt(0), block.addressAt(SHARED_MEMORY_HANDLE_BYTES)];
    if (libc().name_to_handle_at(fd, cString(""), handle, mountId, AT_EMPTY_PATH) !== 0) return undefined;
    return block.bytes.slice(0, SHARED_MEMORY_HANDLE_BYTES);
  } finally {
    block.free();
  }
}

/**
 * Opens shared memory by its handle, while any process has it. Undefined when none has, and without CAP_DAC_READ_SEARCH. The
 * caller looks at what it has got before it trusts it.
 */
export function openSharedMemoryHandle(handle: Uint8Array): number | undefined {
  const mount = createSharedMemory("cuda-ipc-mount", 0); // all shared memory lies in one file system, which this names
  const block = new NativeBlock(SHARED_MEMORY_HANDLE_BYTES);
  try {
    block.bytes.set(handle);
    block.view.setUint32(0, FILE_HANDLE_BYTES, true); // whatever the handle claims: the kernel reads no further
    const fd = libc().open_by_handle_at(mount, block.addressAt(0), O_RDWR_CLOEXEC);
    return fd < 0 ? undefined : fd;
  } finally {
    block.free();
    discardFds(mount);
  }
}

/** The memory of this machine in bytes. */
export function hostMemoryBytes(): number {
  const match = /^MemTotal: *(\d+) kB$/m.exec(readTextFile("/proc/meminfo") ?? "");
  if (match === null) throw new NotSupportedError("Cannot tell how much memory this machine has: /proc/meminfo does not say");
  return Number(match[1]) * 1024;
}
