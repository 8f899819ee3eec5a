/** R2: a fence has one writing process, and its value only grows. Deaths are in tests/channel/r1_ordering_test.ts. */
import { assert, assertEquals, assertRejects, assertThrows } from "@std/assert";
import { test } from "node:test";
import process from "node:process";
import { ClosedError, InvalidArgumentError, SharedFence } from "../../mod.ts";
import { retiredFenceBytes } from "../../src/share/fence_block.ts";
import { toolkit, until } from "../channel/harness.ts";

test("R2: a stream raises a fence behind its work, and another stream waits for it", async () => {
  const { device, cuda } = toolkit();
  using first = device.createStream();
  using second = device.createStream();
  using pool = cuda.MemoryPool.create(device);
  using fence = SharedFence.create(device);
  using buffer = pool.allocate(4096, { stream: first });
  buffer.fill(1, { stream: first });
  second.waitFor(fence, 1n);
  buffer.fill(2, { stream: second });
  assert(!second.isIdle);
  toolkit().keepBusy(first, 20);
  buffer.fill(3, { stream: first });
  first.signal(fence, 1n);
  await fence.reached(1n);
  await second.finished();
  assertEquals((await buffer.read({ stream: second }))[0], 2);
});

test("R2: the host raises a fence and waits for one", async () => {
  const { device } = toolkit();
  using stream = device.createStream();
  using fence = SharedFence.create(device, { initial: 5n });
  assertEquals(fence.value, 5n);
  stream.waitFor(fence, 6n);
  const reached = fence.reached(7n);
  fence.signal(6n);
  await stream.finished();
  fence.signal(100n);
  await reached;
  await fence.reached(100n);
});

test("R2: values that do not grow, are no bigint or are too large are refused", () => {
  const { device } = toolkit();
  using stream = device.createStream();
  using fence = SharedFence.create(device, { initial: 3n });
  for (const value of [3n, 2n, -1n, 2n ** 62n, 2n ** 64n, 4, "4", undefined, null]) {
    assertThrows(() => fence.signal(value as bigint), InvalidArgumentError, "Cannot signal a fence: value is");
    assertThrows(() => stream.signal(fence, value as bigint), InvalidArgumentError, "Cannot signal a fence: value is");
  }
  for (const value of [-1n, 2n ** 62n, 4, undefined]) {
    assertThrows(() => stream.waitFor(fence, value as bigint), InvalidArgumentError, "value is");
    assertThrows(() => SharedFence.create(device, { initial: value as bigint ?? null }), InvalidArgumentError, "initial is");
  }
  assertThrows(() => stream.signal({} as SharedFence, 1n), InvalidArgumentError, "expected a SharedFence");
  fence.signal(2n ** 62n - 1n);
  assertEquals(fence.value, 2n ** 62n - 1n);
});

test("R2: a signal from another stream waits for the last signaller", async () => {
  const t = toolkit();
  using slow = t.device.createStream();
  using fast = t.device.createStream();
  using fence = SharedFence.create(t.device);
  t.keepBusy(slow, 60);
  slow.signal(fence, 1n);
  fast.signal(fence, 2n);
  assertEquals(fence.value, 0n);
  await fence.reached(1n);
  assert(slow.isIdle);
  await fence.reached(2n);
});

test("R2: the host does not overtake a stream's signal that is queued", async () => {
  const t = toolkit();
  using stream = t.device.createStream();
  using fence = SharedFence.create(t.device);
  t.keepBusy(stream, 40);
  stream.signal(fence, 1n);
  assertThrows(() => fence.signal(2n), InvalidArgumentError, "Await reached(1n) first");
  await fence.reached(1n);
  fence.signal(2n);
});

test("R2: an aborted or closed wait rejects", async () => {
  const { device } = toolkit();
  const fence = SharedFence.create(device);
  const controller = new AbortController();
  const aborted = fence.reached(1n, { signal: controller.signal });
  controller.abort(new Error("enough"));
  await assertRejects(() => aborted, Error, "enough");
  const closed = fence.reached(1n);
  fence.close();
  await assertRejects(() => closed, ClosedError);
  assertThrows(() => fence.value, ClosedError);
});

test("R2: a block is unregistered only when its device is idle", async () => {
  const t = toolkit();
  using stream = t.device.createStream();
  const blockedCalls = () => t.device.isSimulated ? t.report().blockedCalls.cuMemHostUnregister ?? 0 : 0;
  const before = blockedCalls();
  const fence = SharedFence.create(t.device);
  stream.signal(fence, 1n);
  t.keepBusy(stream, 80);
  fence.close();
  assert(retiredFenceBytes() > 0, "it waits for the stream");
  assertEquals(blockedCalls(), before);
  await stream.finished();
  await until("the block is given back", () => retiredFenceBytes() === 0);
  assertEquals(blockedCalls(), before);
});

test("R2: waiting costs no core", async () => {
  const { device } = toolkit();
  using fence = SharedFence.create(device);
  const controller = new AbortController();
  const wait = fence.reached(1n, { signal: controller.signal });
  const before = process.cpuUsage();
  const start = performance.now();
  await new Promise((resolve) => setTimeout(resolve, 1000));
  const { user, system } = process.cpuUsage(before);
  const share = (user + system) / 1000 / (performance.now() - start);
  controller.abort();
  await wait.catch(() => {});
  assert(share < 0.2, `${(100 * share).toFixed(1)} % of a core`);
});

test("R2: many fences lie in one block, and each has its own word", () => {
  const { device } = toolkit();
  const fences = Array.from({ length: 600 }, (_, index) => SharedFence.create(device, { initial: BigInt(index) }));
  fences.forEach((fence, index) => assertEquals(fence.value, BigInt(index)));
  for (const fence of fences) fence.close();
});
