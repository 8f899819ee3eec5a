import { Device, type DeviceBuffer, HostPool, legacy, MemoryPool, VirtualMemory } from "../../mod.ts";

export const KINDS = ["pool", "virtual", "host", "legacy"] as const;

export interface Allocators extends Disposable {
  readonly device: Device;
  readonly pool: MemoryPool;
  readonly hosts: HostPool;
  allocate(kind: typeof KINDS[number], byteLength: number): DeviceBuffer;
  finished(): Promise<void>;
  /** Gives back what the pool of device memory keeps for later allocations. */
  trim(): void;
}

/** A device and a pool of each kind, all shareable. */
export function openAllocators(): Allocators {
  const device = Device.open(0);
  const stream = device.createStream();
  const pool = MemoryPool.create(device, { ipc: true });
  const hosts = HostPool.create(device, { ipc: true });
  return {
    device,
    pool,
    hosts,
    allocate(kind, byteLength) {
      switch (kind) {
        case "pool":
          return pool.allocate(byteLength, { stream });
        case "virtual":
          return VirtualMemory.allocate(device, byteLength, { ipc: true, stream });
        case "host":
          return hosts.allocate(byteLength, { stream });
        case "legacy":
          return legacy.allocate(device, byteLength, { stream });
      }
    },
    finished: () => stream.finished(),
    trim: () => pool.trim(),
    [Symbol.dispose]() {
      for (const object of [hosts, pool, stream, device]) object.close();
    },
  };
}
