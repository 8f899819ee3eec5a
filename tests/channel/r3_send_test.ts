/** R3: a send takes its lease at the call, is ordered, waits for room, and can be taken back before its first byte. */
import { assert, assertEquals, assertRejects } from "@std/assert";
import { test } from "node:test";
import { ChannelClosedError, ClosedError, InvalidArgumentError, NotSupportedError } from "../../mod.ts";
import { Balance, Pair, toolkit, until } from "./harness.ts";

test("R3: a buffer may be freed right after the call", async () => {
  const t = toolkit();
  const balance = await Balance.take();
  {
    await using pair = await Pair.start();
    const { pool, buffer } = t.createBuffer(1 << 20, 6);
    const sending = pair.channel.send({ buffers: { buffer } }, { after: t.stream });
    buffer.free();
    const another = pool.allocate(1 << 20, { stream: t.stream });
    another.fill(1, { stream: t.stream });
    const lease = await sending;
    const first = await pair.peer.run(async (t) => {
      await using message = await t.kept.channel.receive({ stream: t.stream });
      const bytes: Uint8Array = await message.buffers.buffer.read({ stream: t.stream });
      return [bytes[0], bytes.at(-1)];
    });
    assertEquals(first, [6, 6]);
    await lease.released;
    assertEquals(pool.attributes.usedBytes, 1 << 20);
    another.free();
    pool.close();
  }
  await balance.check();
});

test("R3: messages arrive in the order of sending", async () => {
  await using pair = await Pair.start();
  const sends = Promise.all(Array.from({ length: 500 }, (_, index) => pair.channel.send({ data: index })));
  const seen = await pair.peer.run(async (t) => {
    const seen: number[] = [];
    while (seen.length < 500) seen.push((await t.kept.channel.receive()).data);
    return seen;
  });
  assertEquals(seen, Array.from({ length: 500 }, (_, index) => index));
  assert((await sends).every((lease) => lease.isReleased), "leases without buffers");
});

test("R3: sending waits while the peer takes nothing, and can be taken back", async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  const { pool, buffer } = t.createBuffer(4096, 1);
  let settled = 0;
  const sends = Array.from({ length: 70 }, (_, index) => pair.channel.send({ data: index }).then(() => settled++));
  const controller = new AbortController();
  const aborted = pair.channel.send({ buffers: { buffer }, data: "never" }, { signal: controller.signal });
  await until("the window is full", () => settled === 64);
  await new Promise((resolve) => setTimeout(resolve, 50));
  assertEquals(settled, 64);
  assertEquals(pair.channel.stats().queuedMessages, 7);
  controller.abort(new Error("changed my mind"));
  await assertRejects(() => aborted, Error, "changed my mind");
  buffer.free();
  t.stream.synchronize();
  assertEquals(pool.attributes.usedBytes, 0);
  const seen = await pair.peer.run(async (t) => {
    const seen: number[] = [];
    while (seen.length < 70) seen.push((await t.kept.channel.receive()).data);
    return seen.length;
  });
  assertEquals(seen, 70);
  await Promise.all(sends);
  pool.close();
});

test("R3: a receive that is aborted loses no message", async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  const controller = new AbortController();
  const waiting = pair.channel.receive({ signal: controller.signal });
  controller.abort(new Error("stop"));
  await assertRejects(() => waiting, Error, "stop");
  await pair.peer.run(async (t) => {
    const { buffer } = t.createBuffer(4096, 1);
    t.keepBusy(t.stream, 150);
    await t.kept.channel.send({ data: 1, buffers: { buffer } }, { after: t.stream });
    await t.kept.channel.send({ data: 2 });
  });
  // In the middle of the wait for the sender's work
  await assertRejects(() => pair.channel.receive({ signal: AbortSignal.timeout(20) }));
  assertEquals((await pair.channel.receive({ stream: t.stream })).data, 1);
  assertEquals((await pair.channel.receive()).data, 2);
});

