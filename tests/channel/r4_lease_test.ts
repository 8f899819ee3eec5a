/** R4 and R5: what a lease keeps, and how releases end it. */
import { assert, assertEquals, assertRejects, assertThrows } from "@std/assert";
import { test } from "node:test";
import { ClosedError, OutOfMemoryError } from "../../mod.ts";
import { Balance, isOnGpu, Pair, sleep, toolkit, until } from "./harness.ts";

const MiB = 2 ** 20;

test(
  "R4: a consumer whose context is lost uses nothing any more, and releases",
  { skip: isOnGpu && "needs a simulated machine" },
  async () => {
    const t = toolkit();
    await using pair = await Pair.start();
    const { pool, buffer } = t.createBuffer(MiB, 1);
    const lease = await pair.channel.send({ buffers: { buffer } }, { after: t.stream });
    await pair.peer.run(async (t) => {
      const message = await t.kept.channel.receive({ stream: t.stream });
      t.cuda.simulatorControl(t.cuda.openDriver()).loseContext(0);
      await message.release();
    });
    await lease.released;
    assertEquals(lease.outcome, "released");
    buffer.free();
    pool.close();
  },
);

test("R4: free() of a leased buffer closes it at once and gives the memory back after the last lease", async () => {
  const t = toolkit();
  const balance = await Balance.take();
  {
    await using pair = await Pair.start();
    const { pool, buffer } = t.createBuffer(MiB, 1);
    const first = await pair.channel.send({ buffers: { buffer } }, { after: t.stream });
    const second = await pair.channel.send({ buffers: { buffer } }, { after: t.stream });
    buffer.free();
    assert(buffer.isFreed);
    assertThrows(() => buffer.fill(1), ClosedError);
    await assertRejects(() => pair.channel.send({ buffers: { buffer } }), ClosedError);
    assertEquals(pair.channel.stats().leases.map(({ byteLength }) => byteLength), [MiB, MiB]);
    assertEquals([first.byteLength, pool.attributes.usedBytes], [MiB, MiB]);
    await pair.peer.run(async (t) => {
      t.kept.first = await t.kept.channel.receive({ stream: t.stream });
      t.kept.second = await t.kept.channel.receive({ stream: t.stream });
      await t.kept.second.release();
    });
    await second.released;
    assert(!first.isReleased);
    assertEquals(pool.attributes.usedBytes, MiB);
    await pair.peer.run((t) => t.kept.first.release());
    await first.released;
    t.stream.synchronize();
    assertEquals([first.byteLength, pool.attributes.usedBytes], [0, 0]);
    pool.close();
  }
  await balance.check();
});

test("R4: a lease of a part keeps the whole; freeing a part closes the view only", async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  const { pool, buffer } = t.createBuffer(MiB, 1);
  const part = buffer.subarray(100, 200);
  const lease = await pair.channel.send({ buffers: { part } }, { after: t.stream });
  part.free();
  assert(part.isFreed && !buffer.isFreed);
  buffer.free();
  assertEquals([lease.byteLength, pool.attributes.usedBytes], [MiB, MiB]);
  await pair.peer.run(async (t) => {
    await using message = await t.kept.channel.receive({ stream: t.stream });
    if (message.buffers.part.byteLength !== 100) throw new Error("another length");
  });
  await lease.released;
  t.stream.synchronize();
  assertEquals(pool.attributes.usedBytes, 0);
  pool.close();
});

test("R4: out of memory says how much is leased", { skip: isOnGpu && "needs a limit that is exact" }, async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  const pool = t.cuda.MemoryPool.create(t.device, { ipc: true, maxBytes: 32 * MiB });
  const buffer = pool.allocate(20 * MiB, { stream: t.stream });
  const lease = await pair.channel.send({ buffers: { buffer } }, { after: t.stream });
  buffer.free();
  assertThrows(
    () => pool.allocate(20 * MiB, { stream: t.stream }),
    OutOfMemoryError,
    `${20 * MiB} are leased to other processes`,
  );
  await pair.peer.run(async (t) => {
    await using _ = await t.kept.channel.receive({ stream: t.stream });
  });
  await lease.released;
  pool.allocate(20 * MiB, { stream: t.stream }).free();
  pool.close();
});

test("R5: a release ends the lease when the consumer's work is done, not before", async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  const { pool, buffer } = t.createBuffer(MiB, 1);
  const lease = await pair.channel.send({ buffers: { buffer } }, { after: t.stream });
  await pair.peer.run(async (t) => {
    const message = await t.kept.channel.receive({ stream: t.stream });
    const gate = t.kept.gate = t.cuda.SharedFence.create(t.device);
    t.stream.waitFor(gate, 1n);
    message.buffers.buffer.fill(2, { stream: t.stream });
    await message.release({ after: t.stream });
  });
  await sleep(100);
  assert(!lease.isReleased, "its work waits for the gate");
  await pair.peer.run((t) => t.kept.gate.signal(1n));
  await lease.released;
  assertEquals((await buffer.read({ stream: t.stream }))[0], 2);
  buffer.free();
  pool.close();
});

