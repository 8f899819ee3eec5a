/** How tests make devices busy, inject faults, look at what is left, and start anew. */
import type { Address } from "../../../ffi/mod.ts";
import { checkInteger, invalid } from "../../arguments.ts";
import { CUDA_ERROR_LAUNCH_FAILED } from "../results.ts";
import type { Backing } from "./backing.ts";
import { callNumber, CALLS } from "./calls.ts";
import type { SimulatedDevice } from "./machine.ts";
import { now, toNumber, unmap } from "./native.ts";
import { BUSY } from "./queue.ts";
import { HOST, LEGACY_IMPORT, PLAIN, POOL, POOL_IMPORT, REGISTERED, VIRTUAL } from "./ranges.ts";
import type { SimulatorControl, SimulatorFault, SimulatorReport } from "./simulator_control.ts";
import type { Streams } from "./stream.ts";
import type { World } from "./world.ts";

const MAX_CODE = 2 ** 31 - 1;

/** See the interface for what each method does. */
export class Control implements SimulatorControl {
  readonly #world: World;
  readonly #backing: Backing;
  readonly #streams: Streams;

  constructor(world: World, backing: Backing, streams: Streams) {
    this.#world = world;
    this.#backing = backing;
    this.#streams = streams;
  }

  #locked<T>(action: () => T): T {
    this.#world.state.lock();
    try {
      this.#world.queue.advance();
      return action();
    } finally {
      this.#world.state.unlock();
    }
  }

  #device(action: string, ordinal: number): SimulatedDevice {
    const { devices } = this.#world.machine;
    return devices[checkInteger(action, "ordinal", ordinal, 0, devices.length - 1)];
  }

  injectFault(fault: SimulatorFault): void {
    const action = "inject a fault in the simulator";
    if (typeof fault !== "object" || fault === null) throw invalid(action, "fault", fault, "an object");
    // read once: what is armed is what was checked
    const { call, code, kill, workMs, at, count } = fault;
    if (call !== "*" && callNumber(call) === 0) {
      throw invalid(action, "call", call, 'the name of a driver function, such as "cuMemPoolCreate", or "*"');
    }
    const effects = [code, kill, workMs].filter((effect) => effect !== undefined).length;
    if (effects !== 1) throw invalid(action, "the number of code, kill and workMs", effects, "exactly 1");
    if (code !== undefined) checkInteger(action, "code", code, 0, MAX_CODE);
    if (kill !== undefined && kill !== true) throw invalid(action, "kill", kill, "true");
    if (workMs !== undefined) checkDuration(action, "workMs", workMs);
    if (at !== undefined) checkInteger(action, "at", at, 1);
    if (count !== undefined && count !== Infinity) checkInteger(action, "count", count, 1);
    this.#locked(() => this.#world.faults.arm({ call, code, kill, workMs, at, count }));
  }

  clearFaults(): void {
    this.#locked(() => this.#world.faults.disarm());
  }

  occupyDevice(ordinal: number, ms: number): void {
    const action = "occupy a device of the simulator";
    const device = this.#device(action, ordinal);
    checkDuration(action, "ms", ms);
    this.#locked(() => {
      const row = this.#world.deviceRow(device.index);
      row.busyUntil = Math.max(row.busyUntil, now()) + ms;
    });
  }

  /** Queues work on a stream, by its driver handle, that does nothing and takes so long. */
  occupyStream(stream: Address, ms: number): void {
    checkDuration("occupy a stream of the simulator", "ms", ms);
    this.#locked(() => this.#world.queue.enqueue(this.#streams.resolve(toNumber(stream)), BUSY, {}, ms));
  }

  loseContext(ordinal: number, code: number = CUDA_ERROR_LAUNCH_FAILED): void {
    const action = "lose a context of the simulator";
    const device = this.#device(action, ordinal);
    checkInteger(action, "code", code, 1, MAX_CODE);
    this.#locked(() => this.#world.queue.loseContext(device.index, code));
  }

  dropWork(): void {
    this.#locked(() => this.#world.queue.clearAll());
  }

  report(): SimulatorReport {
    return this.#locked(() => {
      const { tables } = this.#world;
      const ranges = (kind: number) => count(tables.ranges.rows(), (range) => range.kind === kind);
      return {
        machine: this.#world.state.machine,
        liveObjects: {
          contexts: count(tables.devices.rows(), (device) => device.retainCount > 0),
          streams: count(tables.streams.rows(), (stream) => stream.isDefault === 0 && stream.isRetired === 0),
          events: count(tables.events.rows(), (event) => event.area === 0),
          importedEvents: count(tables.events.rows(), (event) => event.area !== 0),
          pools: count(tables.pools.rows(), (pool) => pool.imported === 0 && pool.destroyed === 0),
          importedPools: count(tables.pools.rows(), (pool) => pool.imported !== 0),
          poolAllocations: count(tables.ranges.rows(), (range) => range.kind === POOL && range.freeing === 0),
          poolImports: ranges(POOL_IMPORT),
          deviceAllocations: ranges(PLAIN),
          legacyImports: ranges(LEGACY_IMPORT),
          hostAllocations: ranges(HOST),
          hostRegistrations: ranges(REGISTERED),
          physicalMemories: tables.physicals.size,
          addressReservations: tables.reservations.size,
          mappings: ranges(VIRTUAL),
        },
        pendingWork: this.#world.state.process.pendingWork,
        calls: this.#counts("count"),
        blockedCalls: this.#counts("blocked"),
      };
    });
  }

  #counts(field: "count" | "blocked"): Record<string, number> {
    const { calls } = this.#world.tables;
    const counts: Record<string, number> = {};
    CALLS.forEach((name, index) => {
      const value = calls.get(index + 1, field);
      if (value > 0) counts[name] = value;
    });
    return counts;
  }

  reset(): void {
    this.#world.state.lock();
    try {
      this.#reset();
    } finally {
      this.#world.state.unlock();
    }
  }

  #reset(): void {
    const { tables, queue, ranges } = this.#world;
    queue.clearAll();
    for (const stream of tables.streams.rows()) tables.streams.destroy(stream.id);
    for (const range of tables.ranges.rows()) {
      const { kind, start, span } = range;
      ranges.remove(range);
      if (kind === HOST) unmap(start, span);
    }
    for (const reservation of tables.reservations.rows()) {
      unmap(reservation.start, reservation.byteLength);
      tables.reservations.destroy(reservation.id);
    }
    for (const memory of tables.memories.rows()) this.#backing.release(memory);
    for (const area of tables.eventAreas.rows()) this.#world.state.unmapEvents(area.address);
    for (const name of ["pools", "physicals", "events", "eventAreas", "faults"] as const) {
      for (const row of tables[name].rows()) tables[name].destroy(row.id);
    }
    for (const call of tables.calls.rows()) call.count = call.blocked = 0;
    for (const device of tables.devices.rows()) Object.assign(device, { retainCount: 0, busyUntil: 0, lostCode: 0 });
    this.#world.state.process.calls = 0;
    this.#world.state.releaseEventSlots();
    this.#world.current = undefined;
  }
}

function count<T>(rows: Iterable<T>, isMeant: (row: T) => boolean): number {
  let sum = 0;
  for (const row of rows) if (isMeant(row)) sum++;
  return sum;
}

function checkDuration(action: string, name: string, value: number): void {
  if (typeof value !== "number" || !(value >= 0)) throw invalid(action, name, value, "a number of milliseconds from 0");
}
