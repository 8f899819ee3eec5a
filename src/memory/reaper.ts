/**
 * Gives things back to the driver once no queued work uses them. Some calls block behind queued work, others do not
 * wait although they must (freeing an import, unmapping): so the work is waited for here, from the host, without
 * blocking the event loop. Nothing is waited for at process exit.
 */
import { setTimeout } from "node:timers";
import { inBackground } from "../background.ts";
import { Completion } from "../completion.ts";
import type { Context } from "../context.ts";
import type { NativeStream } from "../native_stream.ts";
import { pollUntil } from "../polling.ts";

const INTERVAL_MS = 2;

interface Pending {
  readonly isReady: () => boolean;
  readonly giveBack: () => void;
  readonly byteLength: number;
}

const pending = new Set<Pending>();
let timer: ReturnType<typeof setTimeout> | undefined;

/**
 * Calls `giveBack` when all work that the streams have queued by now is done: at once when they are idle. Gives a
 * function which tells whether that has happened.
 */
export function reapAfter(streams: Iterable<NativeStream>, giveBack: () => void, byteLength = 0): () => boolean {
  const busy = [...new Set(streams)].filter((stream) => stream.hasWork());
  const completions = busy.map((stream) => new Completion(stream));
  return reapWhen(
    () => {
      if (!completions.every((completion) => completion.isOver())) return false;
      for (const completion of completions.splice(0)) completion.release();
      return true;
    },
    giveBack,
    byteLength,
  );
}

/**
 * The same for a call that blocks behind all queued work of the device, whoever queued it: it is made at a moment when
 * no stream has any. A device that is never idle keeps the thing.
 */
export function reapWhenIdle(context: Context, giveBack: () => void, byteLength = 0): () => boolean {
  return reapWhen(() => context.isIdle(), giveBack, byteLength);
}

/** Calls `giveBack` when `isReady` says so: at once, or at a later pass. */
export function reapWhen(isReady: () => boolean, giveBack: () => void, byteLength = 0): () => boolean {
  if (isReady()) {
    giveBack();
    return () => true;
  }
  const entry: Pending = { isReady, giveBack, byteLength };
  pending.add(entry);
  schedule();
  return () => !pending.has(entry);
}

/** Bytes of memory that is given back when its streams' work is done. */
export function pendingBytes(): number {
  let bytes = 0;
  for (const { byteLength } of pending) bytes += byteLength;
  return bytes;
}

/** One pass over what is done; never waits. Gives the number of things given back. */
export function reap(): number {
  let count = 0;
  for (const entry of [...pending]) {
    const went = inBackground("give memory back to the driver", () => {
      if (!entry.isReady()) return;
      pending.delete(entry);
      entry.giveBack();
      count++;
    }, "CUDA_IPC_NOT_FREED");
    if (!went) pending.delete(entry); // the memory stays with the driver
  }
  return count;
}

function schedule(): void {
  if (timer !== undefined || pending.size === 0) return;
  timer = setTimeout(() => {
    timer = undefined;
    reap();
    schedule();
  }, INTERVAL_MS);
  timer.unref();
}

/** Resolves when `isDone`, which `reapAfter` gave, tells so. */
export function reaped(isDone: () => boolean, signal: AbortSignal | undefined): Promise<void> {
  return pollUntil(() => {
    reap();
    return isDone();
  }, signal);
}
