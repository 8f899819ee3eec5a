/** R8: while work is queued nothing blocks the event loop, and nothing that is in use is given back. */
import { assert, assertEquals } from "@std/assert";
import { test } from "node:test";
import { Balance, isOnGpu, Pair, toolkit, until } from "./harness.ts";

/** Deno's timer of 1 ms ticks each 2.1 ms, so it takes more than 100 ms to see 60 ticks. */
const BUSY_MS = 150;

/** Runs something, and looks at what the event loop does meanwhile. */
async function watchLoop(body: () => void): Promise<{ ticks: number; longestGapMs: number }> {
  let ticks = 0;
  let longestGapMs = 0;
  let last = performance.now();
  const end = last + BUSY_MS;
  body();
  await new Promise<void>((resolve) => {
    const tick = () => {
      const now = performance.now();
      longestGapMs = Math.max(longestGapMs, now - last);
      last = now;
      ticks++;
      if (now < end) setTimeout(tick, 1);
      else resolve();
    };
    setTimeout(tick, 1);
  });
  return { ticks, longestGapMs };
}

test("R8: frees, releases and closes during GPU work do not block", async () => {
  const t = toolkit();
  const balance = await Balance.take();
  {
    await using pair = await Pair.start();
    const stream = t.device.createStream();
    t.prepareBusy();
    await pair.peer.run(async (t) => {
      const { pool, buffer } = t.createBuffer(1 << 20, 1);
      const second = pool.allocate(1 << 20, { stream: t.stream });
      const fence = t.kept.fence = t.cuda.SharedFence.create(t.device);
      t.kept.buffers = { pool, buffer, second };
      await t.kept.channel.send({ buffers: { buffer, second }, fences: { fence } }, { after: t.stream });
      await t.kept.channel.send({ buffers: { buffer } }, { after: t.stream });
    });
    const first = await pair.channel.receive({ stream });
    const second = await pair.channel.receive({ stream });
    const { pool, buffer } = t.createBuffer(1 << 20, 1);
    const own = t.cuda.SharedFence.create(t.device);
    await pair.channel.send({ buffers: { buffer }, fences: { own } }, { after: stream });
    await stream.finished();
    const blocked = t.device.isSimulated ? JSON.stringify(t.report().blockedCalls) : "";
    const { ticks, longestGapMs } = await watchLoop(() => {
      t.keepBusy(stream, 2 * BUSY_MS);
      first.buffers.buffer.free({ stream });
      first.release({ after: stream });
      second.release({ after: stream });
      stream.signal(own, 1n);
      buffer.free({ stream });
      own.close();
      first.fences.fence.close();
      pool.close();
      pair.channel.close();
      pair.server.close();
      stream.close();
    });
    if (isOnGpu) assert(ticks >= 60 && longestGapMs <= 10, `${ticks} ticks, the longest gap was ${longestGapMs} ms`);
    else assertEquals(JSON.stringify(t.report().blockedCalls), blocked);
  }
  await balance.check();
});

test("R8: fences are given back only when streams that were closed with work queued have done it", async () => {
  const t = toolkit();
  const balance = await Balance.take();
  const stream = t.device.createStream();
  const fence = t.cuda.SharedFence.create(t.device);
  t.prepareBusy();
  stream.signal(fence, 1n);
  await stream.finished();
  const blocked = t.device.isSimulated ? JSON.stringify(t.report().blockedCalls) : "";
  const { ticks, longestGapMs } = await watchLoop(() => {
    t.keepBusy(stream, 2 * BUSY_MS);
    fence.close();
    stream.close();
  });
  if (isOnGpu) assert(ticks >= 60 && longestGapMs <= 10, `${ticks} ticks, the longest gap was ${longestGapMs} ms`);
  await balance.check();
  if (!isOnGpu) assertEquals(JSON.stringify(t.report().blockedCalls), blocked);
});

test("R8: an import is unmapped only when the work that uses it is done", async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  using stream = t.device.createStream();
  t.prepareBusy();
  await pair.peer.run(async (t) => {
    const { pool, buffer } = t.createBuffer(4096, 1);
    t.kept.pool = pool;
    t.kept.lease = await t.kept.channel.send({ buffers: { buffer } }, { after: t.stream });
    buffer.free();
  });
  const message = await pair.channel.receive({ stream });
  const imports = () => t.device.isSimulated ? t.report().liveObjects.poolImports : 0;
  const before = imports();
  t.keepBusy(stream, BUSY_MS);
  message.buffers.buffer.fill(2, { stream });
  await message.release({ after: stream });
  assertEquals(imports(), before);
  assertEquals(await pair.peer.run((t) => t.kept.lease.isReleased), false);
  await stream.finished();
  await until("the import is unmapped", () => imports() < before || isOnGpu);
  await pair.peer.run((t) => t.kept.lease.released);
});
