/**
 * Where an import goes: never over an older one that is still mapped. The driver keeps wrong books on imports that overlap
 * (see `findOverlap`), and an exporter may give a place out again as soon as the work on it is done, a little before this
 * process has unmapped it.
 */
import type { Text } from "../arguments.ts";
import { InvalidArgumentError } from "../errors.ts";
import { findOverlap, type Overlap, type PoolRange, whileImporting } from "../share/import_registry.ts";
import type { NativePool } from "./native_pool.ts";
import { reap } from "./reaper.ts";

/** Runs the import of a range; the range is undefined where the driver's bytes cannot be read. */
export function importAt<T>(pool: NativePool, range: PoolRange | undefined, action: Text, body: () => T): T {
  const attempt = (isLast: boolean) =>
    whileImporting(() => {
      const overlap = findOverlap(pool.context.driver, pool.handle, range);
      if (overlap === "ending" && !isLast) return undefined;
      if (overlap !== undefined) throw overlapError(overlap, action);
      return { done: body() };
    });
  const first = attempt(false);
  if (first !== undefined) return first.done;
  reap(); // its work may be done by now
  return attempt(true)!.done;
}

/** Whether memory that was given up here, and waits for its streams' work, is in the way of an import. */
export function isPlaceEnding(pool: NativePool, range: PoolRange | undefined): boolean {
  return whileImporting(() => findOverlap(pool.context.driver, pool.handle, range)) === "ending";
}

function overlapError(overlap: Overlap, action: Text): InvalidArgumentError {
  return new InvalidArgumentError(
    overlap === "in use"
      ? `Cannot ${action}: it overlaps an import of memory that its exporter has freed since. Free that import first`
      : `Cannot ${action}: it overlaps an import whose stream still has work to do. Await that buffer's closeAsync() first`,
  );
}
