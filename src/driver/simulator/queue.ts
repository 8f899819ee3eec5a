/**
 * The work of the simulated devices. A stream does its work in order; each piece takes the time it was told to take, and
 * its effect comes at its end, so that a process that is killed before leaves none. Nothing runs by itself: every driver
 * call, every blocked one and a timer advance the queues of the process.
 */
import { now } from "./native.ts";
import type { ProcessState, RowOf } from "./state.ts";

export type Stream = RowOf<"streams">;

/** The kinds of work. */
export const BUSY = 1;
export const COPY = 2;
export const FILL = 3;
export const FREE = 4;
export const RECORD = 5;
export const WAIT_EVENT = 6;
export const WRITE_VALUE = 7;
export const WAIT_VALUE = 8;

const STREAM_NON_BLOCKING = 1;
/** In place of a duration: a condition that did not hold at first, so it ends when it is seen to hold. */
const HAS_WAITED = -1;

/** What a piece of work is about; the meaning of the letters depends on its kind. */
export interface WorkValues {
  readonly a?: number;
  readonly b?: number;
  readonly c?: number;
  readonly d?: number;
  readonly e?: number;
  readonly f?: number;
  readonly g?: number;
  readonly h?: number;
}
export type Work = Required<WorkValues>;
const NO_VALUES: Work = { a: 0, b: 0, c: 0, d: 0, e: 0, f: 0, g: 0, h: 0 };

/** What a kind of work does; a code other than 0 is a fault, which the whole context does not survive. */
type Effect = (work: Work, endTime: number) => number | void;
type Condition = (work: Work) => boolean;

export class Queue {
  readonly #state: ProcessState;
  readonly #effects = new Map<number, Effect>();
  readonly #conditions = new Map<number, Condition>();
  readonly #drops = new Map<number, (work: Work) => void>();

  constructor(state: ProcessState) {
    this.#state = state;
    this.defineEffect(BUSY, () => {});
  }

  /** `drop` is done in place of the effect when the work is dropped. */
  defineEffect(kind: number, effect: Effect, drop?: (work: Work) => void): void {
    this.#effects.set(kind, effect);
    if (drop !== undefined) this.#drops.set(kind, drop);
  }

  /** A kind of work that is done as soon as the condition holds. */
  defineCondition(kind: number, condition: Condition): void {
    this.#conditions.set(kind, condition);
    this.defineEffect(kind, () => {});
  }

  get hasWork(): boolean {
    return this.#state.process.pendingWork > 0;
  }

  /** Whether work that is enqueued now has no cause to wait. */
  startsAtOnce(stream: Stream, workMs: number): boolean {
    if (stream.firstWork !== 0 || workMs > 0) return false;
    const busyUntil = this.#state.tables.devices.get(stream.device + 1, "busyUntil");
    return (busyUntil === 0 || busyUntil <= now()) && this.#isInTurn(stream, Infinity);
  }

  enqueue(stream: Stream, kind: number, values: WorkValues, durationMs = 0): void {
    const all = { ...NO_VALUES, ...values };
    if (this.startsAtOnce(stream, durationMs) && this.#conditions.get(kind)?.(all) !== false) {
      this.#finish(stream, kind, all, Math.max(stream.endTime, now()));
    } else {
      const { work } = this.#state.tables;
      const { process } = this.#state;
      const row = work.create({ kind, ...values, durationMs, enqueuedAt: now(), serial: process.serial++ });
      if (stream.lastWork !== 0) work.at(stream.lastWork).next = row.id;
      else stream.firstWork = row.id;
      stream.lastWork = row.id;
      process.pendingWork++;
    }
    this.advance(); // others may have waited for this
  }

  /** The effect of a piece of work; false when it was a fault. */
  #finish(stream: Stream, kind: number, work: Work, endTime: number): boolean {
    const fault = this.#effects.get(kind)!(work, endTime);
    if (fault) {
      this.loseContext(stream.device, fault);
      return false;
    }
    stream.endTime = endTime;
    return true;
  }

  /** Does all work that can be done by now; true when there was some. */
  advance(): boolean {
    let hasMoved = false;
    for (let again = this.hasWork; again;) {
      again = false;
      const time = now();
      for (const stream of this.#state.tables.streams.rows()) {
        while (stream.firstWork !== 0 && this.#advanceStream(stream, time)) again = hasMoved = true;
      }
      again &&= this.hasWork;
    }
    return hasMoved;
  }

  /** Tries the stream's first piece of work. */
  #advanceStream(stream: Stream, time: number): boolean {
    const { work, devices } = this.#state.tables;
    const item = work.at(stream.firstWork);
    const { busyUntil } = devices.at(stream.device + 1);
    if (busyUntil > time || !this.#isInTurn(stream, item.serial)) return false;

    const condition = this.#conditions.get(item.kind);
    let endTime: number;
    if (condition === undefined) {
      endTime = Math.max(stream.endTime, item.enqueuedAt, busyUntil) + item.durationMs;
      if (endTime > time) return false;
    } else {
      if (!condition(item)) {
        item.durationMs = HAS_WAITED;
        return false;
      }
      endTime = item.durationMs === HAS_WAITED ? time : Math.max(stream.endTime, item.enqueuedAt);
    }
    if (this.#finish(stream, item.kind, item, endTime)) this.#removeFirst(stream);
    return true;
  }

  /** The default stream runs after, and before, all that other blocking streams of its device were given. */
  #isInTurn(stream: Stream, serial: number): boolean {
    if ((stream.flags & STREAM_NON_BLOCKING) !== 0) return true;
    const { streams, work, devices } = this.#state.tables;
    const isEarlier = (other: Stream) => other.firstWork !== 0 && work.get(other.firstWork, "serial") < serial;
    if (stream.isDefault === 0) {
      const { defaultStream } = devices.at(stream.device + 1);
      return defaultStream === 0 || !isEarlier(streams.at(defaultStream));
    }
    for (const other of streams.rows()) {
      const isBlocking = (other.flags & STREAM_NON_BLOCKING) === 0;
      if (isBlocking && other.id !== stream.id && other.device === stream.device && isEarlier(other)) return false;
    }
    return true;
  }

  #removeFirst(stream: Stream): void {
    const { work } = this.#state.tables;
    const { firstWork } = stream;
    stream.firstWork = work.get(firstWork, "next");
    if (stream.firstWork === 0) stream.lastWork = 0;
    if (stream.firstWork === 0 && stream.isRetired !== 0) this.#state.tables.streams.destroy(stream.id);
    work.destroy(firstWork);
    this.#state.process.pendingWork--;
  }

  /** The stream ends when its work is done. */
  retire(stream: Stream): void {
    if (stream.firstWork === 0) this.#state.tables.streams.destroy(stream.id);
    else stream.isRetired = 1;
  }

  /** Drops the stream's work undone. */
  clear(stream: Stream): void {
    while (stream.firstWork !== 0) {
      const item = this.#state.tables.work.at(stream.firstWork);
      this.#drops.get(item.kind)?.(item);
      this.#removeFirst(stream);
    }
  }

  clearAll(): void {
    for (const stream of this.#state.tables.streams.rows()) this.clear(stream);
  }

  /** A fault: the work of all streams of the device is dropped, and the context is of no use any more. */
  loseContext(device: number, code: number): void {
    this.#state.tables.devices.at(device + 1).lostCode = code;
    for (const stream of this.#state.tables.streams.rows()) if (stream.device === device) this.clear(stream);
  }
}
