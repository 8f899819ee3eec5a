/**
 * What a thread (a Worker) has that outlives it. A Worker that is terminated runs nothing any more: its sockets stay open, its
 * imports mapped, and whoever waits for its releases waits on. So each thread keeps a list of them in the memory that all threads
 * share, and a surviving one settles the list of a thread that has ended. With none left they end with the process.
 */
import { setTimeout } from "node:timers";
import { type Address, addressFromNumber, createHostView } from "../../ffi/mod.ts";
import { inBackground } from "../background.ts";
import { observeStreams } from "../context.ts";
import type { CudaDriver } from "../driver/driver.ts";
import { chosenDriver, openDriver } from "../driver/mod.ts";
import { CUDA_ERROR_NOT_READY } from "../driver/results.ts";
import { discardFds } from "../os/fd.ts";
import { watch } from "./fence_watch.ts";
import { ESTATE_CELLS, processMemory } from "./process_memory.ts";

const LOOK_MS = 1000;

// Threads, then entries. 0 is no entry
const THREADS = 256;
const THREAD_CELLS = 4;
const TID = 0;
const START = 1;
const FIRST = 2;
const ENTRIES_AT = THREADS * THREAD_CELLS;
const ENTRY_CELLS = 6;
const KIND = 0;
const VALUE = 1;
const MORE = 2;
const NEXT = 3;
const PREVIOUS = 4;
/** In the first entry, which is none. */
const USED = ENTRIES_AT + 0;
const FREE = ENTRIES_AT + 1;

const FD = 1;
const STREAM = 2;
const WORD = 3;
const MAPPING = 4;
/** A mapping whose user has given it up. */
const ENDING_MAPPING = 5;

const DRIVERS = ["cuda", "simulator"] as const;

interface Item {
  readonly kind: number;
  readonly value: number;
  readonly more: number;
}

/** Something that stands in this thread's list until it is taken out. 0 stands for what found no room. */
export type Entry = number;

let ourThread: number | undefined;
let releaseMapping: (driver: CudaDriver, at: number, isEnding: boolean) => void;

/** The import registry says how a mapping is released; called under the lock. */
export function provideMappingRelease(provided: typeof releaseMapping): void {
  releaseMapping = provided;
}

const estate = (): Float64Array => processMemory().estate;
const at = (entry: Entry): number => ENTRIES_AT + entry * ENTRY_CELLS;

/** A descriptor that is closed when this thread has ended. */
export function ownFd(fd: number): Entry {
  return processMemory().locked(() => add(FD, fd, 0));
}

/** A word that is written when this thread has ended and its streams have done their work. */
export function ownWord(address: number, value: number): Entry {
  return processMemory().locked(() => add(WORD, address, value));
}

/** A user of a mapping, by its place in the registry. Only under the lock. */
export function ownMapping(driver: CudaDriver, place: number): Entry {
  return add(MAPPING, place, DRIVERS.indexOf(driver.kind));
}

export function disown(entry: Entry): void {
  if (entry !== 0) processMemory().locked(() => remove(entry));
}

/** The user has given it up. Only under the lock. */
export function endMapping(entry: Entry): void {
  if (entry !== 0) estate()[at(entry) + KIND] = ENDING_MAPPING;
}

/** Only under the lock. */
export function disownMapping(entry: Entry): void {
  if (entry !== 0) remove(entry);
}

const streams = new Map<Address, Entry>();
observeStreams({
  added(driver, handle) {
    streams.set(handle, processMemory().locked(() => add(STREAM, Number(handle), DRIVERS.indexOf(driver.kind))));
  },
  removed(handle) {
    disown(streams.get(handle) ?? 0);
    streams.delete(handle);
  },
});

function add(kind: number, value: number, more: number): Entry {
  const cells = estate();
  const thread = ourThread ??= takeThread(cells);
  const entry = takeEntry(cells);
  if (thread < 0 || entry === 0) return 0;
  const first = cells[thread + FIRST];
  cells.set([kind, value, more, first, 0], at(entry));
  if (first !== 0) cells[at(first) + PREVIOUS] = entry;
  cells[thread + FIRST] = entry;
  return entry;
}

