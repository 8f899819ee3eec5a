/**
 * The one way in which this module waits for file descriptors: sockets, pidfds, whatever epoll takes. It never blocks the event
 * loop, costs nothing while nothing happens, and works on the main thread and in Workers. Each thread has one epoll instance,
 * made at the first use and given back soon after the last.
 */
import { clearTimeout, setTimeout } from "node:timers";
import { ClosedError } from "../errors.ts";
import { type BackgroundWait, startBackgroundWait } from "./background_wait.ts";
import { Epoll, EPOLLERR_OR_HUP, EPOLLIN, EPOLLOUT, type ReadyEvent, WAKE_TOKEN } from "./epoll.ts";

/** How long an epoll instance without a watch is kept, since often the next watch comes soon. */
const LINGER_MS = 500;
/** Where the kernel is not waited on (Deno, nothing ref'ed) it is asked: often after an event, more seldom later. */
const POLL_MIN_MS = 1;
const POLL_MAX_MS = 64;

export interface WaitOptions {
  /** Ends the wait, which then rejects with the signal's reason. */
  readonly signal?: AbortSignal;
}

/**
 * A descriptor that is waited for, now and then or all the time. Close the watch before the descriptor: the kernel does not
 * tell that a descriptor was closed, and its number may be another file's soon.
 */
export class FdWatch {
  readonly fd: number;
  readonly #poller: Poller;
  readonly #entry: Entry;
  readonly #waits = new Set<Wait>();
  #isRef = true;
  #isClosed = false;

  constructor(fd: number) {
    this.fd = fd;
    this.#poller = current ??= new Poller();
    this.#entry = this.#poller.open(fd);
  }

  /** Resolves when reading will not wait: there is something, or the end, or an error. */
  readable(options?: WaitOptions): Promise<void> {
    return this.#wait(EPOLLIN, options);
  }

  /** Resolves when writing will not wait: there is room, or an error. */
  writable(options?: WaitOptions): Promise<void> {
    return this.#wait(EPOLLOUT, options);
  }

  #wait(events: number, { signal }: WaitOptions = {}): Promise<void> {
    return new Promise((resolve, reject) => {
      if (this.#isClosed) throw new ClosedError(`Cannot wait for file descriptor ${this.fd}: the watch is closed`);
      signal?.throwIfAborted();
      const onAbort = () => wait.settle(signal!.reason);
      const wait: Wait = {
        events,
        isRef: this.#isRef,
        settle: (...error) => {
          this.#waits.delete(wait);
          this.#poller.remove(this.#entry, wait);
          signal?.removeEventListener("abort", onAbort);
          if (error.length > 0) reject(error[0]);
          else resolve();
        },
      };
      this.#poller.add(this.#entry, wait);
      this.#waits.add(wait);
      signal?.addEventListener("abort", onAbort);
    });
  }

  /** Pending waits keep the process alive. This is so from the start. */
  ref(): void {
    this.#setRef(true);
  }

  /** Pending waits do not keep the process alive. */
  unref(): void {
    this.#setRef(false);
  }

  #setRef(isRef: boolean): void {
    this.#isRef = isRef;
    for (const wait of this.#waits) this.#poller.setRef(wait, isRef);
  }

  /** Ends pending waits with ClosedError. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    for (const wait of [...this.#waits]) {
      wait.settle(new ClosedError(`Cannot wait for file descriptor ${this.fd} any more: the watch was closed`));
    }
    this.#poller.release(this.#entry);
  }
}

/** Resolves when reading from `fd` will not wait; with `ref: false` the wait does not keep the process alive. */
export function waitReadable(fd: number, options?: WaitOptions & { readonly ref?: boolean }): Promise<void> {
  return waitOnce(fd, "readable", options);
}

/** Resolves when writing to `fd` will not wait; with `ref: false` the wait does not keep the process alive. */
export function waitWritable(fd: number, options?: WaitOptions & { readonly ref?: boolean }): Promise<void> {
  return waitOnce(fd, "writable", options);
}

async function waitOnce(
  fd: number,
  what: "readable" | "writable",
  options: WaitOptions & { readonly ref?: boolean } = {},
): Promise<void> {
  const watch = new FdWatch(fd);
  try {
    if (options.ref === false) watch.unref();
    await watch[what](options);
  } finally {
    watch.close();
  }
}

/** Gives this thread's epoll instance back now, if no watch is open. For tests that count descriptors and threads. */
export async function stopWaiterForTests(): Promise<void> {
  await current?.stopIfIdle();
}

// ----

interface Wait {
  readonly events: number;
  isRef: boolean;
  /** Resolves without an argument; rejects with one. */
  settle(...error: [unknown?]): void;
}

/** A descriptor in the epoll instance: all watches of one number share it. */
interface Entry {
  readonly fd: number;
  /** Never used again, so that an event that was on its way is not taken for one of the number's next file. */
  readonly token: number;
  readonly waits: Set<Wait>;
  armed: number;
  watches: number;
}

let current: Poller | undefined;

class Poller {
  readonly #epoll: Epoll = new Epoll();
  readonly #byFd = new Map<number, Entry>();
  readonly #byToken = new Map<number, Entry>();
  readonly #background: BackgroundWait;
  #lastToken = WAKE_TOKEN;
  #waits = 0;
  #refs = 0;
  #failure: { error: unknown } | undefined;
  #poll: ReturnType<typeof setTimeout> | undefined;
  #pollMs = POLL_MIN_MS;
  #linger: ReturnType<typeof setTimeout> | undefined;

