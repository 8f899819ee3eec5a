/** cuMem…: physical memory of its own, mapped at reserved addresses. Each piece is one memfd. */
import { discardFds } from "../../os/fd.ts";
import { libc, systemError } from "../../os/libc.ts";
import type { MemAccessDesc, MemAllocationProp, MemLocation } from "../driver.ts";
import * as enums from "../enums.ts";
import {
  CUDA_ERROR_INVALID_DEVICE,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_NOT_PERMITTED,
  CUDA_ERROR_NOT_SUPPORTED,
  CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
  CUDA_ERROR_UNKNOWN,
} from "../results.ts";
import { accessOf, READ_WRITE, withAccess } from "./access.ts";
import { type Backing, DATA_AT, type MemoryHeader, PHYSICAL_MEMORY, randomKey } from "./backing.ts";
import { nameMemory, openNamedMemory } from "./named_memory.ts";
import { mapAt, reserveAddresses, unmap, unmapAt } from "./native.ts";
import { type Range, VIRTUAL } from "./ranges.ts";
import { Refusal } from "./refusal.ts";
import type { RowOf } from "./state.ts";
import type { World } from "./world.ts";

type Physical = RowOf<"physicals">;

const POSIX_FD = enums.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const FABRIC = enums.CU_MEM_HANDLE_TYPE_FABRIC;
const KNOWN_HANDLE_TYPES = POSIX_FD | FABRIC;
const GRANULARITY = 2 * 2 ** 20;
const F_DUPFD_CLOEXEC = 1030;

export class VirtualMemory {
  readonly #world: World;
  readonly #backing: Backing;

  constructor(world: World, backing: Backing) {
    this.#world = world;
    this.#backing = backing;
  }

