/** What every part of the simulated driver shares within one thread. */
import { NativeBlock } from "../../../ffi/mod.ts";
import { CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_DEVICE } from "../results.ts";
import { Faults } from "./faults.ts";
import type { Machine, SimulatedDevice } from "./machine.ts";
import { sleepMicroseconds } from "./native.ts";
import { Queue } from "./queue.ts";
import { Ranges } from "./ranges.ts";
import { Refusal } from "./refusal.ts";
import { ForeignStates, type ProcessState, type RowOf, type Tables } from "./state.ts";

const OUT_BYTES = 512;
const SHORT_SLEEP_US = 20;
const LONG_SLEEP_US = 200;
const SHORT_SLEEPS = 50;

export class World {
  readonly out: NativeBlock = new NativeBlock(OUT_BYTES);
  readonly machine: Machine;
  readonly state: ProcessState;
  readonly tables: Tables;
  readonly foreign: ForeignStates;
  readonly ranges: Ranges;
  readonly queue: Queue;
  readonly faults: Faults;
  /** The number of the present call. */
  call = 0;
  /** The device whose primary context is current on this thread, whichever driver object is used. */
  static #current: SimulatedDevice | undefined;

  constructor(machine: Machine, state: ProcessState) {
    this.machine = machine;
    this.state = state;
    this.tables = state.tables;
    this.foreign = new ForeignStates(state);
    this.ranges = new Ranges(state);
    this.queue = new Queue(state);
    this.faults = new Faults(state);
  }

  get current(): SimulatedDevice | undefined {
    return World.#current;
  }
  set current(device: SimulatedDevice | undefined) {
    World.#current = device;
  }

  // ---- devices: an ordinal counts what this process sees, an index what the machine has

  device(ordinal: number): SimulatedDevice {
    const device = this.machine.devices[ordinal];
    if (device === undefined) throw new Refusal(CUDA_ERROR_INVALID_DEVICE);
    return device;
  }

  visibleDevice(index: number): SimulatedDevice | undefined {
    return this.machine.devices.find((device) => device.index === index);
  }

  ordinalOf(index: number): number {
    return this.machine.devices.findIndex((device) => device.index === index);
  }

  /** Whether one device can use another's memory directly. */
  canAccessPeer(device: number, peer: number): boolean {
    const { profile, peers } = this.machine;
    if (device === peer || profile.hasNoPeerAccess) return false;
    return peers === undefined || peers.some((pair) => pair.includes(device) && pair.includes(peer));
  }

  deviceRow(index: number): RowOf<"devices"> {
    return this.tables.devices.at(index + 1);
  }

  /** The device of this thread's current context; refuses where there is none. */
  context(): SimulatedDevice {
    const device = this.current;
    if (device === undefined || this.deviceRow(device.index).retainCount === 0) {
      throw new Refusal(CUDA_ERROR_INVALID_CONTEXT);
    }
    this.checkNotLost(device.index);
    return device;
  }

  /** After a fault on the device every use of its context gives the same error. */
  checkNotLost(index: number): void {
    const { lostCode } = this.deviceRow(index);
    if (lostCode !== 0) throw new Refusal(lostCode);
  }

  /** What else a synchronization does. */
  afterSynchronize: () => void = () => {};

  /** Blocks this thread, as the driver does, while the simulated devices work on. Other threads may call meanwhile. */
  waitUntil(isDone: () => boolean): void {
    if (isDone()) return;
    this.tables.calls.at(this.call).blocked++;
    for (let sleeps = 0;; sleeps++) {
      this.state.unlock();
      sleepMicroseconds(sleeps < SHORT_SLEEPS ? SHORT_SLEEP_US : LONG_SLEEP_US);
      this.state.lock();
      this.queue.advance();
      if (isDone()) return;
    }
  }

  /** Blocks until a device, or every device, has done all work of this process. */
  waitForDevice(index?: number): void {
    this.waitUntil(() => {
      for (const stream of this.tables.streams.rows()) {
        if (stream.firstWork !== 0 && (index === undefined || stream.device === index)) return false;
      }
      return true;
    });
  }

  // ---- out-parameters

  putI32(value: number, byteOffset = 0): number {
    this.out.view.setInt32(byteOffset, value, true);
    return 0;
  }
  /** An address, a handle, a size: zero-extended. */
  put(value: number | bigint, byteOffset = 0): number {
    this.out.writeU64(byteOffset, BigInt(value));
    return 0;
  }
  putBytes(bytes: Uint8Array): number {
    this.out.bytes.set(bytes);
    return 0;
  }
}
