/** cuIpc…MemHandle: handles that name a cuMemAlloc allocation, for processes that find each other without descriptors. */
import { discardFds } from "../../os/fd.ts";
import { CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS } from "../enums.ts";
import { CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE } from "../results.ts";
import { type Backing, PLAIN_MEMORY } from "./backing.ts";
import type { Allocations } from "./memory.ts";
import { nameMemory, openNamedMemory, readMemoryName } from "./named_memory.ts";
import { LEGACY_IMPORT, PLAIN, type Range } from "./ranges.ts";
import type { World } from "./world.ts";

export class LegacyHandles {
  readonly #world: World;
  readonly #backing: Backing;
  readonly #allocations: Allocations;

  constructor(world: World, backing: Backing, allocations: Allocations) {
    this.#world = world;
    this.#backing = backing;
    this.#allocations = allocations;
  }

  /** Names the allocation, whichever of its addresses is given. */
  get(address: number): number {
    this.#world.context();
    const range = this.#world.ranges.find(address);
    if (range?.kind !== PLAIN) return CUDA_ERROR_INVALID_VALUE;
    const { owner, generation: key, byteLength } = range;
    return this.#world.putBytes(nameMemory(this.#world.state, this.#world.tables.memories.get(owner, "fd"), key, byteLength));
  }

  /** Opening again counts: the mapping goes with the last close. */
  open(handle: Uint8Array, flags: number): number {
    this.#world.context();
    const name = readMemoryName(handle);
    if (flags !== CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || name === undefined) return CUDA_ERROR_INVALID_VALUE;
    if (name.pid === this.#world.state.pid && name.state === this.#world.state.token) return CUDA_ERROR_INVALID_CONTEXT;
    const known = this.#find(name.key);
    if (known !== undefined) {
      known.references++;
      return this.#world.put(known.start);
    }
    const fd = openNamedMemory(this.#world.state, handle)?.fd;
    if (fd === undefined) return CUDA_ERROR_INVALID_VALUE;
    try {
      return this.#map(fd, name.key, name.byteLength);
    } finally {
      discardFds(fd);
    }
  }

  #find(key: number): Range | undefined {
    for (const range of this.#world.tables.ranges.rows()) {
      if (range.kind === LEGACY_IMPORT && range.generation === key) return range;
    }
  }

  #map(fd: number, key: number, byteLength: number): number {
    const header = this.#backing.readHeader(fd);
    if (header?.kind !== PLAIN_MEMORY || header.key !== key || !(byteLength > 0 && byteLength <= header.dataBytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (this.#world.visibleDevice(header.device) === undefined) return CUDA_ERROR_INVALID_DEVICE;
    const memory = this.#backing.adopt(header, header.dataBytes);
    try {
      const start = this.#backing.map(memory, fd, header);
      const { device } = header;
      this.#world.ranges.add({ kind: LEGACY_IMPORT, start, byteLength, device, owner: memory.id, generation: key });
      return this.#world.put(start);
    } catch (error) {
      this.#backing.release(memory);
      throw error;
    }
  }

  /** Blocks, as the driver does, until the device has done its work. */
  close(address: number): number {
    const range = this.#world.ranges.startingAt(address);
    if (range?.kind !== LEGACY_IMPORT) return CUDA_ERROR_INVALID_VALUE;
    this.#world.waitForDevice();
    range.references--;
    if (range.references === 0) this.#allocations.releasePlain(range);
    return 0;
  }
}
