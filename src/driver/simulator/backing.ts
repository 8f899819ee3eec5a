/**
 * The simulated memory itself: sealed memfds. A header says what each is, so that a descriptor from another process can
 * be told from any other, and a driver's pool from a driver's physical memory. The kernel counts the references: memory
 * whose last holder is killed is gone.
 */
import { NativeBlock, toSize } from "../../../ffi/mod.ts";
import { closeFd, discardFds } from "../../os/fd.ts";
import { ProtocolError } from "../../errors.ts";
import { listNumbers, readLink } from "../../os/file.ts";
import { cString, libc } from "../../os/libc.ts";
import { checkSharedMemory, createSharedMemory, mapMemory } from "../../os/memory.ts";
import { CUDA_ERROR_OUT_OF_MEMORY } from "../results.ts";
import { toNumber, unmap } from "./native.ts";
import { Refusal } from "./refusal.ts";
import type { RowOf } from "./state.ts";
import type { World } from "./world.ts";

export type Memory = RowOf<"memories">;

export const POOL_MEMORY = 1;
export const PHYSICAL_MEMORY = 2;
export const PLAIN_MEMORY = 3;
const NAMES: Readonly<Record<number, string>> = {
  [POOL_MEMORY]: "cuda-ipc-sim-pool",
  [PHYSICAL_MEMORY]: "cuda-ipc-sim-physical",
  [PLAIN_MEMORY]: "cuda-ipc-sim-memory",
};
const LINK = /^\/memfd:cuda-ipc-sim-[a-z]+ \(deleted\)$/;

/** Where the data begins; before it, the header and a pool's record of its chunks. */
export const DATA_AT = 131072;
const O_RDWR_CLOEXEC = 0o2000002;
const MAGIC = 0x4d45_4d31_5349_4d43n;
const HEADER_BYTES = 64;
const HEADER = { magic: 0, kind: 8, device: 12, locationType: 16, locationId: 20, handleTypes: 24, dataBytes: 32, key: 40 };

/** What the header of a piece of memory says. */
export interface MemoryHeader {
  readonly kind: number;
  /** The machine's index of the device; -1 for host memory. */
  readonly device: number;
  readonly locationType: number;
  readonly locationId: number;
  readonly handleTypes: number;
  readonly dataBytes: number;
  /** A random number below 2^53. */
  readonly key: number;
}

export function randomKey(): number {
  const [high, low] = crypto.getRandomValues(new Uint32Array(2));
  return (high & 0x1fffff) * 2 ** 32 + low;
}

export class Backing {
  readonly #world: World;
  readonly #block: NativeBlock = new NativeBlock(HEADER_BYTES);

  constructor(world: World) {
    this.#world = world;
  }

  // ---- accounting, over all processes: each piece of memory counts once, by the largest claim on it

