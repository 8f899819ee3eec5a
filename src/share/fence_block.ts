/**
 * Shared memory that holds fences: 64-bit words which streams of several processes write and wait for, and which every
 * host reads and writes directly. Sealed, so that no peer can take pages away under us.
 */
import { addOffset, type Address, createHostView, type HostView, toSize } from "../../ffi/mod.ts";
import { clearTimeout, setTimeout } from "node:timers";
import { inBackground } from "../background.ts";
import type { Context } from "../context.ts";
import { check } from "../driver/check.ts";
import { CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE } from "../driver/enums.ts";
import { closeFd, discardFds } from "../os/fd.ts";
import { checkSharedMemory, createSharedMemory, mapMemory, unmapMemory } from "../os/memory.ts";

const WORD_BYTES = 8;
const RETIRE_INTERVAL_MS = 20;

/** Blocks that nobody uses any more, until their devices are idle: unregistering waits for all queued work. */
const retired = new Set<FenceBlock>();
let timer: ReturnType<typeof setTimeout> | undefined;

/** Bytes of shared memory that wait for their device to be idle. */
export function retiredFenceBytes(): number {
  let bytes = 0;
  for (const block of retired) bytes += block.byteLength;
  return bytes;
}

export class FenceBlock {
  readonly fd: number;
  readonly byteLength: number;
  /** One word for each fence. Only Atomics may touch it. */
  readonly words: BigInt64Array<ArrayBuffer>;
  readonly #address: Address;
  readonly #view: HostView;
  /** The first context is where it is registered; others only ask for its address. */
  readonly #devices = new Map<Context, Address>();
  #registeredIn: Context | undefined;
  #users = 1;

  private constructor(fd: number, byteLength: number) {
    this.fd = fd;
    this.byteLength = byteLength;
    this.#address = mapMemory(fd, byteLength);
    this.#view = createHostView(this.#address, byteLength);
    this.words = new BigInt64Array(this.#view.bytes.buffer);
  }

  /** New zeroed words. The caller is their first user. */
  static create(byteLength: number): FenceBlock {
    const fd = createSharedMemory("cuda-ipc-fences", byteLength);
    try {
      return new FenceBlock(fd, byteLength);
    } catch (error) {
      discardFds(fd);
      throw error;
    }
  }

  /** Maps words of another process, and takes the descriptor over; on an error it stays the caller's. */
  static map(fd: number, byteLength: number): FenceBlock {
    checkSharedMemory(fd, byteLength);
    return new FenceBlock(fd, byteLength);
  }

  get length(): number {
    return this.words.length;
  }

  /** A word's address for the device of a context: asked for, never assumed to be the host's. Registers at the first use. */
  addressOn(context: Context, index: number): Address {
    return addOffset(this.#devices.get(context) ?? this.#register(context), index * WORD_BYTES);
  }

  /** A word's address for this process's hosts. */
  hostAddressOf(index: number): number {
    return Number(this.#address) + index * WORD_BYTES;
  }

  #register(context: Context): Address {
    const { driver } = context;
    context.makeCurrent();
    if (this.#registeredIn === undefined) {
      const flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
      check(driver.memHostRegister(this.#address, toSize(this.byteLength), flags), "cuMemHostRegister", context);
      this.#registeredIn = context;
      context.hold();
    }
    check(driver.memHostGetDevicePointer(this.#address), "cuMemHostGetDevicePointer", context);
    const address = driver.out.readAddress(0);
    this.#devices.set(context, address);
    return address;
  }

  hold(): void {
    this.#users++;
  }

  /** The last release gives the words up, for the driver when no device has work queued. */
  release(): void {
    if (--this.#users > 0) return;
    if (this.#isIdle()) return this.#free();
    retired.add(this);
    schedule();
  }

  #isIdle(): boolean {
    for (const context of this.#devices.keys()) if (!context.isIdle()) return false;
    return true;
  }

  /** Gives a retired block up if its devices are idle now. */
  freeIfIdle(): void {
    if (!this.#isIdle()) return;
    retired.delete(this);
    this.#free();
  }

  #free(): void {
    const context = this.#registeredIn;
    this.#view.detach();
    if (context !== undefined) {
      context.makeCurrent();
      const result = context.driver.memHostUnregister(this.#address);
      context.release();
      check(result, "cuMemHostUnregister", context);
    }
    unmapMemory(this.#address, this.byteLength);
    closeFd(this.fd);
  }
}

function schedule(): void {
  clearTimeout(timer);
  timer = undefined;
  if (retired.size === 0) return;
  timer = setTimeout(() => {
    for (const block of [...retired]) {
      if (!inBackground("give fences back", () => block.freeIfIdle())) retired.delete(block); // it stays with the driver
    }
    schedule();
  }, RETIRE_INTERVAL_MS);
  timer.unref();
}
