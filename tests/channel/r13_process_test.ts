/** R13, R14, and containers: what crosses to other processes, and what does not. */
import { assert, assertEquals, assertRejects } from "@std/assert";
import { spawnSync } from "node:child_process";
import { existsSync, statSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { IpcServer, SystemCallError } from "../../mod.ts";
import { Balance, isOnGpu, makeFolder, Pair, Peer, toolkit } from "./harness.ts";

test("R13: a program that is started inherits none of our descriptors", async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  const { pool, buffer } = t.createBuffer(4096, 1);
  using fence = t.cuda.SharedFence.create(t.device);
  await pair.channel.send({ buffers: { buffer }, fences: { fence } }, { after: t.stream });
  await pair.peer.run(async (t) => {
    t.kept.message = await t.kept.channel.receive({ stream: t.stream });
  });
  using handle = pool.exportHandle();
  const { stdout } = spawnSync("/bin/ls", ["-l", "/proc/self/fd"], { encoding: "utf8" });
  assert(stdout.includes("->"), stdout);
  assert(!/memfd|nvidia|pidfd|eventpoll/.test(stdout), stdout);
  assert(handle.fd > 2);
  buffer.free();
  pool.close();
});

test("R13: the socket file is the user's only, and goes with the server", async () => {
  using folder = makeFolder();
  const path = `${folder.path}/socket`;
  const server = IpcServer.listen(path, { device: toolkit().device });
  assertEquals(statSync(path).mode & 0o777, 0o600);
  let error: unknown;
  try {
    IpcServer.listen(path);
  } catch (reason) {
    error = reason;
  }
  assert(error instanceof SystemCallError && error.errnoName === "EADDRINUSE", String(error));
  await server.closeAsync();
  assert(!existsSync(path));
  writeFileSync(path, "not a socket");
  try {
    IpcServer.listen(path);
  } catch (reason) {
    error = reason;
  }
  assert(error instanceof SystemCallError, String(error));
});

test("R13: an accept that is aborted takes no client", async () => {
  using folder = makeFolder();
  using server = IpcServer.listen(`${folder.path}/socket`, { device: toolkit().device });
  const controller = new AbortController();
  const abandoned = server.accept({ signal: controller.signal });
  const next = server.accept();
  controller.abort(new Error("no more"));
  await assertRejects(() => abandoned, Error, "no more");
  await assertRejects(() => server.accept({ signal: controller.signal }), Error, "no more");
  using client = await toolkit().connect(server.path);
  using channel = (await next)!;
  await client.send({ data: 1 });
  assertEquals((await channel.receive()).data, 1);
});

test("R13: an accept that is aborted when its client comes leaves it to others", async () => {
  using folder = makeFolder();
  for (let turns = 0; turns < 12; turns++) { // in one of them the abort comes between the channel and who waits for it
    const controller = new AbortController();
    const authorize = () => {
      let turn = Promise.resolve();
      for (let i = 0; i < turns; i++) turn = turn.then(() => {});
      void turn.then(() => controller.abort(new Error("no more")));
      return true;
    };
    using server = IpcServer.listen(`${folder.path}/socket`, { device: toolkit().device, authorize });
    const abandoned = server.accept({ signal: controller.signal }).catch(() => null);
    using client = await toolkit().connect(server.path);
    using channel = await abandoned ?? (await server.accept({ signal: AbortSignal.timeout(5000) }))!;
    await client.send({ data: turns });
    assertEquals((await channel.receive()).data, turns);
  }
});

test("R13: a server that is closed ends its iteration, also by its signal", async () => {
  using folder = makeFolder();
  const controller = new AbortController();
  const server = IpcServer.listen(`${folder.path}/socket`, { device: toolkit().device, signal: controller.signal });
  const iterated = (async () => {
    for await (const _ of server);
    return "ended";
  })();
  controller.abort();
  assertEquals(await iterated, "ended");
  await assertRejects(() => toolkit().connect(server.path), SystemCallError);
});

test("R14: a pool's handle crosses once for each channel, however many buffers are sent", async () => {
  const t = toolkit();
  const balance = await Balance.take();
  {
    await using pair = await Pair.start();
    await using other = await Peer.start();
    const accepted = pair.server.accept();
    await other.run(async (t, path) => {
      t.kept.channel = await t.connect(path);
    }, pair.server.path);
    const second = (await accepted)!;
    const { pool, buffer } = t.createBuffer(4096, 1);
    const exports = () => t.device.isSimulated ? t.report().calls.cuMemPoolExportToShareableHandle ?? 0 : 0;
    const before = exports();
    const leases = [];
    for (let count = 0; count < 5; count++) {
      leases.push(await pair.channel.send({ buffers: { buffer } }, { after: t.stream }));
      leases.push(await second.send({ buffers: { buffer } }, { after: t.stream }));
    }
    // One more before the first export of a pointer, which the driver asks for
    if (!isOnGpu) assertEquals(exports() - before, 3);
    const consume = async (peer: Peer) =>
      await peer.run(async (t) => {
        let fds = 0;
        for (let count = 0; count < 5; count++) {
          await using message = await t.kept.channel.receive({ stream: t.stream });
          fds ||= t.fds().length;
          if ((await message.buffers.buffer.read({ stream: t.stream }))[0] !== 1) throw new Error("another byte");
        }
        return t.fds().length - fds;
      });
    assert(await consume(pair.peer) <= 0);
    assert(await consume(other) <= 0);
    for (const lease of leases) await lease.released;
    second.close();
    buffer.free();
    pool.close();
  }
  await balance.check();
});

