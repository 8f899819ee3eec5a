/**
 * Waiting in the kernel without blocking the event loop: by a Worker that blocks (Bun), or by a nonblocking call where the
 * runtime has those (Deno). Either costs nothing while nothing happens. The call keeps the process alive, so where that is
 * not wanted its user polls: starting a Worker would block Deno's event loop for 35 ms, once.
 */
import { setImmediate } from "node:timers";
import { Worker } from "node:worker_threads";
import {
  libcCandidates,
  libcWorkerSource,
  NativeBlock,
  type NativeLibrary,
  openLibrary,
  runtimeName,
  type SymbolTable,
} from "../../ffi/mod.ts";
import { CudaIpcError } from "../errors.ts";
import { type Epoll, EVENT_BYTES, MAX_EVENTS, readEvents, type ReadyEvent, WAKE_TOKEN } from "./epoll.ts";
import { cString, libc, LIBC_SYMBOLS } from "./libc.ts";

/** Each wait ends after this time and begins again, so that one whose owner was terminated ends some day. */
const TIMEOUT_MS = 10_000;
/** A signal may end a wait; more failures than this in a row are not signals. */
const MAX_FAILURES = 100;

export interface BackgroundWaitHandlers {
  onReady(events: ReadyEvent[]): void;
  /** `isWaiting` has changed. */
  onChange(): void;
  /** No event will come any more. */
  onFailure(error: unknown): void;
}

export interface BackgroundWait {
  /** Whether events are being waited for in the kernel; where not, `Epoll.poll` must ask for them. */
  readonly isWaiting: boolean;
  /** Whether the wait keeps the process alive. */
  setRef(isRef: boolean): void;
  /** Ends it; `onStopped` is called when nothing waits on the epoll instance any more, at once if nothing does. */
  stop(onStopped: () => void): void;
}

export function startBackgroundWait(epoll: Epoll, handlers: BackgroundWaitHandlers): BackgroundWait {
  return runtimeName() === "deno" ? new NonblockingCall(epoll, handlers) : new WaitingThread(epoll, handlers);
}

const { prototype, result } = LIBC_SYMBOLS.epoll_wait;

// ---- a Worker

const THREAD = `
const { parentPort, workerData } = process.getBuiltinModule("node:worker_threads");
const { epollFd, stop, owner, eventBytes, maxEvents, timeoutMs, maxFailures } = workerData;
const events = new Uint8Array(maxEvents * eventBytes);
const view = new DataView(events.buffer);
const isWake = (index) => view.getBigUint64((index + 1) * eventBytes - 8, true) === ${WAKE_TOKEN}n;
parentPort.postMessage(null);
for (let failures = 0; failures < maxFailures && Atomics.load(stop, 0) === 0;) {
  const count = epoll_wait(epollFd, events, maxEvents, timeoutMs);
  failures = count < 0 ? failures + 1 : 0;
  if (count > 1 || (count === 1 && !isWake(0))) {
    parentPort.postMessage(events.slice(0, count * eventBytes));
  } else {
    if (access(owner, 0) !== 0) break; // terminated: it has taken no leave
    if (count === 1) usleep(1000); // for another waiter, who is about to take it
  }
}
`;
const THREAD_SYMBOLS = {
  epoll_wait: { prototype, args: ["i32", "bytes", "i32", "i32"], result },
  access: { prototype: "int access(const char *path, int mode)", args: ["bytes", "i32"], result: "i32" },
  usleep: LIBC_SYMBOLS.usleep,
} as const satisfies SymbolTable;

/** The Worker has no file, so that bundles need none and Deno needs no permission to read it. */
class WaitingThread implements BackgroundWait {
  readonly #epoll: Epoll;
  readonly #worker: Worker;
  readonly #stop = new Int32Array(new SharedArrayBuffer(4));
  #isRef = false;
  #hasExited = false;
  #onStopped: (() => void) | undefined;
  isWaiting = false;

