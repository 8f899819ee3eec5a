import { assert, assertEquals, assertRejects } from "@std/assert";
import { test } from "node:test";
import { Device, MemoryPool } from "../../mod.ts";
import { pollUntil } from "../../src/polling.ts";

test("pollUntil() resolves at once, later, and rejects with what it meets", async () => {
  await pollUntil(() => true);
  let asked = 0;
  await pollUntil(() => ++asked === 5);
  assertEquals(asked, 5);
  const broken = new Error("broken");
  assertEquals(
    await assertRejects(() =>
      pollUntil(() => {
        throw broken;
      })
    ),
    broken,
  );
  const controller = new AbortController();
  const reason = new Error("enough");
  setTimeout(() => controller.abort(reason), 5);
  assertEquals(await assertRejects(() => pollUntil(() => false, controller.signal)), reason);
});

test("many waits share one timer, and an ended one is not asked again", async () => {
  let open = false;
  let asked = 0;
  const waits = Array.from({ length: 100 }, () => pollUntil(() => (asked++, open)));
  setTimeout(() => open = true, 10);
  await Promise.all(waits);
  const after = asked;
  await new Promise((resolve) => setTimeout(resolve, 20));
  assertEquals(asked, after);
});

test("a loop of small reads does not keep timers from running", async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device);
  using buffer = pool.allocate(4096, { stream });
  await buffer.write(new Uint8Array(4096).fill(1));
  let ticks = 0;
  const timer = setInterval(() => ticks++, 1);
  const deadline = performance.now() + 100;
  while (performance.now() < deadline) await buffer.read();
  clearInterval(timer);
  assert(ticks > 10, `${ticks} ticks in 100 ms`);
});
