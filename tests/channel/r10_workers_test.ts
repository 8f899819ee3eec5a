/** R9 and R10: the imports of a process are counted over its threads, and a thread that is terminated breaks nothing. */
import { assert, assertEquals, assertThrows } from "@std/assert";
import { once } from "node:events";
import process from "node:process";
import { test } from "node:test";
import { Worker } from "node:worker_threads";
import { ClosedError, MemoryPool } from "../../mod.ts";
import type { whileImporting } from "../../src/share/import_registry.ts";
import { makeFolder, Pair, Peer, sleep, type Toolkit, toolkit, until } from "./harness.ts";

type WorkerToolkit = Toolkit & { whileImporting: typeof whileImporting };

/** A Worker of this process. Its functions are sent as text, as those of a Peer. */
class Thread {
  readonly #worker = new Worker(new URL("r10_worker_program.ts", import.meta.url));

  static async start(): Promise<Thread> {
    const thread = new Thread();
    await once(thread.#worker, "message");
    return thread;
  }

  post<A extends unknown[]>(body: (t: WorkerToolkit, ...args: A) => unknown, ...args: A): void {
    this.#worker.postMessage({ source: body.toString(), args });
  }

  async run<A extends unknown[], R>(body: (t: WorkerToolkit, ...args: A) => R | Promise<R>, ...args: A): Promise<R> {
    this.post(body, ...args);
    const [{ value, error }] = await once(this.#worker, "message");
    if (error !== undefined) throw new Error(`in the Worker: ${error}`);
    return value;
  }

  async terminate(): Promise<void> {
    await this.#worker.terminate();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.terminate();
  }
}

/** An exporter in another process that sends its buffer to whoever connects. */
async function startExporter(path: string): Promise<Peer> {
  const peer = await Peer.start();
  await peer.run((t, path) => {
    const { pool, buffer } = t.createBuffer(4096, 7);
    Object.assign(t.kept, { pool, buffer, leases: [], channels: [] });
    const server = t.cuda.IpcServer.listen(path, { device: t.device });
    (async () => {
      for await (const channel of server) {
        t.kept.channels.push(channel);
        t.kept.leases.push(await channel.send({ buffers: { buffer } }, { after: t.stream }));
      }
    })();
  }, path);
  return peer;
}

const receive = async (t: Toolkit, path: string) => {
  t.kept.channel = await t.connect(path);
  t.kept.message = await t.kept.channel.receive({ stream: t.stream });
  return String(t.kept.message.buffers.buffer.address);
};
const read = async (t: Toolkit) => (await t.kept.message.buffers.buffer.read({ stream: t.stream }))[100];

test("R9: an import twice is one mapping, which the last one frees", async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  const { pool, buffer } = t.createBuffer(4096, 7);
  await pair.channel.send({ buffers: { buffer } }, { after: t.stream });
  await pair.channel.send({ buffers: { buffer } }, { after: t.stream });
  const bytes = await pair.peer.run(async (t) => {
    const first = await t.kept.channel.receive({ stream: t.stream });
    const second = await t.kept.channel.receive({ stream: t.stream });
    const isSame = first.buffers.buffer.address === second.buffers.buffer.address;
    await first.release();
    t.stream.synchronize();
    await t.sleep(20);
    const byte = (await second.buffers.buffer.read({ stream: t.stream }))[0];
    await second.release();
    return { isSame, byte };
  });
  assertEquals(bytes, { isSame: true, byte: 7 });
  buffer.free();
  pool.close();
});

test("R9: an older descriptor of reused memory is told, and the newer one works", async () => {
  const t = toolkit();
  await using peer = await Peer.start();
  const pool = MemoryPool.create(t.device, { ipc: true });
  const first = pool.allocate(4096, { stream: t.stream });
  const address = first.address;
  const old = [...first.ipcDescriptor.toBytes()];
  first.free();
  t.stream.synchronize();
  const second = pool.allocate(4096, { stream: t.stream });
  second.fill(5, { stream: t.stream });
  t.stream.synchronize();
  if (second.address !== address) return; // the driver chose another place
  using folder = makeFolder();
  const server = t.cuda.IpcServer.listen(`${folder.path}/socket`, { device: t.device });
  const accepted = server.accept();
  await peer.run(async (t, path) => {
    t.kept.channel = await t.connect(path);
  }, server.path);
  const channel = (await accepted)!;
  using handle = pool.exportHandle();
  await channel.send({ handles: { pool: handle }, data: [old, [...second.ipcDescriptor.toBytes()]] });
  const seen = await peer.run(async (t) => {
    const { cuda, stream } = t;
    const { handles, data } = await t.kept.channel.receive();
    const pool = cuda.MemoryPool.import(t.device, handles.pool);
    const [old, recent] = (data as number[][]).map((bytes) =>
      cuda.DeviceBuffer.import(pool, cuda.BufferDescriptor.fromBytes(Uint8Array.from(bytes)), { stream })
    );
    const error = await old.read({ stream }).then(() => "read it", (error: Error) => error.name);
    return { error, byte: (await recent.read({ stream }))[0] };
  });
  assertEquals(seen, { error: ClosedError.name, byte: 5 });
  channel.close();
  server.close();
  second.free();
  pool.close();
});

test("R10: two threads import one buffer; the free of one leaves the other's", async () => {
  const t = toolkit();
  using folder = makeFolder();
  const path = `${folder.path}/socket`;
  await using _exporter = await startExporter(path);
  await using thread = await Thread.start();
  const theirs = await thread.run(receive, path);
  assertEquals(await receive(t, path), theirs);
  await thread.run(async (t) => {
    await t.kept.message.release();
    await t.stream.finished();
    await t.sleep(20);
  });
  assertEquals(await read(t), 7);
  const again = await thread.run(receive, path);
  assertEquals(again, theirs);
  await t.kept.message.release();
  await t.stream.finished();
  assertEquals(await thread.run(read), 7);
  t.kept.channel.close();
});

test("R10: a thread that is terminated with an import leaves the other's as it is", async () => {
  const t = toolkit();
  using folder = makeFolder();
  const path = `${folder.path}/socket`;
  await using exporter = await startExporter(path);
  const thread = await Thread.start();
  await thread.run(receive, path);
  await receive(t, path);
  await thread.terminate();
  assertEquals(await read(t), 7);
  await t.kept.message.release();
  await exporter.run((t) => t.kept.leases[1].released);
  t.kept.channel.close();
});

test("R10: what a terminated thread has left is settled by another one", { timeout: 20_000 }, async () => {
  const t = toolkit();
  using folder = makeFolder();
  const path = `${folder.path}/socket`;
  await using exporter = await startExporter(path);
  const imports = () => t.device.isSimulated ? t.report().liveObjects.poolImports : 0;
  const streams = () => t.device.isSimulated ? t.report().liveObjects.streams : 0;
  const before = { imports: imports(), streams: streams() };
  const thread = await Thread.start();
  await thread.run(receive, path);
  await thread.run((t) => {
    t.keepBusy(t.stream, 300);
    t.kept.message.buffers.buffer.fill(1, { stream: t.stream });
  });
  await thread.terminate();
  const isReleased = () => exporter.run((t) => t.kept.leases[0].isReleased as boolean);
  assertEquals(await isReleased(), false);
  await until("its lease ends", isReleased);
  assertEquals(await exporter.run((t) => t.kept.leases[0].outcome), "released");
  await until(
    "its import is unmapped and its streams are gone",
    () => imports() <= before.imports && streams() <= before.streams,
  );
  await until("its socket is closed", () => exporter.run(async (t) => await t.kept.channels[0].closed === "disconnected"));
});

test("R10: a thread that ends in the middle of an import does not keep the lock", async () => {
  const t = toolkit();
  using folder = makeFolder();
  const path = `${folder.path}/socket`;
  await using _exporter = await startExporter(path);
  const thread = await Thread.start();
  await thread.run(receive, path);
  thread.post((t) => {
    // A Worker that is terminated: Deno lets a loop go on, so that this is the way that both have
    t.whileImporting(() => process.exit(0));
  });
  await sleep(100);
  await thread.terminate();
  await receive(t, path);
  assertEquals(await read(t), 7);
  await t.kept.message.release();
  t.kept.channel.close();
});

test("R10: two threads share a buffer that one of them made, over a channel", async () => {
  const t = toolkit();
  using folder = makeFolder();
  const server = t.cuda.IpcServer.listen(`${folder.path}/socket`, { device: t.device });
  await using thread = await Thread.start();
  const accepted = server.accept();
  const connecting = thread.run(async (t, path) => {
    t.kept.channel = await t.connect(path);
  }, server.path);
  const channel = (await accepted)!;
  await connecting;
  const { pool, buffer } = t.createBuffer(4096, 3);
  const fence = t.cuda.SharedFence.create(t.device);
  const lease = await channel.send({ buffers: { buffer }, fences: { fence } }, { after: t.stream });
  const seen = await thread.run(async (t) => {
    const { buffers, fences: { fence } } = t.kept.message = await t.kept.channel.receive({ stream: t.stream });
    const before = (await buffers.buffer.read({ stream: t.stream }))[0];
    buffers.buffer.fill(4, { stream: t.stream });
    t.kept.fence = fence;
    return before;
  });
  assertEquals(seen, 3);
  assert(!lease.isReleased);
  await thread.run(async (t) => {
    await t.kept.message.release();
    t.kept.channel.close();
  });
  await lease.released;
  assertEquals((await buffer.read({ stream: t.stream }))[0], 4);
  const reached = thread.run(async (t) => {
    await t.kept.fence.reached(2n);
    return String(t.kept.fence.value);
  });
  t.stream.signal(fence, 2n);
  assertEquals(await reached, "2");
  assertThrows(() => fence.signal(1n));
  fence.close();
  buffer.free();
  pool.close();
  server.close();
});
