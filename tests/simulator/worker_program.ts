/** Another thread of the test's process with a driver: commands come as messages. */
import { parentPort } from "node:worker_threads";
import { openDriver } from "../../src/driver/mod.ts";
import type { CudaDriver } from "../../src/driver/driver.ts";
import { type Command, Executor } from "./session.ts";

const executor = new Executor(openDriver("simulator") as CudaDriver);
parentPort!.on("message", async (command: Command) => {
  try {
    parentPort!.postMessage(await executor.execute(command));
  } catch (error) {
    parentPort!.postMessage({ code: -1, out: "", error: String(error) });
  }
});
parentPort!.postMessage("ready");
