/** Waiting for the GPU from the host without blocking the event loop and without callbacks from driver threads. */
import { clearTimeout, setImmediate, setTimeout } from "node:timers";

/** How long a wait turns the event loop before it sleeps: short work is seen at once, long work costs no core. */
const SPIN_MS = 0.5;
const SLEEP_MS = 1;
/** What has taken long may be seen a little later: by a hundredth of its time, up to this. */
const MAX_SLEEP_MS = 2;

interface Wait {
  readonly isDone: () => boolean;
  readonly settle: (error?: unknown) => void;
}

const waits = new Set<Wait>();
let spinUntil = 0;
let spinning = false;
let sleeping: ReturnType<typeof setTimeout> | undefined;

/**
 * Resolves when `isDone` returns true, and rejects with what it throws, or with the signal's reason. `isDone` is
 * called at once and then from one timer that all waits share: about each millisecond, later every two.
 */
export function pollUntil(isDone: () => boolean, signal?: AbortSignal): Promise<void> {
  return new Promise<void>((resolve, reject) => {
    signal?.throwIfAborted();
    if (isDone()) return resolve();
    const onAbort = () => wait.settle(signal!.reason);
    const wait: Wait = {
      isDone,
      settle(...error) {
        waits.delete(wait);
        signal?.removeEventListener("abort", onAbort);
        if (error.length > 0) reject(error[0]);
        else resolve();
      },
    };
    signal?.addEventListener("abort", onAbort);
    waits.add(wait);
    spinUntil = performance.now() + SPIN_MS;
    schedule();
  });
}

function schedule(): void {
  if (waits.size === 0 || spinning) return;
  const sinceSpin = performance.now() - spinUntil;
  if (sinceSpin < 0) {
    clearTimeout(sleeping);
    sleeping = undefined;
    spinning = true;
    setImmediate(poll);
  } else {
    sleeping ??= setTimeout(poll, Math.min(Math.max(SLEEP_MS, sinceSpin / 100), MAX_SLEEP_MS));
  }
}

function poll(): void {
  spinning = false;
  sleeping = undefined;
  for (const wait of [...waits]) {
    try {
      if (wait.isDone()) wait.settle();
    } catch (error) {
      wait.settle(error);
    }
  }
  schedule();
}

/**
 * Lets the event loop turn once. A loop over waits that are done at once would otherwise keep everything else from
 * running, since a promise that is resolved already does not give way.
 */
export function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
