/**
 * Sends, frees, releases and kills at random, and looks for what must never happen: a consumer that reads memory after it was
 * given to somebody else, a file descriptor or device memory that is not given back.
 *
 * Options: --seconds N, --seed S, --consumers N, --min-sends N and --min-kills N (fewer is a failure; a third of the kills
 * must fall into a running kernel). --plant use-after-free or fd-leak builds a mistake in, which must turn it red.
 * Runs on whatever CUDA_IPC_DRIVER names, by default the simulator. CUDA_IPC_TEST_DENO and CUDA_IPC_TEST_BUN name the
 * runtimes of the consumers where npm did not install them.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { type CudaStream, Device, type DeviceBuffer, type IpcChannel, IpcServer, type Lease, MemoryPool } from "../mod.ts";
import { createSharedMemory } from "../src/os/memory.ts";
import { ownFds } from "../tests/helpers/fds.ts";
import { type Runtime, type RuntimeProcess, skipWithout, spawnRuntime } from "../tests/helpers/runtimes.ts";
import type { SoakOrder } from "./soak_consumer.ts";
import { createRandom } from "./soak_random.ts";

process.env.CUDA_IPC_DRIVER ??= "simulator";
// Nobody else's memory is counted
process.env.CUDA_IPC_SIM_MACHINE ??= `soak.${process.pid}`;

const { values } = parseArgs({
  options: {
    seconds: { type: "string", default: "10" },
    seed: { type: "string", default: String(Date.now() % 1_000_000) },
    consumers: { type: "string", default: "3" },
    "min-sends": { type: "string", default: "0" },
    "min-kills": { type: "string", default: "0" },
    plant: { type: "string" },
  },
});
const plant = values.plant;
if (plant !== undefined && plant !== "use-after-free" && plant !== "fd-leak") throw new Error(`--plant ${plant} is unknown`);

const MAX_BYTES = 256 * 1024;
const IN_FLIGHT = 12;
const runtimes = (["deno", "bun"] satisfies Runtime[]).filter((runtime) => !skipWithout(runtime));
const random = createRandom(Number(values.seed));
const counts = { sends: 0, released: 0, kills: 0, killsInKernel: 0, stops: 0, freed: 0 };
const failures: string[] = [];

const device = Device.open(0);
const streams = [device.createStream(), device.createStream(), device.createStream()];
const folder = mkdtempSync(join(tmpdir(), "cuda-ipc-soak-"));
const end = performance.now() + 1000 * Number(values.seconds);
let stamps = 0;

/** One consumer after the other, until the time is over. */
async function serve(server: IpcServer, pool: MemoryPool, accepted: Map<number, (channel: IpcChannel) => void>): Promise<void> {
  while (performance.now() < end) {
    const runtime = runtimes[random.below(runtimes.length)];
    const consumer = spawnRuntime(runtime, new URL("soak_consumer.ts", import.meta.url), [
      server.path,
      String(random.below(1e9)),
      plant ?? "",
    ], {
      timeoutMs: 300_000,
    });
    const connected = new Promise<IpcChannel>((resolve) => accepted.set(consumer.pid, resolve));
    const died = consumer.exited.then(({ stderr }) => {
      throw new Error(`a consumer did not connect: ${stderr}`);
    });
    died.catch(() => {});
    const channel = await Promise.race([connected, died]);
    await feed(channel, consumer, pool);
    const { code, signal, stderr } = await consumer.exited;
    if (code !== 0 && signal !== "SIGKILL") {
      const when = performance.now() < end ? "in its work" : "at the end";
      failures.push(`a consumer (${runtime}, process ${consumer.pid}) ended ${when} by ${signal ?? `code ${code}`}: ${stderr}`);
    }
    await channel.closeAsync();
  }
}

/** Sends to one consumer until it is killed or the time is over. */
async function feed(channel: IpcChannel, consumer: RuntimeProcess, pool: MemoryPool): Promise<void> {
  let isBusy = false;
  const busy = new Promise<void>((resolve) => {
    (async () => {
      for await (const { data } of channel) {
        const { stale, error, busy } = data as { stale?: string; error?: string; busy?: boolean };
        if (stale !== undefined) failures.push(`stale read: ${stale}`);
        if (error !== undefined) failures.push(`a consumer failed: ${error}`);
        if (busy) {
          isBusy = true;
          resolve();
        }
      }
    })().catch(() => {}).then(resolve); // its exit ends the iteration
  });
  const leases = new Set<Lease>();
  const kept: Stamped[] = [];
  const untilKill = 20 + random.below(60);
  for (let sent = 0; sent < untilKill && performance.now() < end; sent++) {
    while (leases.size >= IN_FLIGHT && performance.now() < end) await sleep(1);
    leases.add(await sendOne(channel, pool, kept, leases, {}));
    if (random.chance(0.02)) await stop(consumer);
  }
  for (const { buffer, stream } of kept.splice(0)) buffer.free({ stream });
  if (performance.now() < end) {
    // Every second one, counted and not drawn: few kills of a short run would too often miss a third by chance
    const isInKernel = 2 * counts.killsInKernel <= counts.kills;
    counts.kills++;
    if (isInKernel) {
      const lease = await sendOne(channel, pool, [], leases, { busyMs: 200 });
      await Promise.race([busy, lease.released]); // a message that was refused keeps nobody busy
      const wasHeld = isBusy && !lease.isReleased;
      process.kill(consumer.pid, "SIGKILL");
      await lease.released;
      if (wasHeld && lease.outcome === "peer-gone") counts.killsInKernel++;
    } else {
      await sleep(random.below(10));
      process.kill(consumer.pid, "SIGKILL");
    }
    await channel.closed;
  } else {
    await Promise.all([...leases].map((lease) => lease.released));
    channel.close();
  }
  await Promise.all([...leases].map((lease) => lease.released));
}