test("R3: what cannot be sent is refused at the call, and nothing is left of it", async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  const { pool, buffer } = t.createBuffer(4096, 1);
  const plain = t.cuda.MemoryPool.create(t.device);
  const unshared = plain.allocate(4096, { stream: t.stream });
  const freed = pool.allocate(4096, { stream: t.stream });
  freed.free();
  const { channel } = pair;
  // deno-lint-ignore no-explicit-any
  const refused: [any, any, string][] = [
    [{ buffers: { a: buffer, b: unshared } }, InvalidArgumentError, "without { ipc: true }"],
    [{ buffers: { a: buffer, b: freed } }, ClosedError, "buffers.b was freed"],
    [{ buffers: { a: 1 } }, InvalidArgumentError, "buffers.a is 1, expected a DeviceBuffer"],
    [{ buffers: [buffer] }, InvalidArgumentError, "buffers is an array"],
    [{ buffers: { a: buffer }, data: 1n }, InvalidArgumentError, "data is not what JSON can say"],
    [{ buffers: { a: buffer }, data: "x".repeat(17 << 20) }, InvalidArgumentError, "expected at most"],
    [{ buffers: { a: buffer }, fences: { f: {} } }, InvalidArgumentError, "fences.f is an Object, expected a SharedFence"],
    [{ events: { e: t.device } }, InvalidArgumentError, "events.e is a Device"],
    [{ handles: { h: 3 } }, InvalidArgumentError, "handles.h is 3"],
    [4, InvalidArgumentError, "options is 4"],
    [{ buffer }, InvalidArgumentError, 'there is no option "buffer", expected data, buffers,'],
  ];
  for (const [parts, errorClass, text] of refused) await assertRejects(() => channel.send(parts), errorClass, text);
  // deno-lint-ignore no-explicit-any
  await assertRejects(() => channel.send({}, { after: 1 as any }), InvalidArgumentError, "expected a CudaStream");
  // deno-lint-ignore no-explicit-any
  const misspelled: any = { afterr: t.stream };
  await assertRejects(() => channel.send({}, misspelled), InvalidArgumentError, 'there is no option "afterr"');
  assertEquals(channel.stats().leases, []);
  for (const thing of [buffer, unshared]) thing.free();
  t.stream.synchronize();
  assertEquals(pool.attributes.usedBytes, 0);
  await channel.send({ data: "still alive" });
  assertEquals(await pair.peer.run(async (t) => (await t.kept.channel.receive()).data), "still alive");
  pool.close();
  plain.close();
});

test("R3: data is what JSON says of it at the call", async () => {
  await using pair = await Pair.start();
  const data = { list: [1, 2], text: "ä€𝄞", nested: { none: null } };
  const sending = pair.channel.send({ data });
  data.list.push(3);
  await sending;
  await pair.channel.send({});
  const seen = await pair.peer.run(async (t) => {
    const first = await t.kept.channel.receive();
    const second = await t.kept.channel.receive();
    return [first.data, second.data === undefined];
  });
  assertEquals(seen, [{ list: [1, 2], text: "ä€𝄞", nested: { none: null } }, true]);
});

test("R3: a channel without a device carries data, and refuses a stream", async () => {
  const t = toolkit();
  await using pair = await Pair.start(undefined, {});
  await assertRejects(() => pair.channel.receive({ stream: t.stream }), NotSupportedError, "without a device");
  await pair.peer.run(async (t) => {
    const fence = t.kept.fence = t.cuda.SharedFence.create(t.device);
    const hosts = t.cuda.HostPool.create(t.device, { ipc: true });
    const notes = hosts.allocate(16);
    notes.view.fill(3);
    hosts.close(); // its buffers live on
    t.kept.lease = await t.kept.channel.send({ data: 2, fences: { fence }, buffers: { notes } });
    notes.free();
  });
  const message = await pair.channel.receive();
  const { data, fences: { fence }, buffers: { notes } } = message;
  assertEquals([data, notes.view[15]], [2, 3]);
  await message.release({ after: t.stream }); // which has no access to the memory
  assertEquals(notes.isFreed, true);
  assertEquals(await pair.peer.run(async (t) => (await t.kept.lease.released, t.kept.lease.outcome)), "released");
  await pair.peer.run((t) => t.stream.signal(t.kept.fence, 8n));
  await fence.reached(8n);
  fence.close();
});