  #usedBytes(device: number, mayBeOld: boolean): number {
    const claims = new Map<number, number>();
    const own = { pid: this.#world.state.pid, tables: this.#world.tables };
    for (const { pid, tables } of [own, ...this.#world.foreign.list(mayBeOld)]) {
      for (const memory of tables.memories.rows()) {
        if (memory.device !== device) continue;
        if (memory.isOrphan !== 0 && !this.#hasDescriptor(pid, memory.key)) {
          if (pid === own.pid) tables.memories.destroy(memory.id);
          continue;
        }
        claims.set(memory.key, Math.max(claims.get(memory.key) ?? 0, memory.reservedBytes));
      }
    }
    let sum = 0;
    for (const bytes of claims.values()) sum += bytes;
    return sum;
  }

  freeBytes(device: number, mayBeOld = false): number {
    const { totalBytes } = this.#world.visibleDevice(device)!;
    return Math.max(0, totalBytes - this.#usedBytes(device, mayBeOld));
  }

  /** Whether the device has so much memory left. Host memory has no limit here. */
  hasFree(device: number, byteLength: number): boolean {
    return device < 0 || byteLength <= this.freeBytes(device, true) || byteLength <= this.freeBytes(device);
  }

  checkFree(device: number, byteLength: number): void {
    if (!this.hasFree(device, byteLength)) throw new Refusal(CUDA_ERROR_OUT_OF_MEMORY);
  }

  // ---- making, opening, releasing

  create(header: MemoryHeader, reservedBytes: number): Memory {
    const fd = createSharedMemory(NAMES[header.kind], DATA_AT + header.dataBytes);
    try {
      this.#writeHeader(fd, header);
      return this.#record(header, reservedBytes, fd);
    } catch (error) {
      closeFd(fd);
      throw error;
    }
  }

  #writeHeader(fd: number, header: MemoryHeader): void {
    const { view } = this.#block;
    view.setBigUint64(HEADER.magic, MAGIC, true);
    view.setUint32(HEADER.kind, header.kind, true);
    view.setInt32(HEADER.device, header.device, true);
    view.setUint32(HEADER.locationType, header.locationType, true);
    view.setInt32(HEADER.locationId, header.locationId, true);
    view.setUint32(HEADER.handleTypes, header.handleTypes, true);
    view.setFloat64(HEADER.dataBytes, header.dataBytes, true);
    view.setFloat64(HEADER.key, header.key, true);
    libc().write(fd, this.#block.addressAt(0), toSize(HEADER_BYTES));
  }

  /** What a descriptor is, or undefined when it is not the simulator's memory. */
  readHeader(fd: number): MemoryHeader | undefined {
    try {
      return this.#readHeader(fd);
    } catch (error) {
      if (error instanceof ProtocolError) return undefined; // not sealed, or not of the size that it claims
      throw error;
    }
  }

  #readHeader(fd: number): MemoryHeader | undefined {
    const link = readLink(`/proc/self/fd/${fd}`);
    if (link === undefined || !LINK.test(link)) return undefined;
    const { view } = this.#block;
    const length = Number(libc().pread(fd, this.#block.addressAt(0), toSize(HEADER_BYTES), toSize(0)));
    if (length !== HEADER_BYTES || view.getBigUint64(HEADER.magic, true) !== MAGIC) return undefined;
    const header = {
      kind: view.getUint32(HEADER.kind, true),
      device: view.getInt32(HEADER.device, true),
      locationType: view.getUint32(HEADER.locationType, true),
      locationId: view.getInt32(HEADER.locationId, true),
      handleTypes: view.getUint32(HEADER.handleTypes, true),
      dataBytes: view.getFloat64(HEADER.dataBytes, true),
      key: view.getFloat64(HEADER.key, true),
    };
    checkSharedMemory(fd, DATA_AT + header.dataBytes);
    return header;
  }

  /**
   * Records memory that another process (or this one) made. A mapping will hold it, so no descriptor is kept, unless the
   * caller hands over one of its own.
   */
  adopt(header: MemoryHeader, reservedBytes = 0, ownFd = -1): Memory {
    return this.#record(header, reservedBytes, ownFd);
  }

  #record(header: MemoryHeader, reservedBytes: number, fd: number): Memory {
    return this.#world.tables.memories.create({ key: header.key, device: header.device, reservedBytes, fd });
  }

  /** Maps all of it; gives the address of the data. */
  map(memory: Memory, fd: number, header: MemoryHeader): number {
    memory.mappedBytes = DATA_AT + header.dataBytes;
    memory.address = toNumber(mapMemory(fd, memory.mappedBytes));
    return memory.address + DATA_AT;
  }

  #dropFd(memory: Memory): void {
    if (memory.fd >= 0) discardFds(memory.fd);
    memory.fd = -1;
  }

  /** Whether a process has a descriptor of the memory. */
  #hasDescriptor(pid: number, key: number): boolean {
    const directory = `/proc/${pid}/fd`;
    return listNumbers(directory).some((number) => {
      const path = `${directory}/${number}`;
      if (!LINK.test(readLink(path) ?? "")) return false;
      const fd = libc().open(cString(path), O_RDWR_CLOEXEC, 0);
      if (fd < 0) return false;
      try {
        return this.readHeader(fd)?.key === key;
      } finally {
        discardFds(fd);
      }
    });
  }

  /** Lets go of memory of which the process may have given itself descriptors: they keep it in use. */
  abandon(memory: Memory): void {
    const { address, mappedBytes } = memory;
    this.#dropFd(memory);
    memory.address = 0;
    memory.isOrphan = 1;
    unmap(address, mappedBytes);
  }

  release(memory: Memory): void {
    const { address, mappedBytes } = memory;
    this.#dropFd(memory);
    this.#world.tables.memories.destroy(memory.id);
    if (address !== 0) unmap(address, mappedBytes);
  }
}
