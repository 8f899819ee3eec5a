/** cuDevice…, cuDevicePrimaryCtx… and cuCtx…: devices and the thread's current context. */
import { readLink } from "../../os/file.ts";
import { DEVICE_ATTRIBUTES } from "../device_attributes.ts";
import * as enums from "../enums.ts";
import {
  CUDA_ERROR_DEVICE_UNAVAILABLE,
  CUDA_ERROR_INVALID_CONTEXT,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_OPERATING_SYSTEM,
} from "../results.ts";
import type { Events } from "./event.ts";
import type { Allocations } from "./memory.ts";
import type { SimulatedDevice } from "./machine.ts";
import type { Profile } from "./profiles.ts";
import { Refusal } from "./refusal.ts";
import type { World } from "./world.ts";

const DRIVER_VERSION = 13000;
type AttributeValues = NonNullable<Profile["attributes"]>;

/** What a data-centre GPU under Linux says. Attributes that are not here are 0. */
const ATTRIBUTES: AttributeValues = {
  MAX_THREADS_PER_BLOCK: 1024,
  WARP_SIZE: 32,
  MULTIPROCESSOR_COUNT: 132,
  ASYNC_ENGINE_COUNT: 3,
  CONCURRENT_KERNELS: 1,
  CAN_MAP_HOST_MEMORY: 1,
  COMPUTE_CAPABILITY_MAJOR: 9,
  COMPUTE_CAPABILITY_MINOR: 0,
  UNIFIED_ADDRESSING: 1,
  STREAM_PRIORITIES_SUPPORTED: 1,
  CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: 1,
  HOST_REGISTER_SUPPORTED: 1,
  VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: 1,
  HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: 1,
  HANDLE_TYPE_FABRIC_SUPPORTED: 1,
  MEMORY_POOLS_SUPPORTED: 1,
  MEMPOOL_SUPPORTED_HANDLE_TYPES: enums.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
  CAN_USE_64_BIT_STREAM_MEM_OPS: 1,
  IPC_EVENT_SUPPORTED: 1,
  HOST_NUMA_ID: 0,
  NUMA_ID: -1,
  HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: 1,
  HOST_NUMA_MEMORY_POOLS_SUPPORTED: 1,
};
const LAST_ATTRIBUTE = Math.max(...Object.values(DEVICE_ATTRIBUTES));

function byNumber(values: AttributeValues): [number, number][] {
  return Object.entries(values).map(([name, value]) => [DEVICE_ATTRIBUTES[name as keyof typeof DEVICE_ATTRIBUTES], value]);
}

export class Devices {
  readonly #world: World;
  readonly #events: Events;
  readonly #allocations: Allocations;
  readonly #attributes: ReadonlyMap<number, number>;

  constructor(world: World, events: Events, allocations: Allocations) {
    this.#world = world;
    this.#events = events;
    this.#allocations = allocations;
    this.#attributes = new Map([...byNumber(ATTRIBUTES), ...byNumber(world.machine.profile.attributes ?? {})]);
  }

  init(flags: number): number {
    if (flags !== 0) return CUDA_ERROR_INVALID_VALUE;
    // A /proc of another pid namespace: the driver looks at its own process there too
    if (readLink("/proc/self") !== String(this.#world.state.pid)) return CUDA_ERROR_OPERATING_SYSTEM;
    this.#world.state.process.initialized = 1;
    return 0;
  }

  driverVersion(): number {
    return this.#world.putI32(DRIVER_VERSION);
  }

  count(): number {
    return this.#world.putI32(this.#world.machine.devices.length);
  }

  get(ordinal: number): number {
    this.#world.device(ordinal);
    return this.#world.putI32(ordinal);
  }

  name(ordinal: number): number {
    return this.#world.putBytes(new TextEncoder().encode(this.#world.device(ordinal).name + "\0"));
  }

  uuid(ordinal: number): number {
    return this.#world.putBytes(this.#world.device(ordinal).uuidBytes);
  }

  totalMemory(ordinal: number): number {
    return this.#world.put(this.#world.device(ordinal).totalBytes);
  }

  attribute(attribute: number, ordinal: number): number {
    const device = this.#world.device(ordinal);
    if (!Number.isInteger(attribute) || attribute < 1 || attribute > LAST_ATTRIBUTE) return CUDA_ERROR_INVALID_VALUE;
    if (attribute === DEVICE_ATTRIBUTES.PCI_BUS_ID) return this.#world.putI32(device.index + 1);
    return this.#world.putI32(this.#attributes.get(attribute) ?? 0);
  }

  canAccessPeer(ordinal: number, peer: number): number {
    const canAccess = this.#world.canAccessPeer(this.#world.device(ordinal).index, this.#world.device(peer).index);
    return this.#world.putI32(canAccess ? 1 : 0);
  }

  // ---- contexts: the primary context of a device is the row of the device

  retainPrimary(ordinal: number): number {
    const { index } = this.#world.device(ordinal);
    const row = this.#world.deviceRow(index);
    if (row.retainCount === 0) {
      if (this.#world.machine.profile.isExclusive && this.#isUsedElsewhere(index)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
      row.defaultStream = this.#world.tables.streams.create({ device: index, isDefault: 1 }).id;
    }
    row.retainCount++;
    return this.#world.put(this.#world.tables.devices.handle(row.id));
  }

  #isUsedElsewhere(index: number): boolean {
    return this.#world.foreign.list().some(({ tables }) => tables.devices.get(index + 1, "retainCount") > 0);
  }

  releasePrimary(ordinal: number): number {
    const row = this.#world.deviceRow(this.#world.device(ordinal).index);
    if (row.retainCount === 0) return CUDA_ERROR_INVALID_CONTEXT;
    row.retainCount--;
    if (row.retainCount === 0) this.#endContext(row.id - 1);
    return 0;
  }

  /** With the last reference the context goes, and with it all that was made in it. */
  #endContext(index: number): void {
    const { queue, tables } = this.#world;
    for (const stream of tables.streams.rows()) {
      if (stream.device !== index) continue;
      queue.clear(stream);
      if (tables.streams.isLive(stream.id)) tables.streams.destroy(stream.id);
    }
    this.#events.endContext(index);
    this.#allocations.endContext(index);
    Object.assign(this.#world.deviceRow(index), { defaultStream: 0, lostCode: 0 });
  }

  setCurrent(context: number): number {
    if (context === 0) {
      this.#world.current = undefined;
      return 0;
    }
    this.#world.current = this.resolveContext(context);
    return 0;
  }

  /** The device whose primary context this is. */
  resolveContext(context: number): SimulatedDevice {
    const row = this.#world.tables.devices.find(context);
    const device = row === undefined || row.retainCount === 0 ? undefined : this.#world.visibleDevice(row.id - 1);
    if (device === undefined) throw new Refusal(CUDA_ERROR_INVALID_CONTEXT);
    return device;
  }

  getCurrent(): number {
    const { current } = this.#world;
    return this.#world.put(current === undefined ? 0 : this.#world.tables.devices.handle(current.index + 1));
  }
}
