/** Memory pools that cross a channel: each handle once, and then by a number. */
import type { Device } from "../device.ts";
import { DeviceNotVisibleError, NotSupportedError, ProtocolError } from "../errors.ts";
import { type AllocationHandle, ownDriverHandle } from "../memory/allocation_handle.ts";
import { type NativePool, nativePool } from "../memory/native_pool.ts";
import { MemoryPool } from "../memory/pool.ts";
import { discardFds, duplicateFd, setCloseOnExec } from "../os/fd.ts";
import type { PoolJson } from "../wire/messages.ts";

/** What a peer may make us keep open. */
const MAX_POOLS = 1024;

/** The handles of pools that came over a channel, so that their buffers can be sent on: the driver exports no imported pool. */
const handles = new WeakMap<NativePool, AllocationHandle>();

/** A descriptor for the pool, which the caller closes. */
export function poolFd(pool: NativePool): number {
  if (!pool.isImported) {
    const fd = pool.export();
    setCloseOnExec(fd);
    return fd;
  }
  const handle = handles.get(pool);
  if (handle === undefined || handle.isClosed) {
    throw new NotSupportedError(
      `Cannot send a buffer of ${pool}: its handle did not come over a channel that is still open, and the driver exports no ` +
        "imported pool. Let its owner send it",
    );
  }
  return duplicateFd(handle.fd);
}

interface Announced {
  readonly json: PoolJson;
  readonly handle: AllocationHandle;
  pool: MemoryPool | undefined;
}

/** Pools that the peer has announced. */
export class PeerPools {
  readonly #pools = new Map<number, Announced>();

  /** Takes the descriptor over. */
  add(json: PoolJson, fd: number): void {
    if (this.#pools.has(json.id) || this.#pools.size >= MAX_POOLS) {
      discardFds(fd);
      throw new ProtocolError(`Cannot take pool ${json.id} from the peer: expected a new number, and at most ${MAX_POOLS} pools`);
    }
    this.#pools.set(json.id, { json, handle: ownDriverHandle(fd, json.poolId), pool: undefined });
  }

  has(id: number): boolean {
    return this.#pools.has(id);
  }

  /** The pool on whichever of the devices it lies, imported at its first use. */
  open(id: number, devices: readonly Device[]): MemoryPool {
    const announced = this.#pools.get(id)!;
    if (announced.pool !== undefined) return announced.pool;
    const { deviceUuid, poolId } = announced.json;
    const device = devices.find(({ uuid }) => uuid === deviceUuid);
    if (device === undefined) throw notVisible(deviceUuid, devices);
    announced.pool = MemoryPool.import(device, announced.handle, { id: poolId });
    handles.set(nativePool(announced.pool, "receive a pool"), announced.handle);
    return announced.pool;
  }

  close(): void {
    for (const { pool, handle } of this.#pools.values()) {
      pool?.close();
      handle.close();
    }
    this.#pools.clear();
  }
}

export function notVisible(deviceUuid: string, devices: readonly Device[]): DeviceNotVisibleError {
  const ours = devices.map(({ uuid }) => uuid).join(", ") || "no device";
  return new DeviceNotVisibleError(
    `Cannot receive what lies on ${deviceUuid}: this channel was opened with ${ours}. Name that device in "devices"`,
  );
}
