/** R1: ordering is by fences, which the host can free when a process dies. */
import { assert, assertEquals, assertRejects, assertThrows } from "@std/assert";
import { test } from "node:test";
import { PeerGoneError } from "../../mod.ts";
import { Balance, Pair, toolkit, until } from "./harness.ts";

test("R1: a receiver's stream runs behind the sender's work, without a host in between", async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  await pair.peer.run(async (t) => {
    const { buffer } = t.createBuffer(4096, 1);
    t.keepBusy(t.stream, 80);
    buffer.fill(2, { stream: t.stream });
    await t.kept.channel.send({ buffers: { buffer } }, { after: t.stream });
  });
  const before = performance.now();
  await using message = await pair.channel.receive({ stream: t.stream });
  const waited = performance.now() - before;
  const bytes = await message.buffers.buffer.read({ stream: t.stream });
  assertEquals(bytes[4095], 2);
  assert(waited < 60 || t.stream.isIdle, `receive itself waited ${waited} ms`);
});

test("R1: without a stream the host waits for the sender's work", async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  await pair.peer.run(async (t) => {
    const { buffer } = t.createBuffer(4096, 1);
    t.keepBusy(t.stream, 80);
    buffer.fill(2, { stream: t.stream });
    await t.kept.channel.send({ buffers: { buffer } }, { after: t.stream });
  });
  await using message = await pair.channel.receive();
  using other = t.device.createStream();
  assertEquals((await message.buffers.buffer.read({ stream: other }))[0], 2);
});

test("R1: a stream that waits for a dead sender is freed", async () => {
  const t = toolkit();
  const balance = await Balance.take();
  {
    await using pair = await Pair.start();
    using stream = t.device.createStream();
    await pair.peer.run(async (t) => {
      const { buffer } = t.createBuffer(4096, 1);
      t.kept.never = t.cuda.SharedFence.create(t.device);
      t.stream.waitFor(t.kept.never, 1n); // its work will never be done
      await t.kept.channel.send({ buffers: { buffer } }, { after: t.stream });
    });
    const message = await pair.channel.receive({ stream });
    assert(!stream.isIdle);
    await pair.peer.kill();
    await stream.finished({ signal: AbortSignal.timeout(5000) });
    await message.release();
  }
  await balance.check();
});

test("R1: a host that waits for a dead sender is told", async () => {
  await using pair = await Pair.start();
  await pair.peer.run(async (t) => {
    const { buffer } = t.createBuffer(4096, 1);
    t.kept.never = t.cuda.SharedFence.create(t.device);
    t.stream.waitFor(t.kept.never, 1n);
    await t.kept.channel.send({ buffers: { buffer } }, { after: t.stream });
  });
  const received = assertRejects(() => pair.channel.receive(), PeerGoneError, "before its work on it was done");
  await new Promise((resolve) => setTimeout(resolve, 50));
  await pair.peer.kill();
  await received;
});

test("R1: waits for a fence of a dead process end, and later uses say why", async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  using stream = t.device.createStream();
  await pair.peer.run(async (t) => {
    t.kept.fence = t.cuda.SharedFence.create(t.device);
    t.kept.fence.signal(3n);
    await t.kept.channel.send({ fences: { fence: t.kept.fence } });
  });
  const { fences: { fence } } = await pair.channel.receive();
  await fence.reached(3n);
  assertThrows(() => fence.signal(4n), Error, "a fence has one writing process");
  stream.waitFor(fence, 4n);
  const reached = assertRejects(() => fence.reached(5n), PeerGoneError, `process ${pair.peer.pid}`);
  await new Promise((resolve) => setTimeout(resolve, 20));
  assert(!stream.isIdle);
  await pair.peer.kill();
  await reached;
  await stream.finished({ signal: AbortSignal.timeout(5000) });
  await until("the fence is broken", () => {
    try {
      stream.waitFor(fence, 6n);
      return false;
    } catch (error) {
      return error instanceof PeerGoneError;
    }
  });
  assertThrows(() => fence.value, PeerGoneError);
  fence.close();
});

test("R1: an imported event's death is seen by the host", async () => {
  await using pair = await Pair.start();
  await pair.peer.run(async (t) => {
    t.kept.never = t.cuda.SharedFence.create(t.device);
    t.stream.waitFor(t.kept.never, 1n);
    t.kept.event = t.stream.record({ ipc: true });
    await t.kept.channel.send({ events: { event: t.kept.event } });
  });
  const { events: { event } } = await pair.channel.receive();
  const finished = assertRejects(() => event.finished(), PeerGoneError);
  await pair.peer.kill();
  await finished;
  assertThrows(() => toolkit().stream.wait(event), PeerGoneError);
  event.close();
});
