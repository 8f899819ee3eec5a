/** Collects garbage now, so that a test sees what a reference that was lost does. */
import v8 from "node:v8";
import vm from "node:vm";

const bun = (globalThis as { Bun?: { gc(force: boolean): void } }).Bun;

function nodeCollector(): () => void {
  v8.setFlagsFromString("--expose-gc");
  return vm.runInNewContext("gc");
}

export const collectGarbage: () => void = bun ? () => bun.gc(true) : nodeCollector();
