/** The safety net under objects that nobody closed. */
import { assert, assertEquals } from "@std/assert";
import process from "node:process";
import { test } from "node:test";
import { Device, MemoryPool } from "../../mod.ts";
import { collectGarbage } from "../helpers/garbage.ts";

async function collectUntil(isDone: () => boolean): Promise<boolean> {
  const deadline = Date.now() + 20_000;
  while (!isDone() && Date.now() < deadline) {
    collectGarbage();
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  return isDone();
}

test("a lost buffer is freed by the collector, with one warning for its class", async () => {
  const warnings: string[] = [];
  const listen = (warning: Error) => warnings.push(warning.message);
  process.on("warning", listen);
  try {
    using device = Device.open(0);
    using stream = device.createStream();
    using pool = MemoryPool.create(device);
    const lose = () => {
      for (let i = 0; i < 20; i++) pool.allocate(1 << 20, { stream });
    };
    lose();
    assertEquals(pool.attributes.usedBytes, 20 << 20);
    assert(
      await collectUntil(() => (stream.synchronize(), pool.attributes.usedBytes === 0)),
      `${pool.attributes.usedBytes} bytes left`,
    );
    await new Promise((resolve) => setTimeout(resolve, 20));
    assertEquals(warnings.filter((message) => message.includes("DeviceBuffer was garbage-collected without close()")).length, 1);
  } finally {
    process.off("warning", listen);
  }
});

test("a buffer that was closed, at once or later, is not freed a second time", async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device);
  const make = async () => {
    pool.allocate(4096, { stream }).close();
    const later = pool.allocate(4096, { stream });
    await new Promise((resolve) => setTimeout(resolve, 1));
    later.close();
  };
  for (let i = 0; i < 5; i++) await make();
  using kept = pool.allocate(4096, { stream });
  kept.fill(9, { stream });
  for (let i = 0; i < 5; i++) {
    collectGarbage();
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  stream.synchronize();
  assertEquals(pool.attributes.usedBytes, 4096);
  assertEquals((await kept.read())[0], 9);
});
