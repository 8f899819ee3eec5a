/**
 * cuEvent… and cuIpc…EventHandle. An event's progress is two counters in a slot of the state of the process that created
 * it: how often it was recorded, and up to which record the work is done. Other processes map the slots and count too.
 */
import { createHostView } from "../../../ffi/mod.ts";
import { inspectPath } from "../../os/fd.ts";
import { SHARED_MEMORY_HANDLE_BYTES } from "../../os/memory.ts";
import { CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS } from "../enums.ts";
import {
  CUDA_ERROR_INVALID_CONTEXT,
  CUDA_ERROR_INVALID_HANDLE,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_MAP_FAILED,
  CUDA_ERROR_NOT_READY,
} from "../results.ts";
import { OPAQUE_BYTES } from "../structs.ts";
import { toAddress } from "./native.ts";
import { RECORD, WAIT_EVENT } from "./queue.ts";
import { Refusal } from "./refusal.ts";
import { EVENT_SLOT_BYTES, EVENT_SLOTS, type RowOf, type StateName } from "./state.ts";
import type { Streams } from "./stream.ts";
import { TableFullError } from "./table.ts";
import type { World } from "./world.ts";

type Event = RowOf<"events">;

const KNOWN_FLAGS = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

// the words of a slot
const TOKEN = 0; // tells the event from others that had the slot before
const RECORDED = 1;
const DONE = 2;
const IN_USE = 3;
const WORDS = EVENT_SLOT_BYTES / 4;

// the layout of the 64-byte handle
const HANDLE_MAGIC = 0x7645_4953; // "SIEv"
const HANDLE = { magic: 0, pid: 4, state: 8, slot: 16, token: 20, directory: 24, namespace: 28, memory: 32 };
/** Where the driver keeps such events: who sees another directory there cannot open them. */
const DIRECTORY = "/dev/shm";

export class Events {
  readonly #world: World;
  readonly #streams: Streams;
  /** Views of event slots, by address. */
  readonly #views = new Map<number, Int32Array>();
  readonly #directory: number = hash(inspectPath(DIRECTORY)?.identity ?? "");

  constructor(world: World, streams: Streams) {
    this.#world = world;
    this.#streams = streams;
    // a: area, b: slot, c: token, d: which record; for a record also e: event, f: generation of its row
    world.queue.defineEffect(RECORD, ({ a, b, c, d, e, f }, endTime) => {
      const { words, at } = this.#slot(a, b);
      if (words[at + TOKEN] !== c) return;
      for (;;) {
        const done = Atomics.load(words, at + DONE);
        if (isReached(done, d) || Atomics.compareExchange(words, at + DONE, done, d) === done) break;
      }
      const { events } = world.tables;
      if (events.isLive(e) && events.generation(e) === f) events.at(e).endTime = endTime;
    });
    world.queue.defineCondition(WAIT_EVENT, ({ a, b, c, d }) => {
      const { words, at } = this.#slot(a, b);
      return words[at + TOKEN] !== c || isReached(Atomics.load(words, at + DONE), d);
    });
  }

