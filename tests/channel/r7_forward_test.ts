/** R7: a buffer that is sent on stays until its last holder is done, whoever dies in the middle. */
import { assert, assertEquals, assertRejects } from "@std/assert";
import { test } from "node:test";
import { NotSupportedError } from "../../mod.ts";
import { Balance, makeFolder, Pair, Peer, sleep, toolkit } from "./harness.ts";

/** Lets `from` listen and `to` connect to it: afterwards both have `t.kept.next` and `t.kept.channel`. */
async function join(from: Peer, to: Peer, path: string): Promise<void> {
  await from.run((t, path) => {
    t.kept.server = t.cuda.IpcServer.listen(path, { device: t.device });
  }, path);
  await Promise.all([
    from.run(async (t) => {
      t.kept.next = await t.kept.server.accept();
    }),
    to.run(async (t, path) => {
      t.kept.channel = await t.connect(path);
    }, path),
  ]);
}

/** Receives and sends on, releasing its own. */
async function passOn(peer: Peer): Promise<void> {
  await peer.run(async (t) => {
    await using message = await t.kept.channel.receive({ stream: t.stream });
    t.kept.lease = await t.kept.next.send({ buffers: message.buffers }, { after: t.stream });
  });
}

/** Receives and keeps. */
async function take(peer: Peer): Promise<number> {
  return await peer.run(async (t) => {
    t.kept.message = await t.kept.channel.receive({ stream: t.stream });
    return (await t.kept.message.buffers.buffer.read({ stream: t.stream }))[0];
  });
}

test("R7: the owner's lease ends with the last holder's release", async () => {
  const t = toolkit();
  const balance = await Balance.take();
  {
    using folder = makeFolder();
    await using pair = await Pair.start();
    await using last = await Peer.start();
    await join(pair.peer, last, `${folder.path}/next`);
    const { pool, buffer } = t.createBuffer(1 << 20, 5);
    const lease = await pair.channel.send({ buffers: { buffer } }, { after: t.stream });
    await passOn(pair.peer);
    assertEquals(await take(last), 5);
    await sleep(50);
    assert(!lease.isReleased);
    await last.run((t) => t.kept.message.release());
    await lease.released;
    assertEquals(lease.outcome, "released");
    assertEquals(await pair.peer.run(async (t) => (await t.kept.lease.released, t.kept.lease.outcome)), "released");
    buffer.free();
    pool.close();
  }
  await balance.check();
});

test("R7: virtual memory is sent on too, although the driver exports nothing that is imported", async () => {
  const t = toolkit();
  const balance = await Balance.take();
  {
    using folder = makeFolder();
    await using pair = await Pair.start();
    await using last = await Peer.start();
    await join(pair.peer, last, `${folder.path}/next`);
    const buffer = t.cuda.VirtualMemory.allocate(t.device, 4 << 20, { ipc: true, stream: t.stream });
    buffer.fill(8, { stream: t.stream });
    const lease = await pair.channel.send({ buffers: { buffer } }, { after: t.stream });
    await passOn(pair.peer);
    assertEquals(await take(last), 8);
    await sleep(50);
    assert(!lease.isReleased);
    await last.run((t) => t.kept.message.release());
    await lease.released;
    assertEquals(lease.outcome, "released");
    await buffer.closeAsync();
  }
  await balance.check();
});

test("R7: the process in the middle is killed, and the last one's buffer stays", async () => {
  const t = toolkit();
  const balance = await Balance.take();
  {
    using folder = makeFolder();
    await using pair = await Pair.start();
    await using last = await Peer.start();
    await join(pair.peer, last, `${folder.path}/next`);
    const { pool, buffer } = t.createBuffer(1 << 20, 5);
    const lease = await pair.channel.send({ buffers: { buffer } }, { after: t.stream });
    await passOn(pair.peer);
    assertEquals(await take(last), 5);
    buffer.free();
    await pair.peer.kill();
    assertEquals(await pair.channel.closed, "peer-gone");
    await sleep(50);
    assert(!lease.isReleased);
    assertEquals(pool.attributes.usedBytes, 1 << 20);
    const again = await last.run(async (t) => (await t.kept.message.buffers.buffer.read({ stream: t.stream }))[1]);
    assertEquals(again, 5);
    await last.run((t) => t.kept.message.release());
    await lease.released;
    t.stream.synchronize();
    assertEquals(pool.attributes.usedBytes, 0);
    pool.close();
  }
  await balance.check();
});

