/** cuMemAlloc, cuMemHost…, freeing, and what a pointer is. */
import * as enums from "../enums.ts";
import {
  CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
  CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_NOT_FOUND,
} from "../results.ts";
import { type Backing, type MemoryHeader, PLAIN_MEMORY, randomKey } from "./backing.ts";
import { mapAnonymous, unmap } from "./native.ts";
import type { Pools } from "./pool.ts";
import { HOST, LEGACY_IMPORT, PLAIN, POOL, POOL_IMPORT, type Range, REGISTERED, VIRTUAL } from "./ranges.ts";
import type { Streams } from "./stream.ts";
import { reservationAt } from "./vmm.ts";
import type { World } from "./world.ts";

/** What cuMemAlloc takes from the device for each allocation. */
const PLAIN_GRANULARITY = 2 * 2 ** 20;
const HOST_GRANULARITY = 65536;
const KNOWN_HOST_ALLOC_FLAGS = 7;
const KNOWN_REGISTER_FLAGS = 15;

export class Allocations {
  readonly #world: World;
  readonly #backing: Backing;
  readonly #pools: Pools;
  readonly #streams: Streams;

  constructor(world: World, backing: Backing, pools: Pools, streams: Streams) {
    this.#world = world;
    this.#backing = backing;
    this.#pools = pools;
    this.#streams = streams;
  }

  memoryInfo(): number {
    const device = this.#world.context();
    this.#world.put(this.#backing.freeBytes(device.index), 0);
    return this.#world.put(device.totalBytes, 8);
  }

  // ---- plain device memory

  allocate(byteLength: number): number {
    const { index } = this.#world.context();
    if (byteLength === 0) return CUDA_ERROR_INVALID_VALUE;
    const dataBytes = Math.ceil(byteLength / PLAIN_GRANULARITY) * PLAIN_GRANULARITY;
    this.#backing.checkFree(index, dataBytes);
    const header: MemoryHeader = {
      kind: PLAIN_MEMORY,
      device: index,
      locationType: enums.CU_MEM_LOCATION_TYPE_DEVICE,
      locationId: index,
      handleTypes: 0,
      dataBytes,
      key: randomKey(),
    };
    const memory = this.#backing.create(header, dataBytes);
    try {
      const start = this.#backing.map(memory, memory.fd, header);
      this.#world.ranges.add({ kind: PLAIN, start, byteLength, device: index, owner: memory.id, generation: header.key });
      return this.#world.put(start);
    } catch (error) {
      this.#backing.release(memory);
      throw error;
    }
  }

  free(address: number): number {
    if (address === 0) return 0;
    const range = this.#world.ranges.startingAt(address);
    switch (range?.kind) {
      case POOL:
        this.#pools.freeNow(range);
        return 0;
      case POOL_IMPORT:
        this.#pools.freeImport(range);
        return 0;
      case PLAIN:
        this.#world.waitForDevice();
        this.releasePlain(range);
        return 0;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  }

  releasePlain(range: Range): void {
    const { owner } = range;
    this.#world.ranges.remove(range);
    this.#backing.release(this.#world.tables.memories.at(owner));
  }

  freeAsync(address: number, streamHandle: number): number {
    const stream = this.#streams.resolve(streamHandle);
    if (address === 0) return 0;
    const range = this.#world.ranges.startingAt(address);
    if (range === undefined || (range.kind !== POOL && range.kind !== POOL_IMPORT)) return CUDA_ERROR_INVALID_VALUE;
    this.#pools.freeAsync(range, stream);
    return 0;
  }

  // ---- host memory

  hostAlloc(byteLength: number, flags: number): number {
    const { index } = this.#world.context();
    if (byteLength === 0 || (flags & ~KNOWN_HOST_ALLOC_FLAGS) !== 0) return CUDA_ERROR_INVALID_VALUE;
    const span = Math.ceil(byteLength / HOST_GRANULARITY) * HOST_GRANULARITY;
    const start = mapAnonymous(span);
    this.#world.ranges.add({ kind: HOST, start, byteLength, span, device: -1, owner: index });
    return this.#world.put(start);
  }

  freeHost(address: number): number {
    const range = this.#world.ranges.startingAt(address);
    if (range?.kind !== HOST) return CUDA_ERROR_INVALID_VALUE;
    this.#world.waitForDevice();
    this.#releaseHost(range);
    return 0;
  }

  #releaseHost(range: Range): void {
    const { start, span } = range;
    this.#world.ranges.remove(range);
    unmap(start, span);
  }

