/** Memory pools that cross a channel: each handle once, and then by a number. */
import type { Device } from "../device.ts";
import { DeviceNotVisibleError, NotSupportedError, ProtocolError } from "../errors.ts";
import { type AllocationHandle, ownDriverHandle } from "../memory/allocation_handle.ts";
import { HostPool } from "../memory/host_pool.ts";
import { hostPoolParts, type NativeHostPool } from "../memory/native_host_pool.ts";
import { NativePool, nativePool } from "../memory/native_pool.ts";
import { MemoryPool } from "../memory/pool.ts";
import { mustImportLater } from "../memory/pool_import.ts";
import { discardFds, duplicateFd, setCloseOnExec } from "../os/fd.ts";
import type { BufferDescriptor } from "../wire/descriptor.ts";
import { MAX_ANNOUNCED, type PoolJson } from "../wire/messages.ts";

/** What is behind a pool of device or of host memory. */
export type AnyNativePool = NativePool | NativeHostPool;

/** The handles of pools that came over a channel, so that their buffers can be sent on: the driver exports no imported pool. */
const handles = new WeakMap<AnyNativePool, AllocationHandle>();

/** A descriptor for the pool, which the caller closes. */
export function poolFd(pool: AnyNativePool): number {
  if (!pool.isImported) return exportFd(pool);
  const handle = handles.get(pool);
  if (handle === undefined || handle.isClosed) {
    throw new NotSupportedError(
      `Cannot send a buffer of ${pool}: its handle did not come over a channel that is still open, and the driver exports no ` +
        "imported pool. Let its owner send it",
    );
  }
  return duplicateFd(handle.fd);
}

function exportFd(pool: AnyNativePool): number {
  if (pool instanceof NativePool) {
    const fd = pool.export();
    setCloseOnExec(fd);
    return fd;
  }
  using handle = pool.exportHandle();
  return duplicateFd(handle.fd);
}

/** A pool of the peer, counted: messages that wait to be opened need it, whatever the peer forgets. */
export class PeerPool {
  readonly #json: PoolJson;
  readonly #handle: AllocationHandle;
  #pool: MemoryPool | HostPool | undefined;
  #users = 1;

  /** Takes the descriptor over. */
  constructor(json: PoolJson, fd: number) {
    this.#json = json;
    this.#handle = ownDriverHandle(fd, json.poolId);
  }

  hold(): void {
    this.#users++;
  }

  release(): void {
    if (--this.#users > 0) return;
    this.#pool?.close();
    this.#handle.close();
  }

  /** The pool, imported at its first use: on whichever of the devices it lies, or for the host. */
  open(devices: readonly Device[]): MemoryPool | HostPool {
    return this.#pool ??= this.#import(devices);
  }

  /** Whether memory that was given up here, and waits for its streams' work, is in the way of a buffer of the pool. */
  mustImportLater(devices: readonly Device[], descriptor: BufferDescriptor): boolean {
    const pool = this.open(devices);
    const action = "receive a buffer";
    return pool instanceof MemoryPool
      ? mustImportLater(nativePool(pool, action), pool.device, descriptor)
      : hostPoolParts(pool, action)!.native.mustOpenLater(descriptor, action);
  }

  #import(devices: readonly Device[]): MemoryPool | HostPool {
    const { memoryKind, deviceUuid, poolId } = this.#json;
    const handle = this.#handle;
    const device = devices.find(({ uuid }) => uuid === deviceUuid);
    if (memoryKind === "host") {
      const pool = HostPool.import(handle, { device: device ?? devices[0], id: poolId });
      handles.set(hostPoolParts(pool, "receive a pool")!.native, handle);
      return pool;
    }
    if (device === undefined) throw notVisible(deviceUuid, devices);
    const pool = MemoryPool.import(device, handle, { id: poolId });
    handles.set(nativePool(pool, "receive a pool"), handle);
    return pool;
  }
}

/** Pools that the peer has announced. */
export class PeerPools {
  readonly #pools = new Map<number, PeerPool>();

  /** Takes the descriptor over. */
  add(json: PoolJson, fd: number): void {
    if (this.#pools.has(json.id) || this.#pools.size >= MAX_ANNOUNCED) {
      discardFds(fd);
      throw new ProtocolError(
        `Cannot take pool ${json.id} from the peer: expected a new number, and at most ${MAX_ANNOUNCED} pools`,
      );
    }
    this.#pools.set(json.id, new PeerPool(json, fd));
  }

  get(id: number): PeerPool | undefined {
    return this.#pools.get(id);
  }

  forget(id: number): void {
    this.#pools.get(id)?.release();
    this.#pools.delete(id);
  }

  close(): void {
    for (const pool of this.#pools.values()) pool.release();
    this.#pools.clear();
  }
}

export function notVisible(deviceUuid: string, devices: readonly Device[]): DeviceNotVisibleError {
  const ours = devices.map(({ uuid }) => uuid).join(", ") || "no device";
  return new DeviceNotVisibleError(
    `Cannot receive what lies on ${deviceUuid}: this channel was opened with ${ours}. Name that device in "devices"`,
  );
}