test("R3: what the peer's devices do not include is refused at the call", async () => {
  const t = toolkit();
  await using pair = await Pair.start(undefined, {});
  const seen = await pair.peer.run(async (t) => {
    const { pool, buffer } = t.createBuffer(4096, 1);
    const event = t.stream.record({ ipc: true });
    const errors: string[] = [];
    for (const parts of [{ buffers: { buffer } }, { events: { event } }]) {
      await t.kept.channel.send(parts).catch(({ name, message }: Error) => errors.push(`${name}: ${message}`));
    }
    buffer.free();
    t.stream.synchronize();
    return [...errors, pool.attributes.usedBytes];
  });
  const refusal = (what: string) =>
    `DeviceNotVisibleError: Cannot send a message: ${what} lies on ${t.device.uuid}, and process ${t.pid} has opened the ` +
    "channel with no device. Let it name that device";
  assertEquals(seen, [refusal("buffers.buffer"), refusal("events.event"), 0]);
});

test("R3: after the end sends and receives reject", async () => {
  const pair = await Pair.start();
  await using _ = pair;
  await pair.channel.closeAsync();
  assertEquals(await pair.channel.closed, "closed");
  await assertRejects(() => pair.channel.send({}), ChannelClosedError);
  await assertRejects(() => pair.channel.receive(), ChannelClosedError);
  const seen = await pair.peer.run(async (t) => {
    const errors: string[] = [];
    await t.kept.channel.receive().catch((error: Error) => errors.push(error.name));
    await t.kept.channel.send({}).catch((error: Error) => errors.push(error.name));
    return [...errors, await t.kept.channel.closed];
  });
  assertEquals(seen, ["ChannelClosedError", "ChannelClosedError", "closed-by-peer"]);
});

test("R3: a channel that is closed by force releases what it has not received", { timeout: 20_000 }, async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  const { pool, buffer } = t.createBuffer(4096, 1);
  // The peer is too busy to read, and then closes
  const closing = pair.peer.run(async (t, ms) => {
    const end = performance.now() + ms;
    while (performance.now() < end);
    t.kept.channel.close({ force: true });
    await t.sleep(50);
  }, 300);
  const leases = [];
  for (let index = 0; index < 20; index++) leases.push(await pair.channel.send({ buffers: { buffer } }, { after: t.stream }));
  await closing;
  await Promise.all(leases.map(({ released }) => released));
  assertEquals(leases.filter(({ outcome }) => outcome !== "released"), []);
  buffer.free();
  pool.close();
});

test("R3: a message with buffers of more pools than a channel keeps is refused, and the channel goes on", async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  const all = Array.from({ length: 65 }, () => t.createBuffer(4096, 1));
  const buffers = Object.fromEntries(all.map(({ buffer }, index) => [`b${index}`, buffer]));
  await assertRejects(() => pair.channel.send({ buffers }, { after: t.stream }), InvalidArgumentError, "more than 64 pools");
  const map = new Map(Object.entries(buffers)) as unknown as typeof buffers;
  await assertRejects(() => pair.channel.send({ buffers: map }), InvalidArgumentError, "an object of named things");
  assertEquals(pair.channel.stats().leases, []);
  delete buffers.b64;
  const lease = await pair.channel.send({ buffers }, { after: t.stream });
  const count = await pair.peer.run(async (t) => {
    await using message = await t.kept.channel.receive({ stream: t.stream });
    return Object.keys(message.buffers).length;
  });
  await lease.released;
  assertEquals([count, lease.outcome], [64, "released"]);
  for (const { pool, buffer } of all) {
    buffer.free();
    pool.close();
  }
});