function remove(entry: Entry): void {
  const cells = estate();
  const next = cells[at(entry) + NEXT];
  const previous = cells[at(entry) + PREVIOUS];
  if (previous === 0) cells[ourThread! + FIRST] = next;
  else cells[at(previous) + NEXT] = next;
  if (next !== 0) cells[at(next) + PREVIOUS] = previous;
  giveBack(cells, entry);
}

function takeEntry(cells: Float64Array): Entry {
  const free = cells[FREE];
  if (free !== 0) {
    cells[FREE] = cells[at(free) + NEXT];
    return free;
  }
  if (at(cells[USED] + 2) > ESTATE_CELLS) return 0;
  return ++cells[USED];
}

function giveBack(cells: Float64Array, entry: Entry): void {
  cells[at(entry) + NEXT] = cells[FREE];
  cells[FREE] = entry;
}

/** A list of our own; -1 when there are too many threads. */
function takeThread(cells: Float64Array): number {
  const { tid, start } = processMemory().thread;
  for (let thread = 0; thread < THREADS * THREAD_CELLS; thread += THREAD_CELLS) {
    if (cells[thread + TID] !== 0) continue;
    cells.set([tid, start, 0], thread);
    look();
    return thread;
  }
  return -1;
}

function look(): void {
  setTimeout(() => {
    inBackground("settle what a thread has left", () => {
      for (const items of processMemory().locked(takeDead)) settle(items);
    });
    look();
  }, LOOK_MS).unref();
}

/** Takes the lists of threads that have ended. */
function takeDead(): Item[][] {
  const cells = estate();
  const dead: Item[][] = [];
  for (let thread = 0; thread < THREADS * THREAD_CELLS; thread += THREAD_CELLS) {
    const tid = cells[thread + TID];
    if (tid === 0 || thread === ourThread || processMemory().isRunning({ tid, start: cells[thread + START] })) continue;
    const items: Item[] = [];
    for (let entry = cells[thread + FIRST]; entry !== 0;) {
      const place = at(entry);
      items.push({ kind: cells[place + KIND], value: cells[place + VALUE], more: cells[place + MORE] });
      const next = cells[place + NEXT];
      giveBack(cells, entry);
      entry = next;
    }
    cells[thread + TID] = 0;
    dead.push(items);
  }
  return dead;
}

/** Closes what can be closed at once, and the rest when the thread's streams have done their work. */
function settle(items: readonly Item[]): void {
  discardFds(...items.filter(({ kind }) => kind === FD).map(({ value }) => value));
  const streams = items.filter(({ kind }) => kind === STREAM).map(({ value, more }) => ({
    driver: driverOf(more),
    handle: addressFromNumber(value),
  }));
  const areIdle = () => streams.every(({ driver, handle }) => driver.streamQuery(handle) !== CUDA_ERROR_NOT_READY);
  watch(areIdle, () => {
    // Unmapped before their owner is told, who may give out the same place again at once
    for (const { kind, value, more } of items) {
      if (kind !== MAPPING && kind !== ENDING_MAPPING) continue;
      processMemory().locked(() => releaseMapping(driverOf(more), value, kind === ENDING_MAPPING));
    }
    for (const { kind, value, more } of items) if (kind === WORD) storeWord(value, BigInt(more));
    for (const { driver, handle } of streams) driver.streamDestroy(handle);
  });
}

function driverOf(index: number): CudaDriver {
  return chosenDriver("settle what a thread has left", openDriver(DRIVERS[index]));
}

/** The thread has never unmapped it. */
function storeWord(address: number, value: bigint): void {
  const { bytes, detach } = createHostView(addressFromNumber(address), 8);
  Atomics.store(new BigInt64Array(bytes.buffer), 0, value);
  detach();
}