test("R14: pools come and go over one channel, and the peer keeps few of them open", async () => {
  const t = toolkit();
  const balance = await Balance.take();
  {
    await using pair = await Pair.start();
    await pair.peer.run((t) => {
      t.kept.consuming = (async () => {
        let fds = 0;
        for (let count = 0; count < 200; count++) {
          await using message = await t.kept.channel.receive({ stream: t.stream });
          const [byte] = await message.buffers.buffer.read({ stream: t.stream });
          if (byte !== message.data) throw new Error(`byte ${byte} in message ${message.data}`);
          // The driver keeps one of its own for each pool
          fds = Math.max(fds, t.fds().filter((target) => t.device.isSimulated || !target.startsWith("/dev/nvidiactl")).length);
        }
        return fds;
      })();
    });
    const kept = t.createBuffer(4096, 0);
    for (let count = 1; count <= 200; count++) {
      const isKept = count % 3 === 0;
      const { pool, buffer } = isKept ? kept : t.createBuffer(4096, 0);
      buffer.fill(count, { stream: t.stream });
      const lease = await pair.channel.send({ data: count, buffers: { buffer } }, { after: t.stream });
      if (isKept) await lease.released;
      else {
        buffer.free();
        pool.close();
      }
    }
    const fds = await pair.peer.run((t) => t.kept.consuming as Promise<number>);
    // The driver keeps one for each imported pool, for good
    assert(fds < 100 || isOnGpu, `${fds} descriptors`);
    kept.buffer.free();
    kept.pool.close();
  }
  await balance.check();
});

const canUnshare = spawnSync("/bin/sh", ["-c", "unshare --mount true"]).status === 0;
test(
  "containers: with a /dev/shm of its own a process shares buffers and fences; events fail with a reason",
  { skip: canUnshare ? false : "this user may not make a mount namespace" },
  async () => {
    const t = toolkit();
    using folder = makeFolder();
    const script = `${folder.path}/start`;
    writeFileSync(script, '#!/bin/sh\nmount -t tmpfs none /dev/shm && exec "$@"\n', { mode: 0o755 });
    await using peer = await Peer.start(undefined, { wrapper: `unshare --mount ${script}` });
    const server = IpcServer.listen(`${folder.path}/socket`, { device: t.device });
    const accepted = server.accept();
    await peer.run(async (t, path) => {
      t.kept.channel = await t.connect(path);
    }, server.path);
    const channel = (await accepted)!;
    const { pool, buffer } = t.createBuffer(4096, 5);
    using fence = t.cuda.SharedFence.create(t.device);
    const lease = await channel.send({ buffers: { buffer }, fences: { fence } }, { after: t.stream });
    const byte = await peer.run(async (t) => {
      const { buffers, fences } = t.kept.message = await t.kept.channel.receive({ stream: t.stream });
      t.kept.fence = fences.fence;
      t.stream.waitFor(fences.fence, 1n);
      const reading = buffers.buffer.read({ stream: t.stream });
      return (await t.kept.fence.reached(0n), t.kept.reading = reading, 0);
    });
    assertEquals(byte, 0);
    t.stream.signal(fence, 1n);
    assertEquals(await peer.run(async (t) => (await t.kept.reading)[0]), 5);
    await peer.run((t) => t.kept.message.release());
    await lease.released;
    const event = t.stream.record({ ipc: true });
    await channel.send({ events: { event } });
    const outcome = await peer.run(async (t) =>
      await t.kept.channel.receive().then(
        (message: { events: { event: { close(): void } } }) => (message.events.event.close(), "opened"),
        (error: { name: string; code: number }) => `${error.name} ${error.code}`,
      )
    );
    if (isOnGpu) assertEquals(outcome, "CudaDriverError 205");
    // The channel goes on
    await channel.send({ data: 1 });
    assertEquals(await peer.run(async (t) => (await t.kept.channel.receive()).data), 1);
    event.close();
    channel.close();
    server.close();
    buffer.free();
    pool.close();
  },
);