  constructor() {
    try {
      this.#background = startBackgroundWait(this.#epoll, {
        onReady: (events) => this.#dispatch(events),
        onChange: () => this.#update(),
        onFailure: (error) => this.#fail(error),
      });
    } catch (error) {
      this.#epoll.close();
      throw error;
    }
  }

  open(fd: number): Entry {
    clearTimeout(this.#linger);
    let entry = this.#byFd.get(fd);
    if (entry === undefined) {
      entry = { fd, token: ++this.#lastToken, waits: new Set(), armed: 0, watches: 0 };
      this.#byFd.set(fd, entry);
      this.#byToken.set(entry.token, entry);
    }
    entry.armed = 0; // if the number has become another file under an old watch, the kernel has forgotten it
    entry.watches++;
    return entry;
  }

  release(entry: Entry): void {
    if (--entry.watches > 0) return;
    this.#byFd.delete(entry.fd);
    this.#byToken.delete(entry.token);
    if (!this.#failure) this.#epoll.remove(entry.fd);
    if (this.#byFd.size > 0) return;
    if (current === this) this.#linger = setTimeout(() => this.stopIfIdle(), LINGER_MS).unref();
  }

  add(entry: Entry, wait: Wait): void {
    if (this.#failure) throw this.#failure.error;
    this.#arm(entry, wait.events);
    entry.waits.add(wait);
    this.#waits++;
    if (wait.isRef) this.#refs++;
    this.#pollMs = POLL_MIN_MS;
    this.#update();
  }

  /** What is armed stays armed: at most one event comes for nobody. */
  remove(entry: Entry, wait: Wait): void {
    if (!entry.waits.delete(wait)) return;
    this.#waits--;
    if (wait.isRef) this.#refs--;
    this.#update();
  }

  setRef(wait: Wait, isRef: boolean): void {
    if (wait.isRef === isRef) return;
    wait.isRef = isRef;
    this.#refs += isRef ? 1 : -1;
    this.#update();
  }

  #arm(entry: Entry, events: number): void {
    const wanted = entry.armed | events;
    if (wanted === entry.armed) return;
    this.#epoll.arm(entry.fd, wanted, entry.token);
    entry.armed = wanted;
  }

  #dispatch(ready: ReadyEvent[]): void {
    for (const { token, events } of ready) {
      const entry = this.#byToken.get(token);
      if (entry === undefined) continue;
      this.#pollMs = POLL_MIN_MS;
      entry.armed = 0;
      for (const wait of [...entry.waits]) {
        if ((events & (wait.events | EPOLLERR_OR_HUP)) !== 0) wait.settle();
      }
      for (const wait of [...entry.waits]) {
        try {
          this.#arm(entry, wait.events);
        } catch (error) {
          wait.settle(error);
        }
      }
    }
  }

  #update(): void {
    this.#background.setRef(this.#refs > 0);
    if (this.#waits > 0 && !this.#background.isWaiting && !this.#failure) {
      this.#poll ??= setTimeout(() => this.#pollNow(), this.#pollMs).unref();
    } else {
      clearTimeout(this.#poll);
      this.#poll = undefined;
    }
  }

  #pollNow(): void {
    this.#poll = undefined;
    this.#pollMs = Math.min(2 * this.#pollMs, POLL_MAX_MS);
    try {
      this.#dispatch(this.#epoll.poll());
    } catch (error) {
      return this.#fail(error);
    }
    this.#update();
  }

  /** Ends all waits with the error. The next watch makes a new epoll instance. */
  #fail(error: unknown): void {
    if (this.#failure) return;
    this.#failure = { error };
    for (const entry of this.#byFd.values()) {
      for (const wait of [...entry.waits]) wait.settle(error);
    }
    this.#stop();
  }

  async stopIfIdle(): Promise<void> {
    if (this.#byFd.size === 0) await this.#stop();
  }

  #stop(): Promise<void> {
    if (current === this) current = undefined;
    clearTimeout(this.#linger);
    return new Promise((resolve) =>
      this.#background.stop(() => {
        this.#epoll.close();
        resolve();
      })
    );
  }
}
