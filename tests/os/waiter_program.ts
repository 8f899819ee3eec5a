/** What waiter_test.ts starts: one wait in one way, for the process that it keeps alive or not. */
import process from "node:process";
import { isMainThread, parentPort, Worker, workerData } from "node:worker_threads";
import { connectSocket, Listener, receiveBytes, sendBytes } from "../../src/os/socket.ts";
import { FdWatch } from "../../src/os/waiter.ts";

const [mode, path] = isMainThread ? process.argv.slice(2) : workerData as string[];

const listener = Listener.open(path);
const sender = connectSocket(path)!;
const receiver = listener.accept()!;
listener.close();
const watch = new FdWatch(receiver);
const send = () => sendBytes(sender, new Uint8Array(1));
const say = (text: string) => isMainThread ? console.log(text) : parentPort!.postMessage(text);

switch (mode) {
  case "ref": // the test must kill it
    watch.readable();
    say("waiting");
    break;
  case "unref":
    watch.unref();
    watch.readable();
    break;
  case "unref later":
    watch.readable();
    setTimeout(() => watch.unref(), 100);
    break;
  case "ref again": {
    watch.unref();
    const woken = watch.readable();
    watch.ref();
    setTimeout(send, 100).unref(); // in Node's way this timer alone would not keep the process alive
    await woken;
    say("woken");
    break;
  }
  case "unref is woken":
    watch.unref();
    setTimeout(send, 100);
    setTimeout(() => {}, 2000).ref();
    await watch.readable();
    say("woken");
    process.exit();
    break;
  case "there and back": { // each way of waiting takes over from the other
    watch.unref();
    for (const isRef of [false, true, false, true]) {
      if (isRef) watch.ref();
      else watch.unref();
      setTimeout(send, 300);
      const turn = setTimeout(() => say("late"), 5000);
      await watch.readable();
      clearTimeout(turn);
      say(`woken by ${receiveBytes(receiver)!.bytes.length} byte`);
    }
    watch.unref();
    watch.readable();
    break;
  }
  case "abort":
    watch.readable({ signal: AbortSignal.timeout(100) }).catch((error) => say(error.name));
    break;
  case "idle": {
    const isRef = process.argv[4] === "ref";
    if (!isRef) watch.unref();
    watch.readable();
    await new Promise((resolve) => setTimeout(resolve, 500)); // the runtime's own start
    const before = process.cpuUsage();
    await new Promise((resolve) => setTimeout(resolve, 500));
    const { user, system } = process.cpuUsage(before);
    say(String((user + system) / 500_000));
    process.exit();
    break;
  }
  case "in a worker": {
    const worker = new Worker(new URL(import.meta.url), { workerData: ["worker", path] });
    worker.on("message", say);
    worker.on("error", (error) => say(String(error)));
    break;
  }
  case "worker":
    setTimeout(send, 100);
    await watch.readable();
    say(`worker got ${receiveBytes(receiver)!.bytes.length} byte`);
    watch.close();
    break;
  case "terminated worker": {
    const worker = new Worker(new URL(import.meta.url), { workerData: ["ref", path] });
    worker.on("message", async (text: string) => {
      say(text);
      await worker.terminate();
      say("terminated");
    });
    break;
  }
}
