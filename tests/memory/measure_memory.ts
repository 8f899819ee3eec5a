import process from "node:process";
import { collectGarbage } from "../helpers/garbage.ts";

/** The process's memory in bytes after a collection: the least of several looks, since both runtimes give back late. */
export async function measureMemory(): Promise<number> {
  let least = Infinity;
  for (let i = 0; i < 5; i++) {
    collectGarbage();
    await new Promise((resolve) => setTimeout(resolve, 30));
    least = Math.min(least, process.memoryUsage().rss);
  }
  return least;
}
