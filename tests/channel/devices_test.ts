/** Channels between processes with several devices: each thing is opened on its own device, and order holds over all. */
import { assertEquals, assertRejects, assertThrows } from "@std/assert";
import process from "node:process";
import { test } from "node:test";
import { Device, DeviceNotVisibleError, InvalidArgumentError } from "../../mod.ts";
import { runTestFile, skipOnGpu } from "../memory/peer.ts";
import { makeFolder, Pair, Peer, toolkit } from "./harness.ts";

const skip = Device.list().length < 2 ? "needs two devices" : false;
const BUSY_MS = 100;

test("buffers of two devices in one message are ordered, whichever device the stream is of", { skip }, async () => {
  const t = toolkit();
  using second = Device.open(1);
  await using pair = await Pair.start(undefined, { devices: [t.device, second] });
  await pair.peer.run(async (t, path) => {
    const devices = [t.device, t.cuda.Device.open(1)];
    const channel = t.kept.both = await t.cuda.IpcChannel.connect(path, { devices });
    const [a, b] = devices.map((device) => {
      const stream = device.createStream();
      const pool = t.cuda.MemoryPool.create(device, { ipc: true });
      const buffer = pool.allocate(4096, { stream });
      buffer.fill(1, { stream });
      return { stream, buffer };
    });
    t.keepBusy(b.stream, 100);
    b.buffer.fill(2, { stream: b.stream });
    a.stream.wait(b.stream);
    a.buffer.fill(2, { stream: a.stream });
    t.kept.lease = await channel.send({ buffers: { a: a.buffer, b: b.buffer } }, { after: a.stream });
  }, pair.server.path);
  const channel = (await pair.server.accept())!;
  using stream = t.device.createStream();
  using other = second.createStream();
  const message = await channel.receive({ stream });
  const { a, b } = message.buffers;
  assertEquals([a.device === t.device, b.device === second], [true, true]);
  // The buffers' own streams, of which that of b is not the one that was given
  assertEquals([(await b.read({ byteLength: 1 }))[0], (await a.read({ byteLength: 1 }))[0]], [2, 2]);
  t.keepBusy(other, BUSY_MS);
  b.fill(3, { stream: other });
  await message.release({ after: other });
  const [first, last] = await pair.peer.run(async (t) => {
    const isEarly = t.kept.lease.isReleased;
    await t.kept.lease.released;
    return [isEarly, t.kept.lease.outcome];
  });
  assertEquals([first, last], [false, "released"]);
  channel.close();
});

test("what lies on a device that the peer has not named is refused at the call", { skip }, async () => {
  const t = toolkit();
  using second = Device.open(1);
  using pool = t.cuda.MemoryPool.create(second, { ipc: true });
  using stream = second.createStream();
  using buffer = pool.allocate(4096, { stream });
  using folder = makeFolder();
  using server = t.cuda.IpcServer.listen(`${folder.path}/socket`, { devices: [t.device, second] });
  await using peer = await Peer.start();
  await peer.run(async (t, path) => {
    t.kept.channel = await t.connect(path);
  }, server.path);
  using channel = (await server.accept())!;
  await assertRejects(() => channel.send({ buffers: { buffer } }), DeviceNotVisibleError, `lies on ${second.uuid}`);
  await channel.send({ data: "goes on" });
  assertEquals(await peer.run(async (t) => (await t.kept.channel.receive()).data), "goes on");
});

test("a stream of a device that the channel was not opened with is refused", { skip }, async () => {
  await using pair = await Pair.start();
  using second = Device.open(1);
  using stream = second.createStream();
  await assertRejects(
    () => pair.channel.receive({ stream }),
    InvalidArgumentError,
    "the stream belongs to device 1, the channel",
  );
});

test("an event is recorded on its own device only", { skip }, () => {
  const t = toolkit();
  using second = Device.open(1);
  using stream = second.createStream();
  for (const ipc of [false, true]) {
    using event = t.device.createEvent({ ipc });
    assertThrows(() => event.record(stream), InvalidArgumentError, "the stream belongs to device 1");
  }
});

test("devices are known by their UUID, whatever their numbers", { skip }, async () => {
  const t = toolkit();
  using second = Device.open(1);
  using folder = makeFolder();
  using server = t.cuda.IpcServer.listen(`${folder.path}/socket`, { devices: [t.device, second] });
  await using peer = await Peer.start(undefined, { env: { CUDA_VISIBLE_DEVICES: "1" } });
  const uuid = await peer.run(async (t, path) => {
    t.kept.channel = await t.connect(path);
    return t.device.uuid;
  }, server.path);
  assertEquals(uuid, second.uuid);
  using channel = (await server.accept())!;
  assertEquals(channel.peer.deviceUuids, [second.uuid]);
  using pool = t.cuda.MemoryPool.create(second, { ipc: true });
  using stream = second.createStream();
  using buffer = pool.allocate(4096, { stream });
  buffer.fill(9, { stream });
  const lease = await channel.send({ buffers: { buffer } }, { after: stream });
  const byte = await peer.run(async (t) => {
    await using message = await t.kept.channel.receive({ stream: t.stream });
    return (await message.buffers.buffer.read({ stream: t.stream }))[4095];
  });
  assertEquals(byte, 9);
  await lease.released;
});

test("all of it on a machine with two devices", { skip: skipOnGpu || (skip ? false : "this is that run") }, async () => {
  const { code, output } = await runTestFile(new URL(import.meta.url), {
    CUDA_IPC_SIM_DEVICES: "2",
    CUDA_IPC_SIM_MACHINE: `channel.devices.${process.pid}`,
  });
  assertEquals(code, 0, output);
});