  #resolve(handle: number): Physical {
    const physical = this.#world.tables.physicals.find(handle);
    if (physical === undefined || physical.handles === 0) throw new Refusal(CUDA_ERROR_INVALID_VALUE);
    return physical;
  }

  #memory(physical: Physical): RowOf<"memories"> {
    return this.#world.tables.memories.at(physical.memory);
  }

  /** Where the properties put memory: the device's index, or -1 for the host. Refuses what cannot be had. */
  #locate({ type = 0, requestedHandleTypes = 0, locationType = 0, locationId = 0 }: MemAllocationProp): number {
    if (type !== enums.CU_MEM_ALLOCATION_TYPE_PINNED) throw new Refusal(CUDA_ERROR_INVALID_VALUE);
    const { hasImexChannel, sharedVirtualMemory = 0 } = this.#world.machine.profile;
    if (requestedHandleTypes !== 0 && sharedVirtualMemory !== 0) throw new Refusal(sharedVirtualMemory);
    if ((requestedHandleTypes & ~KNOWN_HANDLE_TYPES) !== 0) throw new Refusal(CUDA_ERROR_NOT_SUPPORTED);
    if ((requestedHandleTypes & FABRIC) !== 0 && !hasImexChannel) throw new Refusal(CUDA_ERROR_NOT_PERMITTED);
    switch (locationType) {
      case enums.CU_MEM_LOCATION_TYPE_DEVICE:
        return this.#world.device(locationId).index;
      case enums.CU_MEM_LOCATION_TYPE_HOST_NUMA:
        if (locationId === 0) return -1; // the simulated machine has one node
        break;
      case enums.CU_MEM_LOCATION_TYPE_HOST:
        if (requestedHandleTypes === 0) return -1;
    }
    throw new Refusal(CUDA_ERROR_INVALID_VALUE);
  }

  granularity(prop: MemAllocationProp, option: number): number {
    this.#locate(prop);
    const isKnown = option === enums.CU_MEM_ALLOC_GRANULARITY_MINIMUM || option === enums.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    return isKnown ? this.#world.put(GRANULARITY) : CUDA_ERROR_INVALID_VALUE;
  }

  // ---- physical memory

  create(byteLength: number, prop: MemAllocationProp): number {
    const device = this.#locate(prop);
    if (byteLength === 0 || byteLength % GRANULARITY !== 0) return CUDA_ERROR_INVALID_VALUE;
    this.#backing.checkFree(device, byteLength);
    const header: MemoryHeader = {
      kind: PHYSICAL_MEMORY,
      device,
      locationType: prop.locationType ?? 0,
      locationId: prop.locationId ?? 0,
      handleTypes: prop.requestedHandleTypes ?? 0,
      dataBytes: byteLength,
      key: randomKey(),
    };
    return this.#record(this.#backing.create(header, byteLength), header);
  }

  #record(memory: RowOf<"memories">, header: MemoryHeader): number {
    const { dataBytes: byteLength, locationType, locationId, handleTypes } = header;
    const values = { memory: memory.id, byteLength, locationType, locationId, handleTypes, handles: 1 };
    const { physicals } = this.#world.tables;
    try {
      return this.#world.put(physicals.handle(physicals.create(values).id));
    } catch (error) {
      this.#backing.release(memory);
      throw error;
    }
  }

  /** The memory lives on while it is mapped. */
  release(handle: number): number {
    const physical = this.#resolve(handle);
    physical.handles--;
    this.#dropUnused(physical);
    return 0;
  }

  /** Gives the handle of what is mapped at an address, be it that all of its holders have released it. */
  retain(address: number): number {
    const range = this.#world.ranges.find(address);
    if (range?.kind !== VIRTUAL) return CUDA_ERROR_INVALID_VALUE;
    const { physicals } = this.#world.tables;
    const physical = physicals.at(range.owner);
    physical.handles++;
    return this.#world.put(physicals.handle(physical.id));
  }

  #dropUnused(physical: Physical): void {
    if (physical.handles > 0 || physical.mappings > 0) return;
    this.#backing.release(this.#memory(physical));
    this.#world.tables.physicals.destroy(physical.id);
  }

  // ---- addresses

  reserve(byteLength: number, alignment: number): number {
    if (byteLength === 0 || byteLength % GRANULARITY !== 0) return CUDA_ERROR_INVALID_VALUE;
    if (alignment !== 0 && (!Number.isInteger(Math.log2(alignment)) || alignment > byteLength * 2 ** 20)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const start = reserveAddresses(byteLength, Math.max(alignment, GRANULARITY));
    this.#world.tables.reservations.create({ start, byteLength });
    return this.#world.put(start);
  }

  /** Takes back exactly what was reserved, when nothing is mapped there any more. */
  free(start: number, byteLength: number): number {
    const reservation = reservationAt(this.#world, start);
    const isExact = reservation?.start === start && reservation.byteLength === byteLength;
    if (!isExact || !this.#world.ranges.between(start, start + byteLength).next().done) return CUDA_ERROR_INVALID_VALUE;
    this.#world.tables.reservations.destroy(reservation.id);
    unmap(start, byteLength);
    return 0;
  }

  // ---- mappings

  map(start: number, byteLength: number, byteOffset: number, handle: number): number {
    const physical = this.#resolve(handle);
    const reservation = reservationAt(this.#world, start);
    const isInside = reservation !== undefined && start + byteLength <= reservation.start + reservation.byteLength;
    const isAligned = start % GRANULARITY === 0 && byteLength % GRANULARITY === 0 && byteLength > 0;
    if (!isInside || !isAligned) return CUDA_ERROR_INVALID_VALUE;
    if (byteOffset !== 0 || byteLength !== physical.byteLength) return CUDA_ERROR_NOT_SUPPORTED; // in whole or not at all
    if (!this.#world.ranges.between(start, start + byteLength).next().done) return CUDA_ERROR_INVALID_VALUE;
    const memory = this.#memory(physical);
    mapAt(start, memory.fd, byteLength, DATA_AT);
    this.#world.ranges.add({ kind: VIRTUAL, start, byteLength, device: memory.device, owner: physical.id });
    physical.mappings++;
    return 0;
  }

  /** Does not wait for work on the memory: what is still queued runs into nothing. */
  unmap(start: number, byteLength: number): number {
    const ranges = this.#mapped(start, byteLength);
    for (const range of ranges) {
      const physical = this.#world.tables.physicals.at(range.owner);
      unmapAt(range.start, range.byteLength);
      this.#world.ranges.remove(range);
      physical.mappings--;
      this.#dropUnused(physical);
    }
    return 0;
  }

  /** The mappings that fill the addresses exactly. */
  #mapped(start: number, byteLength: number): Range[] {
    const ranges = [...this.#world.ranges.between(start, start + byteLength)];
    let end = start;
    for (const range of ranges) {
      if (range.kind !== VIRTUAL || range.start !== end) throw new Refusal(CUDA_ERROR_INVALID_VALUE);
      end += range.byteLength;
    }
    if (end !== start + byteLength || ranges.length === 0) throw new Refusal(CUDA_ERROR_INVALID_VALUE);
    return ranges;
  }

  setAccess(start: number, byteLength: number, accesses: readonly MemAccessDesc[]): number {
    const ranges = this.#mapped(start, byteLength);
    if (accesses.length === 0) return CUDA_ERROR_INVALID_VALUE;
    for (const { locationType = 0, locationId = 0, flags = 0 } of accesses) {
      if (flags !== 0 && flags !== READ_WRITE && flags !== enums.CU_MEM_ACCESS_FLAGS_PROT_READ) return CUDA_ERROR_INVALID_VALUE;
      for (const range of ranges) {
        if (locationType === enums.CU_MEM_LOCATION_TYPE_DEVICE) this.#setDeviceAccess(range, locationId, flags);
        else if (range.device >= 0) return CUDA_ERROR_NOT_SUPPORTED; // the host has no access to a device's memory
      }
    }
    return 0;
  }

  #setDeviceAccess(range: Range, ordinal: number, flags: number): void {
    const { index } = this.#world.device(ordinal);
    if (range.device >= 0 && index !== range.device && !this.#world.canAccessPeer(index, range.device)) {
      throw new Refusal(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    }
    range.access = withAccess(range.access, index, flags);
  }

  getAccess({ type = 0, id = 0 }: MemLocation, address: number): number {
    const range = this.#world.ranges.find(address);
    if (range?.kind !== VIRTUAL || type !== enums.CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    return this.#world.put(accessOf(range.access, this.#world.device(id).index));
  }

  // ---- sharing

  exportHandle(handle: number, handleType: number): number {
    const physical = this.#resolve(handle);
    if ((handleType !== POSIX_FD && handleType !== FABRIC) || (physical.handleTypes & handleType) === 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const { fd } = this.#memory(physical);
    if (handleType === FABRIC) return this.#world.putBytes(nameMemory(this.#world.state, fd, this.#backing.readHeader(fd)!.key));
    this.#world.put(0);
    return this.#world.putI32(duplicate(fd));
  }

  importHandle(osHandle: number | Uint8Array, handleType: number): number {
    if (handleType === POSIX_FD && typeof osHandle === "number") return this.#import(osHandle);
    if (handleType !== FABRIC || typeof osHandle === "number") return CUDA_ERROR_INVALID_VALUE;
    if (!this.#world.machine.profile.hasImexChannel) return CUDA_ERROR_NOT_SUPPORTED;
    const named = openNamedMemory(this.#world.state, osHandle);
    if (named === undefined) return CUDA_ERROR_INVALID_VALUE;
    try {
      return this.#backing.readHeader(named.fd)?.key === named.key ? this.#import(named.fd) : CUDA_ERROR_INVALID_VALUE;
    } finally {
      discardFds(named.fd);
    }
  }

  #import(fd: number): number {
    const header = this.#backing.readHeader(fd);
    if (header === undefined) return CUDA_ERROR_UNKNOWN;
    if (header.kind !== PHYSICAL_MEMORY) return CUDA_ERROR_NOT_SUPPORTED;
    if (header.device >= 0 && this.#world.visibleDevice(header.device) === undefined) return CUDA_ERROR_INVALID_DEVICE;
    const copy = duplicate(fd);
    // What was imported is nobody's to export
    return this.#record(this.#backing.adopt(header, header.dataBytes, copy), { ...header, handleTypes: 0 });
  }
}

/** The reserved addresses around one. */
export function reservationAt(world: World, address: number): RowOf<"reservations"> | undefined {
  for (const reservation of world.tables.reservations.rows()) {
    if (address >= reservation.start && address < reservation.start + reservation.byteLength) return reservation;
  }
}

function duplicate(fd: number): number {
  const copy = libc().fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) throw systemError("fcntl", "Cannot duplicate a file descriptor of physical memory");
  return copy;
}
