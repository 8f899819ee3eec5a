/** A Worker of the channel tests: runs the functions that its parent sends as text. */
import { parentPort } from "node:worker_threads";
import { whileImporting } from "../../src/share/import_registry.ts";
import { Toolkit } from "./toolkit.ts";

const toolkit = Object.assign(new Toolkit(), { whileImporting });
parentPort!.on("message", async ({ source, args }) => {
  try {
    parentPort!.postMessage({ value: await new Function(`return (${source});`)()(toolkit, ...args) });
  } catch (error) {
    parentPort!.postMessage({ error: String((error as Error)?.stack ?? error) });
  }
});
parentPort!.postMessage({ value: "ready" });
