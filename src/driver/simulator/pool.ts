/**
 * cuMemPool…: one sparse memfd for each pool, mapped as a whole by every process that uses it. So an import that outlives
 * its allocation reads whatever the exporter puts there next, as on hardware.
 */
import { createHostView } from "../../../ffi/mod.ts";
import { libc, systemError } from "../../os/libc.ts";
import * as enums from "../enums.ts";
import type { MemAccessDesc, MemLocation, MemPoolProps } from "../driver.ts";
import {
  CUDA_ERROR_ALREADY_MAPPED,
  CUDA_ERROR_INVALID_DEVICE,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_NOT_SUPPORTED,
  CUDA_ERROR_OUT_OF_MEMORY,
  CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
  CUDA_ERROR_UNKNOWN,
} from "../results.ts";
import { OPAQUE_BYTES } from "../structs.ts";
import { accessOf, READ_WRITE, withAccess } from "./access.ts";
import { type Backing, DATA_AT, type MemoryHeader, POOL_MEMORY, randomKey } from "./backing.ts";
import { crash, dropPages, toAddress } from "./native.ts";
import { FREE, type Stream, type Work } from "./queue.ts";
import { POOL, POOL_IMPORT, type Range } from "./ranges.ts";
import { Refusal } from "./refusal.ts";
import type { RowOf } from "./state.ts";
import type { Streams } from "./stream.ts";
import type { World } from "./world.ts";

type Pool = RowOf<"pools">;

export const CHUNK_BYTES = 32 * 2 ** 20;
const ALIGNMENT = 512;
/** `exported` of a pool of which a pointer was exported too: then its open descriptors keep its memory in use. */
const POINTER_EXPORTED = 2;

/** Where a pool's memory records which of its chunks are reserved. */
const CHUNK_FLAGS_AT = 4096;
const MAX_CHUNKS = DATA_AT - CHUNK_FLAGS_AT;
/** Addresses for each pool: more than the device has, because free space is never moved together. */
const ADDRESS_SPACE_FACTOR = 2;
const HOST_POOL_BYTES = 64 * 2 ** 30;
/** Between what was seen to work and what was seen to kill the importer. */
const IMPORT_LIMIT_BYTES = 5216 * 2 ** 20;
const F_DUPFD = 0;

/** The layout of the export data, as seen on hardware; the fields at 0 and 44 are the simulator's own. */
const EXPORT = { pool: 0, generation: 16, offset: 24, byteLength: 32, id: 40, check: 44 };

export class Pools {
  readonly #world: World;
  readonly #backing: Backing;
  readonly #streams: Streams;

  constructor(world: World, backing: Backing, streams: Streams) {
    this.#world = world;
    this.#backing = backing;
    this.#streams = streams;
    world.afterSynchronize = () => this.#afterSynchronize();
    const endAllocation = ({ a: id, b: generation }: Work) => {
      const { ranges } = world.tables;
      if (!ranges.isLive(id)) return;
      const range = ranges.at(id);
      if (range.freeing !== 0 && range.generation === generation) this.#endAllocation(range);
    };
    world.queue.defineEffect(FREE, endAllocation, endAllocation);
  }