async function sendOne(
  channel: IpcChannel,
  pool: MemoryPool,
  kept: Stamped[],
  leases: Set<Lease>,
  order: Partial<SoakOrder>,
): Promise<Lease> {
  const again = kept.length > 0 && random.chance(0.2) ? kept.pop()! : undefined;
  const stamped = again ?? create(pool, streams[random.below(streams.length)]);
  const { buffer, stamp, stream } = stamped;
  const sending = channel.send({ data: { stamp, ...order }, buffers: { frame: buffer } }, { after: stream });
  if (again === undefined && order.busyMs === undefined && random.chance(0.2)) kept.push(stamped);
  else {
    buffer.free({ stream });
    counts.freed++;
  }
  if (plant === "fd-leak" && random.chance(0.05)) createSharedMemory("cuda-ipc-planted", 4096);
  counts.sends++;
  const lease = await sending.catch(() => undefined); // it may be gone by now
  if (lease === undefined) return { isReleased: true, released: Promise.resolve(), outcome: "peer-gone" } as Lease;
  lease.released.then(() => {
    leases.delete(lease);
    counts.released++;
  });
  return lease;
}

/** A buffer whose words all are the stamp, once the work of its stream is done: all that uses it is ordered behind that. */
interface Stamped {
  readonly buffer: DeviceBuffer;
  readonly stamp: number;
  readonly stream: CudaStream;
}

function create(pool: MemoryPool, stream: CudaStream): Stamped {
  const buffer = pool.allocate(4 * (1 + random.below(MAX_BYTES / 4)), { stream });
  const stamp = ++stamps;
  buffer.fill(stamp, { width: 4, stream });
  return { buffer, stamp, stream };
}

async function stop(consumer: RuntimeProcess): Promise<void> {
  counts.stops++;
  process.kill(consumer.pid, "SIGSTOP");
  await sleep(random.below(20));
  process.kill(consumer.pid, "SIGCONT");
}

// ---- the run

async function run(): Promise<void> {
  const pool = MemoryPool.create(device, { ipc: true });
  const server = IpcServer.listen(join(folder, "socket"), { device });
  const accepted = new Map<number, (channel: IpcChannel) => void>();
  const accepting = (async () => {
    for await (const channel of server) accepted.get(channel.peer.pid)?.(channel);
  })();
  await Promise.all(Array.from({ length: Number(values.consumers) }, () => serve(server, pool, accepted)));
  server.close();
  await accepting;
  for (const stream of streams) await stream.finished();
  const { usedBytes } = pool.attributes;
  if (usedBytes !== 0) failures.push(`${usedBytes} bytes of the pool are still in use`);
  pool.close();
}

{
  using pool = MemoryPool.create(device, { ipc: true });
  using buffer = create(pool, streams[0]).buffer;
  buffer.ipcDescriptor; // what the driver opens once is no leak
  await buffer.read({ stream: streams[0] }); // staging memory is kept for good
}
await sleep(600);
const fdsBefore = ownFds();
const freeBefore = device.memoryInfo().freeBytes;
await run();
await settle("file descriptors", () => ownFds().length - fdsBefore.length);
// The driver may keep a little of its own
const slack = device.isSimulated ? 0 : 64 * 2 ** 20;
await settle("bytes of device memory", () => freeBefore - device.memoryInfo().freeBytes - slack);
rmSync(folder, { recursive: true, force: true });

/** What must come back to where it was, given a moment. */
async function settle(what: string, leaked: () => number): Promise<void> {
  for (let tries = 0; tries < 100 && leaked() > 0; tries++) await sleep(20);
  if (leaked() > 0) failures.push(`${leaked()} ${what} were not given back`);
}

if (counts.sends < Number(values["min-sends"])) failures.push(`${counts.sends} sends, expected ${values["min-sends"]}`);
if (counts.kills < Number(values["min-kills"])) failures.push(`${counts.kills} kills, expected ${values["min-kills"]}`);
if (counts.kills >= 6 && counts.killsInKernel < counts.kills / 3) {
  failures.push("fewer than a third of the kills fell into a running kernel");
}

console.log(JSON.stringify({ driver: process.env.CUDA_IPC_DRIVER, device: device.name, seed: Number(values.seed), ...counts }));
for (const failure of failures.slice(0, 20)) console.log(`FAILED: ${failure}`);
console.log(failures.length === 0 ? "soak: ok" : `soak: ${failures.length} failures`);
process.exit(failures.length === 0 ? 0 : 1);
