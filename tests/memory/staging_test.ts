import { test } from "node:test";
import { assertEquals } from "@std/assert";
import { Device, MemoryPool } from "../../mod.ts";
import { contextOf } from "../../src/context.ts";
import { stagingOf } from "../../src/memory/staging.ts";

const MIB = 1024 * 1024;

test("many transfers at once, each of several pieces, all end", async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device);
  const buffers = Array.from({ length: 6 }, () => pool.allocate(9 * MIB, { stream }));
  await Promise.all(buffers.map((buffer, index) => buffer.write(new Uint8Array(9 * MIB).fill(index + 1))));
  const read = await Promise.all(buffers.map((buffer) => buffer.read()));
  read.forEach((bytes, index) => assertEquals([bytes[0], bytes[5 * MIB], bytes[9 * MIB - 1]], Array(3).fill(index + 1)));
  for (const buffer of buffers) buffer.free();
});

test("pieces of another size copy the same bytes", async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device);
  const staging = stagingOf(contextOf(device, "test"), 1000);
  assertEquals(staging.pieceBytes, 1000);
  using buffer = pool.allocate(4321, { stream });
  const bytes = Uint8Array.from({ length: 4321 }, (_, i) => i * 7);
  await buffer.write(bytes, { stream });
  assertEquals(await buffer.read({ stream }), bytes);
  buffer.writeSync(bytes.toReversed(), { stream });
  assertEquals(buffer.readSync({ stream }), bytes.toReversed());
});
