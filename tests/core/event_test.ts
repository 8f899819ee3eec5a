import { assert, assertEquals, assertThrows } from "@std/assert";
import { test } from "node:test";
import { CudaEvent, Device, EventDescriptor, InvalidArgumentError, MemoryPool, SameProcessError } from "../../mod.ts";

test("an event that was never recorded is done", async () => {
  using device = Device.open(0);
  using event = device.createEvent();
  assertEquals(event.isDone, true);
  await event.finished();
  assertEquals(event.isImported, false);
  assertEquals(event.device, device);
});

test("a stream waits for an event of another stream", async () => {
  using device = Device.open(0);
  using writer = device.createStream();
  using reader = device.createStream();
  using pool = MemoryPool.create(device);
  using buffer = pool.allocate(1 << 20, { stream: writer });
  for (let value = 0; value < 50; value++) buffer.fill(value, { stream: writer });
  using filled = writer.record();
  reader.wait(filled);
  assertEquals((await buffer.read({ stream: reader }))[12345], 49);
  await filled.finished();
  filled.synchronize();
});

test("two timing events measure the work between them", async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device);
  using buffer = pool.allocate(1 << 24, { stream });
  using start = device.createEvent({ timing: true });
  start.record(stream);
  for (let i = 0; i < 20; i++) buffer.fill(i, { stream });
  using end = stream.record({ timing: true });
  await end.finished();
  const elapsedMs = end.elapsedMsSince(start);
  assert(elapsedMs >= 0 && elapsedMs < 10_000, `${elapsedMs} ms`);
});

test("timing and ipc exclude each other, and measuring needs timing", () => {
  using device = Device.open(0);
  assertThrows(() => device.createEvent({ ipc: true, timing: true }), InvalidArgumentError, "exclude each other");
  using a = device.createEvent();
  using b = device.createEvent({ timing: true });
  assertThrows(() => b.elapsedMsSince(a), InvalidArgumentError, "{ timing: true }");
});

test("an event's descriptor is made once, survives bytes and JSON, and is refused in its own process", () => {
  using device = Device.open(0);
  using event = device.createEvent({ ipc: true });
  const descriptor = event.ipcDescriptor;
  assertEquals(event.ipcDescriptor, descriptor);
  const again = EventDescriptor.fromBytes(descriptor.toBytes());
  assertEquals(EventDescriptor.fromJSON(JSON.parse(JSON.stringify(again))).toBytes(), descriptor.toBytes());
  assertThrows(() => CudaEvent.import(device, again), SameProcessError, "Use the CudaEvent itself");
  using plain = device.createEvent();
  assertThrows(() => plain.ipcDescriptor, InvalidArgumentError, "without { ipc: true }");
});

test("an event may be closed while a stream waits for it", async () => {
  using device = Device.open(0);
  using a = device.createStream();
  using b = device.createStream();
  const event = a.record();
  b.wait(event);
  event.close();
  event.close();
  await b.finished();
});
