/** cuDevice…, cuDevicePrimaryCtx… and cuCtx…: devices and the thread's current context. */
import * as enums from "../enums.ts";
import { CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_VALUE } from "../results.ts";
import type { SimulatedDevice } from "./machine.ts";
import { Refusal } from "./refusal.ts";
import type { World } from "./world.ts";

const DRIVER_VERSION = 13000;
const MULTIPROCESSOR_COUNT = 16;
const WARP_SIZE = 10;
const MAX_THREADS_PER_BLOCK = 1;

/** What a data-centre GPU under Linux says. Attributes that are not here are 0. */
const ATTRIBUTES: ReadonlyMap<number, number> = new Map([
  [MAX_THREADS_PER_BLOCK, 1024],
  [WARP_SIZE, 32],
  [MULTIPROCESSOR_COUNT, 132],
  [enums.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9],
  [enums.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0],
  [enums.CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1],
  [enums.CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1],
  [enums.CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1],
  [enums.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1],
  [enums.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1],
  [enums.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 1],
  [enums.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1],
  [enums.CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, enums.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR],
  [enums.CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1],
  [enums.CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1],
  [enums.CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1],
  [enums.CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED, 1],
  [enums.CU_DEVICE_ATTRIBUTE_NUMA_ID, 0],
  [enums.CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0],
]);
const LAST_ATTRIBUTE = 160;

export class Devices {
  readonly #world: World;

  constructor(world: World) {
    this.#world = world;
  }

  init(flags: number): number {
    if (flags !== 0) return CUDA_ERROR_INVALID_VALUE;
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
    if (attribute === enums.CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) return this.#world.putI32(device.index + 1);
    return this.#world.putI32(ATTRIBUTES.get(attribute) ?? 0);
  }

  canAccessPeer(ordinal: number, peer: number): number {
    const canAccess = this.#world.canAccessPeer(this.#world.device(ordinal).index, this.#world.device(peer).index);
    return this.#world.putI32(canAccess ? 1 : 0);
  }

  // ---- contexts: the primary context of a device is the row of the device

  retainPrimary(ordinal: number): number {
    const row = this.#world.deviceRow(this.#world.device(ordinal).index);
    if (row.retainCount++ === 0) {
      const { streams } = this.#world.tables;
      row.defaultStream = streams.create({ device: row.id - 1, isDefault: 1 }).id;
    }
    return this.#world.put(this.#world.tables.devices.handle(row.id));
  }

  releasePrimary(ordinal: number): number {
    const row = this.#world.deviceRow(this.#world.device(ordinal).index);
    if (row.retainCount === 0) return CUDA_ERROR_INVALID_CONTEXT;
    row.retainCount--;
    return 0;
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
