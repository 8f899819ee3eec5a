import { assert, assertEquals, assertRejects, assertThrows } from "@std/assert";
import { test } from "node:test";
import { ClosedError, Device, InvalidArgumentError, MemoryPool } from "../../mod.ts";

test("streams run their work in order, and one waits for the other", async () => {
  using device = Device.open(0);
  using first = device.createStream();
  using second = device.createStream({ nonBlocking: false, priority: 0 });
  using pool = MemoryPool.create(device);
  using buffer = pool.allocate(1 << 20, { stream: first });
  for (let value = 0; value < 32; value++) buffer.fill(value, { stream: first });
  second.wait(first);
  const bytes = await buffer.read({ stream: second });
  assert(bytes.every((byte) => byte === 31));
});

test("stream.finished() resolves when the work is done, and at once when there is none", async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  await stream.finished();
  using pool = MemoryPool.create(device);
  using buffer = pool.allocate(1 << 20, { stream });
  for (let i = 0; i < 100; i++) buffer.fill(i, { stream });
  await stream.finished();
  assertEquals(stream.isIdle, true);
  stream.synchronize();
});

test("stream.finished() rejects with the reason of its signal", async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  const reason = new Error("enough");
  assertEquals(await assertRejects(() => stream.finished({ signal: AbortSignal.abort(reason) }), Error), reason);
});

test("a closed stream refuses work; buffers that are freed on it are freed all the same", async () => {
  using device = Device.open(0);
  const stream = device.createStream();
  using pool = MemoryPool.create(device);
  const buffer = pool.allocate(4096, { stream });
  buffer.fill(3, { stream });
  stream.close();
  stream.close();
  assertThrows(() => stream.synchronize(), ClosedError);
  assertThrows(() => buffer.fill(1, { stream }), ClosedError);
  assertEquals((await buffer.read())[0], 3);
  buffer.close();
});

test("a priority outside the device's range is refused with the range", () => {
  using device = Device.open(0);
  assertThrows(() => device.createStream({ priority: 99 }), InvalidArgumentError, "priority is 99, expected an integer from");
});
