/** How tests make devices busy, inject faults, look at what is left, and start anew. */
import type { Address } from "../../../ffi/mod.ts";
import { InvalidArgumentError } from "../../errors.ts";
import { CUDA_ERROR_LAUNCH_FAILED } from "../results.ts";
import type { Backing } from "./backing.ts";
import { callNumber, CALLS } from "./calls.ts";
import { now, toNumber, unmap } from "./native.ts";
import { BUSY } from "./queue.ts";
import { HOST, LEGACY_IMPORT, PLAIN, POOL, POOL_IMPORT, REGISTERED, VIRTUAL } from "./ranges.ts";
import type { SimulatorControl, SimulatorFault, SimulatorReport } from "./simulator_control.ts";
import type { Streams } from "./stream.ts";
import type { World } from "./world.ts";

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

  injectFault(fault: SimulatorFault): void {
    const effects = [fault.code, fault.kill, fault.workMs].filter((effect) => effect !== undefined).length;
    if (effects !== 1) throw invalid("inject a fault", "code, kill and workMs", `${effects} of them`, "exactly one");
    if (fault.call !== "*" && callNumber(fault.call) === 0) {
      throw invalid("inject a fault", "call", fault.call, 'the name of a driver function, such as "cuMemPoolCreate", or "*"');
    }
    checkNumber("inject a fault", "code", fault.code ?? 0, 0);
    checkNumber("inject a fault", "workMs", fault.workMs ?? 0, 0);
    checkNumber("inject a fault", "at", fault.at ?? 1, 1);
    checkNumber("inject a fault", "count", fault.count ?? 1, 1);
    this.#locked(() => this.#world.faults.arm(fault));
  }

  clearFaults(): void {
    this.#locked(() => this.#world.faults.disarm());
  }

  occupyDevice(ordinal: number, ms: number): void {
    const device = this.#world.machine.devices[ordinal];
    const last = this.#world.machine.devices.length - 1;
    if (device === undefined) throw invalid("occupy a device", "ordinal", ordinal, `0 to ${last}`);
    checkNumber("occupy a device", "ms", ms, 0);
    this.#locked(() => {
      const row = this.#world.deviceRow(device.index);
      row.busyUntil = Math.max(row.busyUntil, now()) + ms;
    });
  }

  /** Queues work on a stream, by its driver handle, that does nothing and takes so long. */
  occupyStream(stream: Address, ms: number): void {
    checkNumber("occupy a stream", "ms", ms, 0);
    this.#locked(() => this.#world.queue.enqueue(this.#streams.resolve(toNumber(stream)), BUSY, {}, ms));
  }

  loseContext(ordinal: number, code: number = CUDA_ERROR_LAUNCH_FAILED): void {
    const device = this.#world.machine.devices[ordinal];
    const last = this.#world.machine.devices.length - 1;
    if (device === undefined) throw invalid("lose a context", "ordinal", ordinal, `0 to ${last}`);
    checkNumber("lose a context", "code", code, 1);
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

function invalid(action: string, name: string, value: unknown, wanted: string): InvalidArgumentError {
  return new InvalidArgumentError(`Cannot ${action} in the simulator: ${name} is ${String(value)}, expected ${wanted}`);
}

function checkNumber(action: string, name: string, value: number, min: number): void {
  if (typeof value !== "number" || !(value >= min)) throw invalid(action, name, value, `a number from ${min}`);
}