  register(address: number, byteLength: number, flags: number): number {
    const { index } = this.#world.context();
    if (address === 0 || byteLength === 0 || (flags & ~KNOWN_REGISTER_FLAGS) !== 0) return CUDA_ERROR_INVALID_VALUE;
    for (const range of this.#world.ranges.between(address, address + byteLength)) {
      return range.kind === REGISTERED || range.kind === HOST
        ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
        : CUDA_ERROR_INVALID_VALUE;
    }
    this.#world.ranges.add({ kind: REGISTERED, start: address, byteLength, device: -1, owner: index });
    return 0;
  }

  unregister(address: number): number {
    this.#world.context();
    const range = this.#world.ranges.startingAt(address);
    if (range?.kind !== REGISTERED) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    this.#world.waitForDevice();
    this.#world.ranges.remove(range);
    return 0;
  }

  hostDevicePointer(address: number): number {
    const range = this.#world.ranges.find(address);
    if (range?.kind !== HOST && range?.kind !== REGISTERED) return CUDA_ERROR_INVALID_VALUE;
    return this.#world.put(address);
  }

  /** What belongs to a device's context ends with it. Pools and virtual memory do not belong to it. */
  endContext(device: number): void {
    for (const range of this.#world.tables.ranges.rows()) {
      if (range.kind === PLAIN || range.kind === LEGACY_IMPORT) {
        if (range.device === device) this.releasePlain(range);
      } else if (range.owner === device) {
        if (range.kind === HOST) this.#releaseHost(range);
        if (range.kind === REGISTERED) this.#world.ranges.remove(range);
      }
    }
  }

  // ---- what a pointer is

  addressRange(address: number): number {
    const range = this.#world.ranges.find(address);
    const isInHostPool = range !== undefined && range.device < 0 && isInPool(range);
    if (range === undefined || isInHostPool) return CUDA_ERROR_NOT_FOUND;
    this.#world.put(range.start, 0);
    return this.#world.put(range.byteLength, 8);
  }

  pointerAttribute(attribute: number, address: number): number {
    const range = this.#world.ranges.find(address);
    const value = range === undefined ? undefined : this.#mappable(attribute, address) ?? this.#attribute(attribute, range);
    return value === undefined ? CUDA_ERROR_INVALID_VALUE : this.#world.put(value);
  }

  /** For virtual memory the driver tells the reserved addresses, whatever is mapped there. */
  #mappable(attribute: number, address: number): number | undefined {
    const reservation = reservationAt(this.#world, address);
    if (attribute === enums.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) return reservation?.start;
    if (attribute === enums.CU_POINTER_ATTRIBUTE_RANGE_SIZE) return reservation?.byteLength;
  }

  #attribute(attribute: number, range: Range): number | undefined {
    const { tables } = this.#world;
    switch (attribute) {
      case enums.CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        return range.device < 0 ? enums.CU_MEMORYTYPE_HOST : enums.CU_MEMORYTYPE_DEVICE;
      case enums.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        return range.device < 0 ? 0 : this.#world.ordinalOf(range.device);
      case enums.CU_POINTER_ATTRIBUTE_BUFFER_ID:
        return range.buffer;
      case enums.CU_POINTER_ATTRIBUTE_IS_MANAGED:
        return 0;
      case enums.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        return range.kind === PLAIN || range.kind === LEGACY_IMPORT ? 1 : 0;
      case enums.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        return range.device < 0 && isInPool(range) ? 0 : range.start;
      case enums.CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        return range.byteLength;
      case enums.CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        if (range.kind === POOL) return tables.pools.get(range.owner, "handleTypes");
        return range.kind === VIRTUAL ? tables.physicals.get(range.owner, "handleTypes") : 0;
      case enums.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        return isInPool(range) ? tables.pools.handle(range.owner) : 0;
      default:
        return undefined;
    }
  }
}

function isInPool({ kind }: Range): boolean {
  return kind === POOL || kind === POOL_IMPORT;
}