test("R7: three hops; first the middle ones die, then the last one", async () => {
  const t = toolkit();
  using folder = makeFolder();
  await using pair = await Pair.start();
  await using second = await Peer.start();
  await using last = await Peer.start();
  await join(pair.peer, second, `${folder.path}/second`);
  await join(second, last, `${folder.path}/last`);
  const { pool, buffer } = t.createBuffer(1 << 20, 6);
  const lease = await pair.channel.send({ buffers: { buffer } }, { after: t.stream });
  await passOn(pair.peer);
  await passOn(second);
  assertEquals(await take(last), 6);
  await pair.peer.kill();
  await second.kill();
  await sleep(100);
  assert(!lease.isReleased);
  await last.kill();
  await lease.released;
  assertEquals(lease.outcome, "peer-gone");
  buffer.free();
  pool.close();
});

test("R7: a buffer that came back to its owner is used and released there", async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  const { pool, buffer } = t.createBuffer(4096, 5);
  const lease = await pair.channel.send({ buffers: { buffer } }, { after: t.stream });
  await pair.peer.run(async (t) => {
    await using message = await t.kept.channel.receive({ stream: t.stream });
    message.buffers.buffer.fill(6, { stream: t.stream });
    await t.kept.channel.send({ buffers: message.buffers }, { after: t.stream });
  });
  {
    await using back = await pair.channel.receive({ stream: t.stream });
    assertEquals((await back.buffers.buffer.read({ stream: t.stream }))[0], 6);
    await sleep(20);
    assert(!lease.isReleased);
  }
  await lease.released;
  assertEquals((await buffer.read({ stream: t.stream }))[0], 6);
  buffer.free();
  pool.close();
});

test("R7: what its owner cannot be told of is not sent on", async () => {
  const t = toolkit();
  using folder = makeFolder();
  await using pair = await Pair.start();
  await using last = await Peer.start();
  await join(pair.peer, last, `${folder.path}/next`);
  const { pool, buffer } = t.createBuffer(4096, 5);
  await pair.channel.send({ buffers: { buffer } }, { after: t.stream });
  using handle = pool.exportHandle();
  await pair.channel.send({ handles: { pool: handle }, data: [...buffer.ipcDescriptor.toBytes()] });
  const byHand = await pair.peer.run(async (t) => {
    const { cuda, device, stream, kept } = t;
    kept.message = await kept.channel.receive({ stream });
    const { handles, data } = await kept.channel.receive();
    using pool = cuda.MemoryPool.import(device, handles.pool);
    using buffer = cuda.DeviceBuffer.import(pool, cuda.BufferDescriptor.fromBytes(Uint8Array.from(data)), { stream });
    handles.pool.close();
    return await kept.next.send({ buffers: { buffer } }).catch((error: Error) => error.name);
  });
  assertEquals(byHand, NotSupportedError.name);
  await pair.channel.closeAsync();
  const late = await pair.peer.run(async (t) => {
    const { kept } = t;
    await kept.channel.receive().catch(() => {}); // sees the end
    return await kept.next.send({ buffers: kept.message.buffers }).catch((error: Error) => `${error.name}: ${error.message}`);
  });
  assert(/^(PeerGoneError|NotSupportedError)/.test(`${late}`), `${late}`);
  assertEquals(await pair.peer.run((t) => t.kept.next.stats().leases.length), 0);
  await assertRejects(() => pair.channel.receive(), Error);
  buffer.free();
  pool.close();
});
