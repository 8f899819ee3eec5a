/** A thread of the test's own process: it has the driver, and no current context. */
import { parentPort } from "node:worker_threads";
import { Executor, type Host, type Method } from "./executor.ts";

const executor = new Executor();
parentPort!.on("message", async ({ kind, name, args }: { kind: "call" | "host"; name: string; args: unknown[] }) => {
  try {
    const value = kind === "call"
      ? executor.call(name as Method, args)
      : await (executor.host[name as keyof Host] as (...args: unknown[]) => unknown)(...args);
    parentPort!.postMessage({ value });
  } catch (error) {
    parentPort!.postMessage({ error: String(error) });
  }
});
parentPort!.postMessage({ value: "ready" });