  #slot(area: number, slot: number): { words: Int32Array; at: number } {
    const address = area === 0 ? this.#world.state.eventsAddress : this.#world.tables.eventAreas.get(area, "address");
    let words = this.#views.get(address);
    if (words === undefined) {
      const byteLength = EVENT_SLOTS * EVENT_SLOT_BYTES;
      words = new Int32Array(createHostView(toAddress(address), byteLength).bytes.buffer);
      this.#views.set(address, words);
    }
    return { words, at: slot * WORDS };
  }

  #resolve(handle: number): Event {
    const event = this.#world.tables.events.find(handle);
    if (event === undefined) throw new Refusal(CUDA_ERROR_INVALID_HANDLE);
    this.#world.checkNotLost(event.device);
    return event;
  }

  create(flags: number): number {
    const { index } = this.#world.context();
    const { tables } = this.#world;
    if ((flags & ~KNOWN_FLAGS) !== 0) return CUDA_ERROR_INVALID_VALUE;
    if ((flags & CU_EVENT_INTERPROCESS) !== 0 && (flags & CU_EVENT_DISABLE_TIMING) === 0) return CUDA_ERROR_INVALID_VALUE;
    const { interprocessEvents = 0 } = this.#world.machine.profile;
    if ((flags & CU_EVENT_INTERPROCESS) !== 0 && interprocessEvents !== 0) return interprocessEvents;
    const slot = this.#takeSlot();
    const event = tables.events.create({ device: index, flags, slot, token: this.#slot(0, slot).words[slot * WORDS + TOKEN] });
    return this.#world.put(tables.events.handle(event.id));
  }

  /** Slots go round, so that a destroyed event can still be opened for a while, as in the driver. */
  #takeSlot(): number {
    const { process } = this.#world.state;
    for (let tries = 0; tries < EVENT_SLOTS; tries++) {
      const slot = process.eventSlot++ % EVENT_SLOTS;
      const { words, at } = this.#slot(0, slot);
      if (words[at + IN_USE] !== 0) continue;
      words.fill(0, at, at + WORDS);
      words[at + TOKEN] = crypto.getRandomValues(new Int32Array(1))[0];
      words[at + IN_USE] = 1;
      return slot;
    }
    throw new TableFullError("The simulator has no room for another event");
  }

  destroy(handle: number): number {
    this.#end(this.#resolve(handle));
    return 0;
  }

  /** The events of a device's context end with it. */
  endContext(device: number): void {
    for (const event of this.#world.tables.events.rows()) if (event.device === device) this.#end(event);
  }

  #end(event: Event): void {
    const { area, slot } = event;
    this.#world.tables.events.destroy(event.id);
    if (area === 0) {
      const { words, at } = this.#slot(0, slot);
      words[at + IN_USE] = 0;
    } else {
      this.#world.tables.eventAreas.at(area).holders--;
      this.#dropAreas();
    }
  }

  /** Slots of other processes stay mapped while work that may look at them is queued. */
  #dropAreas(): void {
    if (this.#world.queue.hasWork) return;
    for (const area of this.#world.tables.eventAreas.rows()) {
      if (area.holders > 0) continue;
      this.#views.delete(area.address);
      this.#world.state.unmapEvents(area.address);
      this.#world.tables.eventAreas.destroy(area.id);
    }
  }

  record(handle: number, streamHandle: number): number {
    const event = this.#resolve(handle);
    const stream = this.#streams.resolve(streamHandle);
    if (stream.device !== event.device) return CUDA_ERROR_INVALID_HANDLE;
    const { words, at } = this.#slot(event.area, event.slot);
    const record = (Atomics.add(words, at + RECORDED, 1) + 1) | 0;
    event.recorded = 1;
    const generation = this.#world.tables.events.generation(event.id);
    this.#world.queue.enqueue(stream, RECORD, {
      a: event.area,
      b: event.slot,
      c: event.token,
      d: record,
      e: event.id,
      f: generation,
    });
    return 0;
  }

  /** Waits for the latest record before this call; an event that was never recorded is done. */
  wait(streamHandle: number, handle: number, flags: number): number {
    const stream = this.#streams.resolve(streamHandle);
    const event = this.#resolve(handle);
    if (flags !== 0) return CUDA_ERROR_INVALID_VALUE;
    if (this.#isDone(event)) return 0;
    const { words, at } = this.#slot(event.area, event.slot);
    const record = Atomics.load(words, at + RECORDED);
    this.#world.queue.enqueue(stream, WAIT_EVENT, { a: event.area, b: event.slot, c: event.token, d: record });
    return 0;
  }

  #isDone(event: Event): boolean {
    const { words, at } = this.#slot(event.area, event.slot);
    return isReached(Atomics.load(words, at + DONE), Atomics.load(words, at + RECORDED));
  }

  query(handle: number): number {
    return this.#isDone(this.#resolve(handle)) ? 0 : CUDA_ERROR_NOT_READY;
  }

  synchronize(handle: number): number {
    const event = this.#resolve(handle);
    this.#world.waitUntil(() => this.#isDone(event));
    this.#world.checkNotLost(event.device);
    this.#world.afterSynchronize();
    return 0;
  }

  elapsedTime(startHandle: number, endHandle: number): number {
    const [start, end] = [this.#resolve(startHandle), this.#resolve(endHandle)];
    for (const event of [start, end]) {
      if ((event.flags & CU_EVENT_DISABLE_TIMING) !== 0 || event.recorded === 0) return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!this.#isDone(start) || !this.#isDone(end)) return CUDA_ERROR_NOT_READY;
    this.#world.out.view.setFloat32(0, end.endTime - start.endTime, true);
    return 0;
  }

  // ---- between processes

  getIpcHandle(handle: number): number {
    this.#world.context();
    const event = this.#resolve(handle);
    if ((event.flags & CU_EVENT_INTERPROCESS) === 0 || event.area !== 0) return CUDA_ERROR_INVALID_HANDLE;
    const bytes = new Uint8Array(OPAQUE_BYTES);
    const view = new DataView(bytes.buffer);
    view.setUint32(HANDLE.magic, HANDLE_MAGIC, true);
    view.setUint32(HANDLE.pid, this.#world.state.pid, true);
    view.setFloat64(HANDLE.state, this.#world.state.token, true);
    view.setUint32(HANDLE.slot, event.slot, true);
    view.setInt32(HANDLE.token, event.token, true);
    view.setUint32(HANDLE.directory, this.#directory, true);
    view.setUint32(HANDLE.namespace, this.#world.state.namespace, true);
    bytes.set(this.#world.state.handle, HANDLE.memory);
    return this.#world.putBytes(bytes);
  }

  openIpcHandle(handle: Uint8Array): number {
    const device = this.#world.context().index;
    const view = new DataView(handle.buffer, handle.byteOffset, OPAQUE_BYTES);
    const pid = view.getUint32(HANDLE.pid, true);
    const state = view.getFloat64(HANDLE.state, true);
    const slot = view.getUint32(HANDLE.slot, true);
    const token = view.getInt32(HANDLE.token, true);
    if (view.getUint32(HANDLE.magic, true) !== HANDLE_MAGIC || slot >= EVENT_SLOTS) return CUDA_ERROR_MAP_FAILED;
    if (pid === this.#world.state.pid && state === this.#world.state.token) return CUDA_ERROR_INVALID_CONTEXT;
    if (view.getUint32(HANDLE.directory, true) !== this.#directory) return CUDA_ERROR_MAP_FAILED;

    const namespace = view.getUint32(HANDLE.namespace, true);
    const memory = handle.subarray(HANDLE.memory, HANDLE.memory + SHARED_MEMORY_HANDLE_BYTES);
    const area = this.#openArea({ pid, token: state, namespace, memory });
    if (area === undefined) return CUDA_ERROR_MAP_FAILED;
    const { words, at } = this.#slot(area.id, slot);
    if (words[at + TOKEN] !== token) {
      this.#dropAreas();
      return CUDA_ERROR_MAP_FAILED;
    }
    area.holders++;
    const { events } = this.#world.tables;
    const flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    return this.#world.put(events.handle(events.create({ device, flags, area: area.id, slot, token }).id));
  }

  #openArea(name: StateName): RowOf<"eventAreas"> | undefined {
    const { eventAreas } = this.#world.tables;
    const { pid, token: state } = name;
    for (const area of eventAreas.rows()) if (area.pid === pid && area.state === state) return area;
    const address = this.#world.state.mapEventsOf(name);
    return address === undefined ? undefined : eventAreas.create({ pid, state, address });
  }
}

/** FNV-1a. */
function hash(text: string): number {
  let sum = 0x811c9dc5;
  for (let at = 0; at < text.length; at++) sum = Math.imul(sum ^ text.charCodeAt(at), 0x01000193);
  return sum >>> 0;
}

/** The counters are 32 bits wide and may wrap. */
function isReached(done: number, record: number): boolean {
  return ((done - record) | 0) >= 0;
}