  /** The pool of a handle; the driver answers 1 for whatever an imported pool cannot do. */
  #resolve(handle: number): Pool {
    const pool = this.#world.tables.pools.find(handle);
    if (pool === undefined || pool.destroyed !== 0) throw new Refusal(CUDA_ERROR_INVALID_VALUE);
    return pool;
  }
  #resolveOwn(handle: number): Pool {
    const pool = this.#resolve(handle);
    if (pool.imported !== 0) throw new Refusal(CUDA_ERROR_INVALID_VALUE);
    return pool;
  }

  #memory(pool: Pool): RowOf<"memories"> {
    return this.#world.tables.memories.at(pool.memory);
  }
  #base(pool: Pool): number {
    return this.#memory(pool).address + DATA_AT;
  }
  #device(pool: Pool): number {
    return this.#memory(pool).device;
  }
  #isHost(pool: Pool): boolean {
    return pool.locationType !== enums.CU_MEM_LOCATION_TYPE_DEVICE;
  }

  // ---- creating and destroying

  create(props: MemPoolProps): number {
    const { allocType = 0, handleTypes = 0, locationType = 0, locationId = 0, maxSize = 0 } = props;
    if (allocType !== enums.CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    const { sharedPools = 0, hostPools = 0 } = this.#world.machine.profile;
    const isShareable = handleTypes === enums.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    const isKnown = isShareable || handleTypes === enums.CU_MEM_HANDLE_TYPE_FABRIC ||
      handleTypes === enums.CU_MEM_HANDLE_TYPE_NONE;
    if (!isKnown) return CUDA_ERROR_NOT_SUPPORTED;
    const device = this.#locate(locationType, locationId, isShareable);
    if (device < 0 && hostPools !== 0) return hostPools;
    if (isShareable && sharedPools !== 0) return sharedPools;

    const space = device < 0 ? HOST_POOL_BYTES : ADDRESS_SPACE_FACTOR * this.#world.visibleDevice(device)!.totalBytes;
    const dataBytes = Math.min(Math.ceil(space / CHUNK_BYTES), MAX_CHUNKS) * CHUNK_BYTES;
    const header: MemoryHeader = {
      kind: POOL_MEMORY,
      device,
      locationType,
      locationId,
      handleTypes,
      dataBytes,
      key: randomKey(),
    };
    const memory = this.#backing.create(header, 0);
    try {
      this.#backing.map(memory, memory.fd, header);
      const pool = this.#record(memory.id, header, device < 0 ? 0 : withAccess(0, device, READ_WRITE));
      pool.maxBytes = Math.ceil(maxSize / CHUNK_BYTES) * CHUNK_BYTES;
      pool.reuseFollowEvents = pool.reuseOpportunistic = pool.reuseInternal = 1;
      return this.#world.put(this.#world.tables.pools.handle(pool.id));
    } catch (error) {
      this.#backing.release(memory);
      throw error;
    }
  }

  /** The device's index, or -1 for the host. */
  #locate(locationType: number, locationId: number, isShareable: boolean): number {
    switch (locationType) {
      case enums.CU_MEM_LOCATION_TYPE_DEVICE:
        return this.#world.device(locationId).index;
      case enums.CU_MEM_LOCATION_TYPE_HOST:
        if (isShareable) throw new Refusal(CUDA_ERROR_INVALID_VALUE);
        return -1;
      case enums.CU_MEM_LOCATION_TYPE_HOST_NUMA:
        if (locationId !== 0) throw new Refusal(CUDA_ERROR_INVALID_VALUE); // the simulated machine has one node
        return -1;
      default:
        throw new Refusal(CUDA_ERROR_INVALID_VALUE);
    }
  }

  #record(memory: number, header: MemoryHeader, access: number): Pool {
    const { locationType, locationId, handleTypes, dataBytes, key } = header;
    return this.#world.tables.pools.create({ memory, locationType, locationId, handleTypes, dataBytes, key, access });
  }

  destroy(handle: number): number {
    const pool = this.#resolveOwn(handle);
    pool.destroyed = 1;
    if (pool.allocations === 0) this.#release(pool);
    return 0;
  }

  #release(pool: Pool): void {
    if (pool.exported === POINTER_EXPORTED) this.#backing.abandon(this.#memory(pool));
    else this.#backing.release(this.#memory(pool));
    this.#world.tables.pools.destroy(pool.id);
  }

  /** What a device may do with the memory of a pool. */
  accessFor(pool: number, device: number): number {
    return accessOf(this.#world.tables.pools.get(pool, "access"), device);
  }

  // ---- attributes and access

  trim(handle: number, minBytesToKeep: number): number {
    this.releaseUnused(this.#resolveOwn(handle), minBytesToKeep);
    return 0;
  }

  setAttribute(handle: number, attribute: number, value: bigint): number {
    const pool = this.#resolveOwn(handle);
    const { pools } = this.#world.tables;
    const flag = value === 0n ? 0 : 1;
    switch (attribute) {
      case enums.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        pool.reuseFollowEvents = flag;
        return 0;
      case enums.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        pool.reuseOpportunistic = flag;
        return 0;
      case enums.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool.reuseInternal = flag;
        return 0;
      case enums.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pools.setLong(pool.id, "releaseThreshold", value);
        return 0;
      case enums.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: // the high marks can only be reset
        if (value !== 0n) return CUDA_ERROR_INVALID_VALUE;
        pool.reservedHigh = this.#memory(pool).reservedBytes;
        return 0;
      case enums.CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (value !== 0n) return CUDA_ERROR_INVALID_VALUE;
        pool.usedHigh = pool.usedBytes;
        return 0;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  }

  getAttribute(handle: number, attribute: number): number {
    const pool = this.#resolveOwn(handle);
    switch (attribute) {
      case enums.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        return this.#world.put(pool.reuseFollowEvents);
      case enums.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        return this.#world.put(pool.reuseOpportunistic);
      case enums.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        return this.#world.put(pool.reuseInternal);
      case enums.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        return this.#world.put(this.#world.tables.pools.getLong(pool.id, "releaseThreshold"));
      case enums.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        return this.#world.put(this.#memory(pool).reservedBytes);
      case enums.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        return this.#world.put(pool.reservedHigh);
      case enums.CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        return this.#world.put(pool.usedBytes);
      case enums.CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        return this.#world.put(pool.usedHigh);
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  }

  setAccess(handle: number, accesses: readonly MemAccessDesc[]): number {
    const pool = this.#resolve(handle);
    let { access } = pool;
    for (const { locationType = 0, locationId = 0, flags = 0 } of accesses) {
      if (locationType !== enums.CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
      const { index } = this.#world.device(locationId);
      const isOwner = index === this.#device(pool);
      if (flags === enums.CU_MEM_ACCESS_FLAGS_PROT_READ) return CUDA_ERROR_NOT_SUPPORTED;
      if (flags !== 0 && flags !== READ_WRITE) return CUDA_ERROR_INVALID_VALUE;
      if (isOwner && flags !== READ_WRITE) return CUDA_ERROR_INVALID_DEVICE; // a device keeps access to its own memory
      if (!isOwner && !this.#isHost(pool) && !this.#world.canAccessPeer(index, this.#device(pool))) {
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
      }
      access = withAccess(access, index, flags);
    }
    pool.access = access;
    return 0;
  }

  getAccess(handle: number, { type = 0, id = 0 }: MemLocation): number {
    const pool = this.#resolve(handle);
    if (type !== enums.CU_MEM_LOCATION_TYPE_DEVICE) return this.#world.putI32(0);
    if (id < 0 || id >= this.#world.machine.devices.length) return CUDA_ERROR_INVALID_VALUE;
    return this.#world.putI32(accessOf(pool.access, this.#world.device(id).index));
  }

  // ---- allocating

  allocate(byteLength: number, handle: number, streamHandle: number): number {
    const stream = this.#streams.resolve(streamHandle);
    const pool = this.#resolveOwn(handle);
    if (byteLength === 0) return this.#world.put(0);
    const span = Math.ceil(byteLength / ALIGNMENT) * ALIGNMENT;
    const generation = this.#world.state.process.generation++;
    const taken = this.#takeOver(pool, stream, span);
    const range = taken ?? this.#place(pool, span);
    pool.usedBytes += byteLength - (taken === undefined ? 0 : taken.byteLength);
    pool.usedHigh = Math.max(pool.usedHigh, pool.usedBytes);
    range.byteLength = byteLength;
    range.generation = generation;
    return this.#world.put(range.start);
  }

  /** What is being freed on the same stream can be had at once: its next user comes after its last one. */
  #takeOver(pool: Pool, stream: Stream, span: number): Range | undefined {
    if (stream.firstWork === 0) return undefined; // nothing is being freed
    for (const range of this.#world.ranges.between(this.#base(pool), this.#base(pool) + pool.dataBytes)) {
      if (range.freeing !== stream.id || range.span !== span) continue;
      range.freeing = 0;
      range.buffer = this.#world.state.process.buffer++;
      return range;
    }
  }

  #place(pool: Pool, span: number): Range {
    const base = this.#base(pool);
    let start = base + pool.firstGap;
    for (const range of this.#world.ranges.between(start, base + pool.dataBytes)) {
      if (range.start - start >= span) break;
      start = range.start + range.span;
    }
    const offset = start - base;
    if (offset + span > pool.dataBytes) throw new Refusal(CUDA_ERROR_OUT_OF_MEMORY);
    this.#reserve(pool, offset, span);
    if (offset === pool.firstGap) pool.firstGap += span;
    pool.allocations++;
    return this.#world.ranges.add({ kind: POOL, start, byteLength: span, device: this.#device(pool), owner: pool.id });
  }

  /** Takes the chunks that the allocation needs from the device. */
  #reserve(pool: Pool, offset: number, span: number): void {
    const memory = this.#memory(pool);
    const flags = this.#chunkFlags(pool);
    const last = Math.floor((offset + span - 1) / CHUNK_BYTES);
    const wanted: number[] = [];
    for (let chunk = Math.floor(offset / CHUNK_BYTES); chunk <= last; chunk++) if (flags[chunk] === 0) wanted.push(chunk);
    if (wanted.length === 0) return;

    const bytes = wanted.length * CHUNK_BYTES;
    const isOverMax = () => pool.maxBytes > 0 && memory.reservedBytes + bytes > pool.maxBytes;
    if (isOverMax()) this.releaseUnused(pool, 0);
    if (isOverMax()) throw new Refusal(CUDA_ERROR_OUT_OF_MEMORY);
    if (!this.#backing.hasFree(memory.device, bytes)) {
      for (const other of this.#world.tables.pools.rows()) if (other.imported === 0) this.releaseUnused(other, 0);
      this.#backing.checkFree(memory.device, bytes);
    }
    for (const chunk of wanted) flags[chunk] = 1;
    memory.reservedBytes += bytes;
    pool.reservedHigh = Math.max(pool.reservedHigh, memory.reservedBytes);
  }

  #chunkFlags(pool: Pool): Uint8Array {
    const { address } = this.#memory(pool);
    const byteLength = CHUNK_FLAGS_AT + pool.dataBytes / CHUNK_BYTES;
    return createHostView(toAddress(address), byteLength).bytes.subarray(CHUNK_FLAGS_AT);
  }

  /** Gives unused chunks back to the device, but keeps `minBytesToKeep` reserved. */
  releaseUnused(pool: Pool, minBytesToKeep: number): void {
    const memory = this.#memory(pool);
    if (memory.reservedBytes <= minBytesToKeep) return;
    const flags = this.#chunkFlags(pool);
    const base = this.#base(pool);
    let seen = 0;
    const reserved = memory.reservedBytes / CHUNK_BYTES;
    for (let chunk = 0; seen < reserved && memory.reservedBytes > minBytesToKeep; chunk++) {
      if (flags[chunk] === 0) continue;
      seen++;
      const start = base + chunk * CHUNK_BYTES;
      if (!this.#world.ranges.between(start, start + CHUNK_BYTES).next().done) continue;
      flags[chunk] = 0;
      memory.reservedBytes -= CHUNK_BYTES;
      dropPages(start, CHUNK_BYTES);
    }
  }

  /**
   * What a synchronization does for every pool: memory above the release threshold goes back to the device. Not so for a pool
   * that was exported: on hardware its memory was still in use after it was freed, synchronized and destroyed.
   */
  #afterSynchronize(): void {
    for (const pool of this.#world.tables.pools.rows()) {
      if (pool.imported !== 0 || pool.exported !== 0) continue;
      this.releaseUnused(pool, Number(this.#world.tables.pools.getLong(pool.id, "releaseThreshold")));
    }
  }

  // ---- freeing

  /** Frees in the order of the stream. */
  freeAsync(range: Range, stream: Stream): void {
    if (range.kind === POOL_IMPORT) {
      this.#streams.waitFor(stream); // seen to block on a busy stream
      this.freeImport(range);
      return;
    }
    if (range.freeing !== 0) throw new Refusal(CUDA_ERROR_INVALID_VALUE);
    range.freeing = stream.id;
    this.#world.queue.enqueue(stream, FREE, { a: range.id, b: range.generation });
  }

  /** Frees once the device has done its work. */
  freeNow(range: Range): void {
    if (range.freeing !== 0) throw new Refusal(CUDA_ERROR_INVALID_VALUE);
    this.#world.waitForDevice();
    this.#endAllocation(range);
  }

  #endAllocation(range: Range): void {
    const pool = this.#world.tables.pools.at(range.owner);
    pool.firstGap = Math.min(pool.firstGap, range.start - this.#base(pool));
    pool.usedBytes -= range.byteLength;
    pool.allocations--;
    this.#world.ranges.remove(range);
    if (pool.destroyed !== 0 && pool.allocations === 0) this.#release(pool);
  }

  /** Unmaps at once, whatever work is queued. All imports at the address are one mapping. */
  freeImport(range: Range): void {
    const pool = this.#world.tables.pools.at(range.owner);
    this.#world.ranges.remove(range);
    this.#countImports(pool);
  }

  // ---- sharing

  exportHandle(handle: number, handleType: number): number {
    const pool = this.#resolveOwn(handle);
    if (handleType !== enums.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || pool.handleTypes !== handleType) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const fd = libc().fcntl(this.#memory(pool).fd, F_DUPFD, 0); // without close-on-exec, as the driver's
    if (fd < 0) throw systemError("fcntl", "Cannot duplicate a pool's file descriptor");
    pool.exported ||= 1;
    this.#world.put(0);
    return this.#world.putI32(fd);
  }

  importHandle(fd: number, handleType: number): number {
    if (fd === 0 || handleType !== enums.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    const header = this.#backing.readHeader(fd);
    if (header === undefined) return CUDA_ERROR_UNKNOWN;
    if (header.kind !== POOL_MEMORY) return CUDA_ERROR_NOT_SUPPORTED;
    if (header.device >= 0 && this.#world.visibleDevice(header.device) === undefined) return CUDA_ERROR_INVALID_DEVICE;
    const { pools } = this.#world.tables;
    for (const pool of pools.rows()) {
      if (pool.imported !== 0 && pool.key === header.key) return this.#world.put(pools.handle(pool.id));
    }
    const memory = this.#backing.adopt(header);
    try {
      this.#backing.map(memory, fd, header);
      const pool = this.#record(memory.id, header, header.device < 0 ? 0 : withAccess(0, header.device, READ_WRITE));
      pool.imported = 1;
      return this.#world.put(pools.handle(pool.id));
    } catch (error) {
      this.#backing.release(memory);
      throw error;
    }
  }

  exportPointer(address: number): number {
    const range = this.#world.ranges.startingAt(address);
    if (range === undefined || range.kind !== POOL || range.freeing !== 0) return CUDA_ERROR_INVALID_VALUE;
    const pool = this.#world.tables.pools.at(range.owner);
    if (pool.exported === 0) return CUDA_ERROR_INVALID_VALUE;
    pool.exported = POINTER_EXPORTED;
    const bytes = new Uint8Array(OPAQUE_BYTES);
    const view = new DataView(bytes.buffer);
    view.setFloat64(EXPORT.pool, pool.key, true);
    view.setBigUint64(EXPORT.generation, BigInt(range.generation), true);
    view.setBigUint64(EXPORT.offset, BigInt(range.start - this.#base(pool)), true);
    view.setBigUint64(EXPORT.byteLength, BigInt(range.byteLength), true);
    view.setUint32(EXPORT.id, range.buffer, true);
    view.setUint32(EXPORT.check, checksum(bytes), true);
    return this.#world.putBytes(bytes);
  }

  /** The driver believes what it is given: the offset and the size are not checked before they do harm. */
  importPointer(handle: number, exportData: Uint8Array): number {
    const pool = this.#resolve(handle);
    const view = new DataView(exportData.buffer, exportData.byteOffset, OPAQUE_BYTES);
    if (pool.imported === 0 || view.getFloat64(EXPORT.pool, true) !== pool.key) return CUDA_ERROR_INVALID_VALUE;
    if (view.getUint32(EXPORT.check, true) !== checksum(exportData)) return CUDA_ERROR_INVALID_VALUE;
    const offset = Number(view.getBigUint64(EXPORT.offset, true));
    const byteLength = Number(view.getBigUint64(EXPORT.byteLength, true));
    if (offset % ALIGNMENT !== 0 || byteLength === 0) return CUDA_ERROR_INVALID_VALUE;
    if (byteLength > IMPORT_LIMIT_BYTES || offset + byteLength > pool.dataBytes) {
      crash(`cuMemPoolImportPointer of ${byteLength} bytes at offset ${offset}`);
    }

    const start = this.#base(pool) + offset;
    const { ranges } = this.#world;
    const overlapping = [...ranges.between(start, start + byteLength)];
    if (overlapping.length > 0 && this.#isHost(pool)) return CUDA_ERROR_ALREADY_MAPPED;
    const generation = Number(view.getBigUint64(EXPORT.generation, true));
    const same = overlapping.find((range) => range.start === start);
    if (same !== undefined) same.generation = generation; // and keeps its size
    else {
      const span = byteLength;
      const range = ranges.add({
        kind: POOL_IMPORT,
        start,
        byteLength,
        span,
        device: this.#device(pool),
        owner: pool.id,
        generation,
      });
      for (const other of overlapping) ranges.markOverlap(range, other);
    }
    this.#countImports(pool);
    return this.#world.put(start);
  }

  /** An importer's mappings keep the chunks below them in use, whatever the exporter does. */
  #countImports(pool: Pool): void {
    const base = this.#base(pool);
    let chunks = 0;
    let counted = 0; // all chunks below this one
    for (const range of this.#world.ranges.between(base, base + pool.dataBytes)) {
      const first = Math.max(counted, Math.floor((range.start - base) / CHUNK_BYTES));
      const end = Math.ceil((range.start + range.span - base) / CHUNK_BYTES);
      chunks += Math.max(0, end - first);
      counted = Math.max(counted, end);
    }
    this.#memory(pool).reservedBytes = chunks * CHUNK_BYTES;
  }
}

/** Over what is neither offset nor size, so that a change of anything else is noticed, as the driver does. */
function checksum(exportData: Uint8Array): number {
  let sum = 0x811c9dc5;
  for (let at = 0; at < OPAQUE_BYTES; at++) {
    const isCovered = at < EXPORT.offset || (at >= EXPORT.id && at < EXPORT.check) || at >= EXPORT.check + 4;
    if (isCovered) sum = Math.imul(sum ^ exportData[at], 0x01000193);
  }
  return sum >>> 0;
}
