/**
 * Gives things back to the driver once no queued work uses them. Some calls block behind queued work, others do not
 * wait although they must (freeing an import, unmapping): so the work is waited for here, from the host, without
 * blocking the event loop. Nothing is waited for at process exit.
 */
import { setTimeout } from "node:timers";
import process from "node:process";
import { Completion } from "../completion.ts";
import type { NativeStream } from "../native_stream.ts";
import { pollUntil } from "../polling.ts";

const INTERVAL_MS = 2;

interface Pending {
  readonly completions: Completion[];
  readonly giveBack: () => void;
}

const pending = new Set<Pending>();
let timer: ReturnType<typeof setTimeout> | undefined;

/**
 * Calls `giveBack` when all work that the streams have queued by now is done: at once when they are idle. Gives a
 * function which tells whether that has happened.
 */
export function reapAfter(streams: Iterable<NativeStream>, giveBack: () => void): () => boolean {
  const busy = [...new Set(streams)].filter((stream) => !stream.isIdle());
  if (busy.length === 0) {
    giveBack();
    return () => true;
  }
  const entry: Pending = { completions: busy.map((stream) => new Completion(stream)), giveBack };
  pending.add(entry);
  schedule();
  return () => !pending.has(entry);
}

/** One pass over what is done; never waits. Gives the number of things given back. */
export function reap(): number {
  let count = 0;
  for (const entry of [...pending]) {
    try {
      if (!entry.completions.every((completion) => completion.isDone())) continue;
      pending.delete(entry);
      for (const completion of entry.completions) completion.release();
      entry.giveBack();
      count++;
    } catch (error) {
      // Nobody awaits a background free, so its failure is told as a warning; the memory stays with the driver
      pending.delete(entry);
      process.emitWarning(`Cannot give memory back to the driver: ${error instanceof Error ? error.message : String(error)}`, {
        type: "CudaIpcWarning",
        code: "CUDA_IPC_NOT_FREED",
      });
    }
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