  constructor(epoll: Epoll, handlers: BackgroundWaitHandlers) {
    this.#epoll = epoll;
    const source = libcWorkerSource(THREAD_SYMBOLS, THREAD);
    this.#worker = new Worker(new URL(`data:text/javascript,${encodeURIComponent(source)}`), {
      workerData: {
        epollFd: epoll.fd,
        stop: this.#stop,
        owner: cString(`/proc/self/task/${libc().gettid()}`),
        eventBytes: EVENT_BYTES,
        maxEvents: MAX_EVENTS,
        timeoutMs: TIMEOUT_MS,
        maxFailures: MAX_FAILURES,
      },
    });
    let failure: unknown = new CudaIpcError("Cannot wait for file descriptors: the waiting thread has ended");
    this.#worker.on("error", (error: unknown) => failure = error);
    this.#worker.on("message", (events: Uint8Array | null) => {
      if (events !== null) return handlers.onReady(readEvents(new DataView(events.buffer), events.byteLength / EVENT_BYTES));
      this.isWaiting = true;
      handlers.onChange();
    });
    this.#worker.on("exit", () => {
      this.#hasExited = true;
      this.isWaiting = false;
      if (this.#onStopped) this.#onStopped();
      else handlers.onFailure(failure);
    });
    this.#worker.unref(); // after the listeners, which ref it
  }

  setRef(isRef: boolean): void {
    if (isRef === this.#isRef) return;
    this.#isRef = isRef;
    if (isRef) this.#worker.ref();
    else this.#worker.unref();
  }

  /** It is such a wait from the start. */

  stop(onStopped: () => void): void {
    if (this.#hasExited) return onStopped();
    this.#onStopped = onStopped;
    this.setRef(false);
    Atomics.store(this.#stop, 0, 1);
    if (!this.#epoll.wake()) this.#worker.terminate();
  }
}

// ---- a nonblocking call

const CALL_SYMBOLS = {
  epoll_wait: { prototype, args: LIBC_SYMBOLS.epoll_wait.args, result, nonblocking: true },
} as const satisfies SymbolTable;
let nonblocking: NativeLibrary<typeof CALL_SYMBOLS> | undefined;

/** A pending call keeps the process alive, whatever one does: so it is made only while that is wanted. */
class NonblockingCall implements BackgroundWait {
  readonly #epoll: Epoll;
  readonly #handlers: BackgroundWaitHandlers;
  readonly #block: NativeBlock = new NativeBlock(MAX_EVENTS * EVENT_BYTES);
  #isRef = false;
  #isChecking = false;
  #onStopped: (() => void) | undefined;
  isWaiting = false;

  constructor(epoll: Epoll, handlers: BackgroundWaitHandlers) {
    this.#epoll = epoll;
    this.#handlers = handlers;
    nonblocking ??= openLibrary("the C library", libcCandidates(), CALL_SYMBOLS);
  }

  setRef(isRef: boolean): void {
    this.#isRef = isRef;
    if (isRef && !this.isWaiting) this.#run();
    // Not at once: whoever waited often waits again in this turn of the event loop
    if (!isRef && this.isWaiting && !this.#isChecking) {
      this.#isChecking = true;
      setImmediate(() => {
        this.#isChecking = false;
        if (!this.#isRef && this.isWaiting) this.#epoll.wake();
      });
    }
  }

  async #run(): Promise<void> {
    this.isWaiting = true;
    const events = this.#block.addressAt(0);
    try {
      while (this.#isRef) {
        const count = await nonblocking!.epoll_wait(this.#epoll.fd, events, MAX_EVENTS, TIMEOUT_MS);
        // errno is the other thread's: this thread's call tells why it failed
        const ready = count < 0 ? this.#epoll.poll() : readEvents(this.#block.view, count);
        if (ready.some(({ token }) => token === WAKE_TOKEN)) this.#epoll.clearWake();
        this.#handlers.onReady(ready);
      }
    } catch (error) {
      this.isWaiting = false;
      if (!this.#onStopped) return this.#handlers.onFailure(error);
    }
    this.isWaiting = false;
    if (this.#onStopped) this.#end();
    else this.#handlers.onChange();
  }

  stop(onStopped: () => void): void {
    this.#onStopped = onStopped;
    this.#isRef = false;
    if (this.isWaiting) this.#epoll.wake();
    else this.#end();
  }

  #end(): void {
    this.#block.free();
    this.#onStopped!();
  }
}
