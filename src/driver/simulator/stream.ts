/** cuStream…: creating, waiting, and 64-bit memory operations. */
import { createHostView } from "../../../ffi/mod.ts";
import {
  CUDA_ERROR_INVALID_HANDLE,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_NOT_READY,
  CUDA_ERROR_NOT_SUPPORTED,
} from "../results.ts";
import { CU_STREAM_WAIT_VALUE_EQ, CU_STREAM_WAIT_VALUE_GEQ } from "../enums.ts";
import { toAddress } from "./native.ts";
import { type Stream, WAIT_VALUE, WRITE_VALUE } from "./queue.ts";
import { POOL, POOL_IMPORT } from "./ranges.ts";
import { Refusal } from "./refusal.ts";
import type { World } from "./world.ts";

const NON_BLOCKING = 1;
/** NULL, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD: all the default stream of the current context here. */
const DEFAULT_STREAMS = 2;
const LEAST_PRIORITY = 0;
const GREATEST_PRIORITY = -5;

export class Streams {
  readonly #world: World;

  constructor(world: World) {
    this.#world = world;
    world.queue.defineEffect(WRITE_VALUE, ({ a: address, b: high, c: low }) => {
      Atomics.store(wordAt(address), 0, joinLong(high, low));
    });
    world.queue.defineCondition(WAIT_VALUE, ({ a: address, b: high, c: low, d: flags }) => {
      const difference = BigInt.asIntN(64, Atomics.load(wordAt(address), 0) - joinLong(high, low));
      return flags === CU_STREAM_WAIT_VALUE_EQ ? difference === 0n : difference >= 0n;
    });
  }

  /** The stream of a handle that the caller passed. */
  resolve(handle: number): Stream {
    const { tables } = this.#world;
    const stream = handle <= DEFAULT_STREAMS
      ? tables.streams.at(this.#world.deviceRow(this.#world.context().index).defaultStream)
      : tables.streams.find(handle);
    if (stream === undefined || stream.isRetired !== 0) throw new Refusal(CUDA_ERROR_INVALID_HANDLE);
    this.#world.checkNotLost(stream.device);
    return stream;
  }

  priorityRange(): number {
    this.#world.context();
    this.#world.putI32(LEAST_PRIORITY, 0);
    return this.#world.putI32(GREATEST_PRIORITY, 8);
  }

  create(flags: number, priority: number): number {
    const { index } = this.#world.context();
    if ((flags & ~NON_BLOCKING) !== 0) return CUDA_ERROR_INVALID_VALUE;
    const clamped = Math.max(GREATEST_PRIORITY, Math.min(LEAST_PRIORITY, priority));
    const { streams } = this.#world.tables;
    return this.#world.put(streams.handle(streams.create({ device: index, flags, priority: clamped }).id));
  }

  /** As in the driver, work that is still queued is done; the handle is gone at once. */
  destroy(handle: number): number {
    const stream = this.resolve(handle);
    if (stream.isDefault !== 0) return CUDA_ERROR_INVALID_HANDLE;
    this.#world.queue.retire(stream);
    return 0;
  }

  synchronize(handle: number): number {
    const stream = this.resolve(handle);
    this.waitFor(stream);
    this.#world.afterSynchronize();
    return 0;
  }

  /** Blocks until the stream is idle; a fault on its device ends the wait. */
  waitFor(stream: Stream): void {
    this.#world.waitUntil(() => stream.firstWork === 0);
    this.#world.checkNotLost(stream.device);
  }

  query(handle: number): number {
    return this.resolve(handle).firstWork === 0 ? 0 : CUDA_ERROR_NOT_READY;
  }

  writeValue64(handle: number, address: number, value: bigint, flags: number): number {
    const stream = this.resolve(handle);
    if (flags !== 0) return CUDA_ERROR_INVALID_VALUE;
    this.#checkWord(address);
    this.#world.queue.enqueue(stream, WRITE_VALUE, { a: address, ...splitLong(value) });
    return 0;
  }

  waitValue64(handle: number, address: number, value: bigint, flags: number): number {
    const stream = this.resolve(handle);
    if (flags !== CU_STREAM_WAIT_VALUE_GEQ && flags !== CU_STREAM_WAIT_VALUE_EQ) return CUDA_ERROR_NOT_SUPPORTED;
    this.#checkWord(address);
    this.#world.queue.enqueue(stream, WAIT_VALUE, { a: address, ...splitLong(value), d: flags });
    return 0;
  }

  /** Pool memory is refused for stream memory operations; all other known memory works. */
  #checkWord(address: number): void {
    const range = this.#world.ranges.find(address);
    const isUsable = range !== undefined && range.kind !== POOL && range.kind !== POOL_IMPORT;
    if (!isUsable || address % 8 !== 0) throw new Refusal(CUDA_ERROR_INVALID_VALUE);
  }
}

function wordAt(address: number): BigInt64Array {
  return new BigInt64Array(createHostView(toAddress(address), 8).bytes.buffer);
}

function splitLong(value: bigint): { b: number; c: number } {
  return { b: Number(BigInt.asUintN(32, value >> 32n)), c: Number(BigInt.asUintN(32, value)) };
}
function joinLong(high: number, low: number): bigint {
  return BigInt.asIntN(64, (BigInt(high) << 32n) | BigInt(low));
}
