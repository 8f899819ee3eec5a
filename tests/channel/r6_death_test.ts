/** R6: a process that has exited is gone; one that only closed its socket, or was stopped, is not. */
import { assert, assertEquals, assertRejects } from "@std/assert";
import { test } from "node:test";
import { ChannelClosedError, PeerGoneError } from "../../mod.ts";
import { currentRuntime, otherRuntime } from "../helpers/runtimes.ts";
import { Balance, Pair, sleep, toolkit, until } from "./harness.ts";

const MiB = 2 ** 20;

for (const runtime of [currentRuntime, otherRuntime]) {
  test(`R6: an idle consumer (${runtime}) is killed: its leases end, the memory comes back`, async () => {
    const t = toolkit();
    const balance = await Balance.take();
    {
      await using pair = await Pair.start(runtime);
      const { pool, buffer } = t.createBuffer(MiB, 1);
      const lease = await pair.channel.send({ buffers: { buffer } }, { after: t.stream });
      await pair.peer.run(async (t) => {
        t.kept.message = await t.kept.channel.receive({ stream: t.stream });
        await t.stream.finished();
      });
      buffer.free();
      const received = assertRejects(() => pair.channel.receive(), PeerGoneError, `process ${pair.peer.pid} has exited`);
      await pair.peer.kill();
      await lease.released;
      assertEquals(lease.outcome, "peer-gone");
      await received;
      assertEquals(await pair.channel.closed, "peer-gone");
      t.stream.synchronize();
      assertEquals(pool.attributes.usedBytes, 0);
      pool.close();
    }
    await balance.check();
  });
}

test("R6: a consumer is killed while its work runs: the lease ends with its exit", async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  const { pool, buffer } = t.createBuffer(MiB, 1);
  const lease = await pair.channel.send({ buffers: { buffer } }, { after: t.stream });
  await pair.peer.run(async (t) => {
    const message = await t.kept.channel.receive({ stream: t.stream });
    t.keepBusy(t.stream, 2000);
    message.buffers.buffer.fill(3, { stream: t.stream });
    await message.release({ after: t.stream });
  });
  await sleep(50);
  assert(!lease.isReleased);
  await pair.peer.kill();
  await lease.released;
  assertEquals(lease.outcome, "peer-gone");
  buffer.free();
  pool.close();
});

test("R6: a consumer that was stopped keeps its lease until it goes on or exits", async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  const { pool, buffer } = t.createBuffer(MiB, 1);
  const lease = await pair.channel.send({ buffers: { buffer } }, { after: t.stream });
  await pair.peer.run(async (t) => {
    t.kept.message = await t.kept.channel.receive({ stream: t.stream });
  });
  pair.peer.signal("SIGSTOP");
  const released = pair.peer.run((t) => t.kept.message.release());
  await sleep(150);
  assert(!lease.isReleased);
  assertEquals(pair.channel.stats().peerPid, pair.peer.pid);
  pair.peer.signal("SIGCONT");
  await released;
  await lease.released;
  assertEquals(lease.outcome, "released");

  const second = await pair.channel.send({ buffers: { buffer } }, { after: t.stream });
  pair.peer.signal("SIGSTOP");
  await sleep(50);
  assert(!second.isReleased);
  await pair.peer.kill();
  await second.released;
  assertEquals(second.outcome, "peer-gone");
  buffer.free();
  pool.close();
});

test("R6: a closed socket with a living process keeps its leases", async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  const { pool, buffer } = t.createBuffer(MiB, 1);
  const lease = await pair.channel.send({ buffers: { buffer } }, { after: t.stream });
  await pair.peer.run(async (t) => {
    t.kept.message = await t.kept.channel.receive({ stream: t.stream });
    t.hangUp();
  });
  await assertRejects(() => pair.channel.receive(), ChannelClosedError, "lives on");
  assertEquals(await pair.channel.closed, "disconnected");
  await sleep(100);
  assert(!lease.isReleased);
  await pair.peer.run((t) => t.kept.message.release());
  await lease.released;
  assertEquals(lease.outcome, "released");
  buffer.free();
  pool.close();
});

test("R6: an exporter is killed: its consumer reads on, and the channel says so", async () => {
  const t = toolkit();
  const balance = await Balance.take();
  {
    await using pair = await Pair.start();
    await pair.peer.run(async (t) => {
      const { buffer } = t.createBuffer(4096, 9);
      t.kept.buffer = buffer;
      await t.kept.channel.send({ buffers: { buffer } }, { after: t.stream });
      await t.stream.finished();
    });
    const message = await pair.channel.receive({ stream: t.stream });
    await pair.peer.kill();
    assertEquals(await pair.channel.closed, "peer-gone");
    assertEquals((await message.buffers.buffer.read({ stream: t.stream }))[0], 9);
    await message.release();
    await assertRejects(() => pair.channel.receive(), PeerGoneError);
    const iterated = (async () => {
      for await (const _ of pair.channel);
    })();
    await assertRejects(() => iterated, PeerGoneError);
  }
  await balance.check();
});

test("R6: an iteration ends when the peer closes", async () => {
  await using pair = await Pair.start();
  await pair.peer.run(async (t) => {
    for (let data = 0; data < 3; data++) await t.kept.channel.send({ data });
    await t.kept.channel.closeAsync();
  });
  const seen: unknown[] = [];
  for await (const message of pair.channel) seen.push(message.data);
  assertEquals(seen, [0, 1, 2]);
  await until("what the connection needed is given back", () => !pair.channel.isClosed);
});
