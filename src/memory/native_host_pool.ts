/** What is behind a HostPool: a pool of the driver's (host_driver_pool.ts), or shared memory that it registered. */
import type { Text } from "../arguments.ts";
import type { Context } from "../context.ts";
import type { Device } from "../device.ts";
import type { NativeStream } from "../native_stream.ts";
import type { BufferDescriptor } from "../wire/descriptor.ts";
import type { Allocation } from "./allocation.ts";
import type { AllocationHandle } from "./allocation_handle.ts";

/** Bytes that a host pool holds. */
export interface HostPoolUsage {
  readonly reservedBytes: number;
  readonly usedBytes: number;
}

/** Counted, since allocations outlive the object that the user closed. */
export interface NativeHostPool {
  readonly context: Context;
  readonly id: string;
  readonly isImported: boolean;
  readonly isIpcEnabled: boolean;
  /** Memory that the host may use at once. */
  allocate(byteLength: number, stream: NativeStream): Allocation;
  /** The allocations that were exported, by generation: an import in this same process becomes an alias. */
  readonly exported: ReadonlyMap<number, Allocation>;
  /** Maps an allocation of another process. */
  open(descriptor: BufferDescriptor, stream: NativeStream, action: Text): Allocation;
  /** Whether memory that was given up here, and waits for its streams' work, is in the way of `open`. */
  mustOpenLater(descriptor: BufferDescriptor, action: Text): boolean;
  exportHandle(): AllocationHandle;
  usage(): HostPoolUsage;
  /** The last release ends the pool. */
  release(): void;
  toString(): string;
}

/** What `DeviceBuffer.import` needs of a HostPool. */
export interface HostPoolParts {
  readonly native: NativeHostPool;
  readonly device: Device | null;
}

type HostPoolAccess = (value: unknown, action: Text | undefined) => HostPoolParts | undefined;
let access: HostPoolAccess = () => undefined;

/** host_pool.ts lends its view into HostPool, so that the modules below it need not import it. */
export function provideHostPoolAccess(provided: HostPoolAccess): void {
  access = provided;
}

/** What is behind an open HostPool; undefined for anything else. Throws ClosedError for a closed one. */
export function hostPoolParts(value: unknown, action: Text): HostPoolParts | undefined {
  return access(value, action);
}

/** The same also of a closed one, whose buffers live on. */
export function hostPoolOf(buffer: { readonly pool: unknown }): NativeHostPool | undefined {
  return access(buffer.pool, undefined)?.native;
}
