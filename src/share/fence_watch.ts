/**
 * Watching words from the host while nobody awaits them: one timer for all, which grows slower the longer nothing happens
 * and keeps no process alive.
 */
import { clearTimeout, setTimeout } from "node:timers";
import { inBackground } from "../background.ts";

const FASTEST_MS = 1;
const SLOWEST_MS = 20;

interface Watch {
  readonly isDone: () => boolean;
  readonly then: () => void;
}

const watches = new Set<Watch>();
let timer: ReturnType<typeof setTimeout> | undefined;
let intervalMs = FASTEST_MS;

/** Calls `then` once, when `isDone` returns true; at once if it is so already. Gives a function that ends the watching. */
export function watch(isDone: () => boolean, then: () => void): () => void {
  if (isDone()) {
    then();
    return () => {};
  }
  const entry = { isDone, then };
  watches.add(entry);
  hurry();
  return () => watches.delete(entry);
}

/** Looks soon: something has happened that may have moved a word. */
export function hurry(): void {
  intervalMs = FASTEST_MS;
  clearTimeout(timer);
  timer = undefined;
  schedule();
}

function schedule(): void {
  if (timer !== undefined || watches.size === 0) return;
  timer = setTimeout(look, intervalMs);
  timer.unref();
}

function look(): void {
  timer = undefined;
  intervalMs = Math.min(intervalMs * 1.25, SLOWEST_MS);
  for (const entry of [...watches]) {
    const went = inBackground("watch a fence", () => {
      if (!entry.isDone()) return;
      watches.delete(entry);
      intervalMs = FASTEST_MS;
      entry.then();
    });
    if (!went) watches.delete(entry); // so that nothing is tried for ever
  }
  schedule();
}
