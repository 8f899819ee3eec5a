/** Plain numbers in place of addresses, and the few calls of libc that the simulated hardware consists of. */
import {
  type Address,
  addressFromNumber,
  addressToBigInt,
  createHostView,
  NativeBlock,
  type Size,
  toSize,
} from "../../../ffi/mod.ts";
import { libc, systemError } from "../../os/libc.ts";
import { unmapMemory } from "../../os/memory.ts";

const PROT_READ_WRITE = 3;
const PROT_NONE = 0;
const MAP_SHARED = 0x1;
const MAP_PRIVATE = 0x2;
const MAP_FIXED = 0x10;
const MAP_ANONYMOUS = 0x20;
const MAP_NORESERVE = 0x4000;
const MAP_RESERVED = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
const MAP_FAILED = 0xffff_ffff_ffff_ffffn;
const CLOCK_MONOTONIC = 1;
const SIGKILL = 9;
const SIGSEGV = 11;
const STDERR = 2;
const LINK_BYTES = 256;
const MADV_REMOVE = 9;

/** The driver's callers pass addresses; the simulator computes with them, which is exact below 2^53. */
export function toNumber(value: Address | Size): number {
  return Number(value);
}
export const toAddress: (value: number) => Address = addressFromNumber;

let scratch: NativeBlock | undefined;
function scratchBlock(): NativeBlock {
  return scratch ??= new NativeBlock(LINK_BYTES);
}

/** Milliseconds of the clock that all threads and processes share. */
export function now(): number {
  const block = scratchBlock();
  libc().clock_gettime(CLOCK_MONOTONIC, block.addressAt(0));
  return block.readNumber(0) * 1000 + block.readNumber(8) / 1e6;
}

export function copyBytes(destination: number, source: number, byteLength: number): void {
  libc().memmove(toAddress(destination), toAddress(source), toSize(byteLength));
}

export function fillBytes(destination: number, byte: number, byteLength: number): void {
  libc().memset(toAddress(destination), byte, toSize(byteLength));
}

/** Fills with elements of 1, 2 or 4 bytes. */
export function fillElements(destination: number, value: number, elementBytes: number, count: number): void {
  const byteLength = elementBytes * count;
  if (byteLength === 0) return;
  if (elementBytes === 1) return fillBytes(destination, value & 0xff, byteLength);
  const view = createHostView(toAddress(destination), elementBytes).bytes;
  for (let byte = 0; byte < elementBytes; byte++) view[byte] = value >>> (8 * byte);
  for (let done = elementBytes; done < byteLength; done *= 2) {
    copyBytes(destination + done, destination, Math.min(done, byteLength - done));
  }
}

function mmap(address: number, byteLength: number, protection: number, flags: number, fd = -1, byteOffset = 0): number {
  const mapped = libc().mmap(toAddress(address), toSize(byteLength), protection, flags, fd, toSize(byteOffset));
  if (addressToBigInt(mapped) >= MAP_FAILED) throw systemError("mmap", `Cannot map ${byteLength} bytes of memory`);
  return toNumber(mapped);
}

/** Memory of this process alone, zeroed. */
export function mapAnonymous(byteLength: number): number {
  return mmap(0, byteLength, PROT_READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
}

/** Addresses without memory behind them. */
export function reserveAddresses(byteLength: number, alignment: number): number {
  const start = mmap(0, byteLength + alignment, PROT_NONE, MAP_RESERVED);
  const aligned = Math.ceil(start / alignment) * alignment;
  const end = aligned + byteLength;
  if (aligned > start) unmap(start, aligned - start);
  if (end < start + byteLength + alignment) unmap(end, start + alignment - aligned);
  return aligned;
}

/** Puts shared memory at reserved addresses. */
export function mapAt(address: number, fd: number, byteLength: number, byteOffset: number): void {
  mmap(address, byteLength, PROT_READ_WRITE, MAP_SHARED | MAP_FIXED, fd, byteOffset);
}

/** Takes it away again; the addresses stay reserved. */
export function unmapAt(address: number, byteLength: number): void {
  mmap(address, byteLength, PROT_NONE, MAP_RESERVED | MAP_FIXED);
}

export function unmap(address: number, byteLength: number): void {
  unmapMemory(toAddress(address), byteLength);
}

/** Gives the pages of a shared mapping back: they read as zeros afterwards, in every process that maps them. */
export function dropPages(address: number, byteLength: number): void {
  if (libc().madvise(toAddress(address), toSize(byteLength), MADV_REMOVE) !== 0) {
    throw systemError("madvise", `Cannot give back ${byteLength} bytes of shared memory`);
  }
}

export function sleepMicroseconds(us: number): void {
  libc().usleep(us);
}

/** Ends this process as if from outside: nothing more runs. */
export function killSelf(): never {
  for (;;) libc().kill(libc().getpid(), SIGKILL);
}

/** What happens to a process whose driver runs into bad memory: it dies of SIGSEGV, here with a last word. */
export function crash(reason: string): never {
  const text = new TextEncoder().encode(`cuda-ipc simulator: SIGSEGV inside the driver: ${reason}\n`);
  const block = new NativeBlock(text.byteLength);
  block.bytes.set(text);
  libc().write(STDERR, block.addressAt(0), toSize(text.byteLength));
  libc().signal(SIGSEGV, addressFromNumber(0)); // the runtime's own handler would print a report of its own
  for (;;) libc().kill(libc().getpid(), SIGSEGV);
}
