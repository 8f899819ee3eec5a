/**
 * One producer of frames, any number of consumers in other processes, and no copy between them. A consumer that is slow gets
 * fewer frames, and slows nobody else down: the producer keeps at most two frames at each.
 *
 *   deno run -A examples/frame_server.ts      or      bun examples/frame_server.ts
 *
 * Without a GPU: CUDA_IPC_DRIVER=simulator.
 */
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { Device, IpcChannel, IpcServer, type Lease, MemoryPool } from "../mod.ts";
import { socketPath, start } from "./start.ts";

const FRAMES = 40;
const FRAME_BYTES = 1920 * 1080 * 4;
const FRAMES_AT_EACH = 2;

async function produce(): Promise<void> {
  using device = Device.open(0);
  using stream = device.createStream();
  // Its own pool: whoever gets a buffer of it can reach all of it
  using pool = MemoryPool.create(device, { ipc: true });
  await using server = IpcServer.listen(socketPath(), { device });

  const consumers = new Map<IpcChannel, Set<Lease>>();
  (async () => {
    for await (const channel of server) {
      consumers.set(channel, new Set());
      channel.closed.then(() => consumers.delete(channel));
    }
  })();
  const processes = [start(import.meta.url, server.path, "0"), start(import.meta.url, server.path, "30")];
  while (consumers.size < processes.length) await sleep(10);

  for (let number = 1; number <= FRAMES; number++) {
    using frame = pool.allocate(FRAME_BYTES, { stream }); // given back when the last consumer has released it
    frame.fill(number, { stream }); // in place of a camera or a renderer
    for (const [channel, leases] of consumers) {
      if (leases.size >= FRAMES_AT_EACH) continue; // it is behind: it misses this frame
      const lease = await channel.send({ data: { number }, buffers: { frame } }, { after: stream });
      leases.add(lease);
      lease.released.then(() => leases.delete(lease));
    }
    await sleep(8);
  }
  for (const channel of [...consumers.keys()]) await channel.closeAsync();
  await Promise.all(processes);
  console.log(`ok: ${FRAMES} frames for ${processes.length} consumers`);
}

async function consume(path: string, busyMs: number): Promise<void> {
  using device = Device.open(0);
  using stream = device.createStream();
  await using channel = await IpcChannel.connect(path, { device });
  let received = 0;
  for await (const message of channel.messages({ stream })) {
    const { number } = message.data as { number: number };
    const [pixel] = await message.buffers.frame.read({ stream, byteOffset: FRAME_BYTES - 4, byteLength: 4 });
    if (pixel !== number) throw new Error(`frame ${number} holds ${pixel}`);
    await sleep(busyMs);
    await message.release({ after: stream });
    received++;
  }
  console.log(`a consumer that takes ${busyMs} ms for each got ${received} frames`);
}

const [path, busyMs] = process.argv.slice(2);
await (path === undefined ? produce() : consume(path, Number(busyMs)));
