/**
 * The weights of a model, loaded once and used by several processes and by several threads (Workers) of one of them. The GPU
 * holds one copy, however many use it.
 *
 *   deno run -A examples/shared_weights.ts      or      bun examples/shared_weights.ts
 *
 * Without a GPU: CUDA_IPC_DRIVER=simulator.
 */
import { once } from "node:events";
import process from "node:process";
import { isMainThread, parentPort, Worker, workerData } from "node:worker_threads";
import { Device, IpcChannel, IpcServer, type Lease, MemoryPool } from "../mod.ts";
import { socketPath, start } from "./start.ts";

const LAYERS = { embedding: 8 << 20, attention: 16 << 20, output: 4 << 20 };
const PROCESSES = 2;
const THREADS = 2;

async function load(): Promise<void> {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device, { ipc: true });
  await using server = IpcServer.listen(socketPath(), { device });

  // The names and lengths would come from a file
  const weights = Object.fromEntries(
    Object.entries(LAYERS).map(([name, byteLength], index) => {
      const buffer = pool.allocate(byteLength, { stream });
      buffer.fill(index + 1, { stream });
      return [name, buffer];
    }),
  );
  const { usedBytes } = pool.attributes;

  const users = Array.from({ length: PROCESSES }, () => start(import.meta.url, server.path));
  const leases: Lease[] = [];
  for await (const channel of server) {
    leases.push(await channel.send({ buffers: weights }, { after: stream }));
    if (leases.length === PROCESSES * (1 + THREADS)) break;
  }
  if (pool.attributes.usedBytes !== usedBytes) throw new Error("sharing took memory");
  for (const buffer of Object.values(weights)) buffer.free({ stream }); // they stay until the last user is done
  await Promise.all(users);
  for (const lease of leases) await lease.released;
  await stream.finished();
  if (pool.attributes.usedBytes !== 0) throw new Error("the weights were not given back");
  console.log(`ok: ${usedBytes >> 20} MiB of weights, once for ${PROCESSES} processes with ${1 + THREADS} threads each`);
}

/** A user of the weights: the main thread of a process, or a Worker. */
async function use(path: string): Promise<void> {
  using device = Device.open(0);
  using stream = device.createStream();
  await using channel = await IpcChannel.connect(path, { device });
  await using message = await channel.receive({ stream });
  for (const [index, [name, byteLength]] of Object.entries(LAYERS).entries()) {
    const layer = message.buffers[name];
    const [last] = await layer.read({ stream, byteOffset: byteLength - 1 });
    if (last !== index + 1) throw new Error(`${name} holds ${last}`);
  }
}

if (!isMainThread) {
  await use(workerData);
  parentPort!.postMessage("done");
} else {
  const [path] = process.argv.slice(2);
  if (path === undefined) await load();
  else {
    const threads = Array.from({ length: THREADS }, async () => {
      const worker = new Worker(new URL(import.meta.url), { workerData: path });
      await once(worker, "message");
      await worker.terminate();
    });
    await Promise.all([use(path), ...threads]);
  }
}