test("R5: buffers are released one by one, and the lease ends with the last", async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  const { pool, buffer } = t.createBuffer(MiB, 1);
  const other = pool.allocate(MiB, { stream: t.stream });
  const lease = await pair.channel.send({ buffers: { buffer, other } }, { after: t.stream });
  await pair.peer.run(async (t) => {
    const { buffers } = t.kept.message = await t.kept.channel.receive({ stream: t.stream });
    buffers.buffer.free({ stream: t.stream });
    if (!buffers.buffer.isFreed || t.kept.message.isReleased) throw new Error("not what it should be");
  });
  await until("half of it is released", () => lease.byteLength === MiB);
  assert(!lease.isReleased);
  await pair.peer.run(async (t) => {
    await t.kept.message.release();
    await t.kept.message.release();
    if (!t.kept.message.isReleased) throw new Error("not released");
  });
  await lease.released;
  assertEquals(lease.outcome, "released");
  buffer.free();
  other.free();
  pool.close();
});

test("R5: a released buffer is closed for its consumer", async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  const { pool, buffer } = t.createBuffer(4096, 1);
  await pair.channel.send({ buffers: { buffer } }, { after: t.stream });
  const error = await pair.peer.run(async (t) => {
    const message = await t.kept.channel.receive({ stream: t.stream });
    await message.release();
    try {
      message.buffers.buffer.fill(1, { stream: t.stream });
    } catch (error) {
      return (error as Error).name;
    }
  });
  assertEquals(error, "ClosedError");
  buffer.free();
  pool.close();
});

test("R5: a stream can wait for a lease; the exporter's streams do so only then", async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  using waiting = t.device.createStream();
  const { pool, buffer } = t.createBuffer(MiB, 1);
  const lease = await pair.channel.send({ buffers: { buffer } }, { after: t.stream });
  await t.stream.finished();
  waiting.wait(lease);
  assert(!waiting.isIdle && t.stream.isIdle);
  await pair.peer.run(async (t) => {
    const message = await t.kept.channel.receive({ stream: t.stream });
    message.buffers.buffer.fill(5, { stream: t.stream });
    await message.release({ after: t.stream });
  });
  await waiting.finished({ signal: AbortSignal.timeout(5000) });
  assertEquals((await buffer.read({ stream: waiting }))[0], 5);
  buffer.free();
  pool.close();
});

test("R5: a stream that waits for a lease is freed when the consumer exits", async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  using waiting = t.device.createStream();
  const { pool, buffer } = t.createBuffer(MiB, 1);
  const lease = await pair.channel.send({ buffers: { buffer } }, { after: t.stream });
  waiting.wait(lease);
  await sleep(20);
  assert(!waiting.isIdle);
  await pair.peer.kill();
  await waiting.finished({ signal: AbortSignal.timeout(5000) });
  await lease.released;
  assertEquals(lease.outcome, "peer-gone");
  buffer.free();
  pool.close();
});

test("R5: messages that nobody receives are released when the consumer closes", async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  const { pool, buffer } = t.createBuffer(4096, 1);
  const lease = await pair.channel.send({ buffers: { buffer } }, { after: t.stream });
  await pair.peer.run((t) => t.kept.channel.closeAsync());
  await lease.released;
  assertEquals([lease.outcome, await pair.channel.closed], ["released", "closed-by-peer"]);
  buffer.free();
  pool.close();
});

test("R5: a buffer outlives its channel, and its release still arrives", async () => {
  const t = toolkit();
  const balance = await Balance.take();
  {
    await using pair = await Pair.start();
    const { pool, buffer } = t.createBuffer(4096, 8);
    const lease = await pair.channel.send({ buffers: { buffer } }, { after: t.stream });
    await pair.peer.run(async (t) => {
      t.kept.message = await t.kept.channel.receive({ stream: t.stream });
      await t.kept.channel.closeAsync();
    });
    await pair.channel.closeAsync();
    assert(!lease.isReleased);
    const byte = await pair.peer.run(async (t) => {
      const byte = (await t.kept.message.buffers.buffer.read({ stream: t.stream }))[0];
      await t.kept.message.release({ after: t.stream });
      return byte;
    });
    assertEquals(byte, 8);
    await lease.released;
    assertEquals(lease.outcome, "released");
    buffer.free();
    pool.close();
  }
  await balance.check();
});
