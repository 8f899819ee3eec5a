/** cuIpc…MemHandle: handles that name a cuMemAlloc allocation, for processes that find each other without descriptors. */
import { cString, libc } from "../../os/libc.ts";
import { discardFds } from "../../os/fd.ts";
import { CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS } from "../enums.ts";
import { CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE } from "../results.ts";
import { OPAQUE_BYTES } from "../structs.ts";
import { type Backing, PLAIN_MEMORY } from "./backing.ts";
import type { Allocations } from "./memory.ts";
import { LEGACY_IMPORT, PLAIN, type Range } from "./ranges.ts";
import { isProcess } from "./state.ts";
import type { World } from "./world.ts";

const MAGIC = 0x6d65_4953; // "SIem"
const HANDLE = { magic: 0, pid: 4, state: 8, fd: 16, key: 24, byteLength: 32 };
const O_RDWR_CLOEXEC = 0o2000002;

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
    const bytes = new Uint8Array(OPAQUE_BYTES);
    const view = new DataView(bytes.buffer);
    view.setUint32(HANDLE.magic, MAGIC, true);
    view.setUint32(HANDLE.pid, this.#world.state.pid, true);
    view.setFloat64(HANDLE.state, this.#world.state.token, true);
    view.setUint32(HANDLE.fd, this.#world.tables.memories.get(range.owner, "fd"), true);
    view.setFloat64(HANDLE.key, range.generation, true);
    view.setFloat64(HANDLE.byteLength, range.byteLength, true);
    return this.#world.putBytes(bytes);
  }

  /** Opening again counts: the mapping goes with the last close. */
  open(handle: Uint8Array, flags: number): number {
    this.#world.context();
    const view = new DataView(handle.buffer, handle.byteOffset, OPAQUE_BYTES);
    if (flags !== CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || view.getUint32(HANDLE.magic, true) !== MAGIC) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const pid = view.getUint32(HANDLE.pid, true);
    const state = view.getFloat64(HANDLE.state, true);
    const key = view.getFloat64(HANDLE.key, true);
    if (pid === this.#world.state.pid && state === this.#world.state.token) return CUDA_ERROR_INVALID_CONTEXT;
    const known = this.#find(key);
    if (known !== undefined) {
      known.references++;
      return this.#world.put(known.start);
    }
    if (!isProcess(pid, state)) return CUDA_ERROR_INVALID_VALUE;
    const fd = libc().open(cString(`/proc/${pid}/fd/${view.getUint32(HANDLE.fd, true)}`), O_RDWR_CLOEXEC, 0);
    if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
    try {
      return this.#map(fd, key, view.getFloat64(HANDLE.byteLength, true));
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
    const memory = this.#backing.adopt(fd, header, header.dataBytes);
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
