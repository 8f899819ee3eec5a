/**
 * Jobs in GPU memory, given to a pool of worker processes, which work in place. A worker may die in the middle of a job: its
 * lease ends then, and the job goes to another one.
 *
 *   deno run -A examples/worker_pool.ts      or      bun examples/worker_pool.ts
 *
 * Without a GPU: CUDA_IPC_DRIVER=simulator.
 */
import process from "node:process";
import { Device, type DeviceBuffer, IpcChannel, IpcServer, MemoryPool } from "../mod.ts";
import { socketPath, start } from "./start.ts";

const WORKERS = 3;
const JOBS = 24;
const JOB_BYTES = 1 << 20;

async function coordinate(): Promise<void> {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device, { ipc: true });
  await using server = IpcServer.listen(socketPath(), { device });

  const jobs: { number: number; buffer: DeviceBuffer }[] = [];
  for (let number = 1; number <= JOBS; number++) {
    const buffer = pool.allocate(JOB_BYTES, { stream });
    buffer.fill(number, { stream });
    jobs.push({ number, buffer });
  }
  const done: number[] = [];
  let lost = 0;

  /** Gives one worker a job after the other. */
  async function employ(channel: IpcChannel): Promise<void> {
    for (let job = jobs.pop(); job !== undefined; job = jobs.pop()) {
      const { number, buffer } = job;
      try {
        const lease = await channel.send({ data: { number }, buffers: { buffer } }, { after: stream });
        await lease.released; // the worker's GPU work is done, or its process is gone
        if (lease.outcome === "peer-gone") throw new Error("the worker died");
      } catch {
        lost++;
        buffer.fill(number, { stream }); // as far as it came, nobody knows
        jobs.push(job);
        return;
      }
      const bytes = await buffer.read({ stream });
      if (bytes.some((byte) => byte !== number + 100)) throw new Error(`the result of job ${number} is wrong`);
      buffer.free({ stream });
      done.push(number);
    }
    await channel.closeAsync();
  }

  const processes = Array.from({ length: WORKERS }, (_, index) => {
    const diesEarly = index === 0;
    return start(import.meta.url, server.path, diesEarly ? "die" : "live").catch((error) => {
      if (!diesEarly) throw error;
    });
  });
  const employments: Promise<void>[] = [];
  for await (const channel of server) if (employments.push(employ(channel)) === WORKERS) break;
  await Promise.all(employments);
  await Promise.all(processes);
  if (done.length !== JOBS || lost === 0) throw new Error(`${done.length} jobs done, ${lost} lost`);
  console.log(`ok: ${JOBS} jobs done by ${WORKERS} workers, ${lost} given to another one`);
}

async function work(path: string, fate: string): Promise<void> {
  using device = Device.open(0);
  using stream = device.createStream();
  await using channel = await IpcChannel.connect(path, { device });
  let count = 0;
  for await (const message of channel.messages({ stream })) {
    const { number } = message.data as { number: number };
    message.buffers.buffer.fill(number + 100, { stream }); // in place of a kernel
    if (fate === "die" && ++count === 2) process.kill(process.pid, "SIGKILL");
    await message.release({ after: stream });
  }
}

const [path, fate] = process.argv.slice(2);
await (path === undefined ? coordinate() : work(path, fate));
