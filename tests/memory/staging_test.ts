import { test } from "node:test";
import { assertEquals } from "@std/assert";
import { Device, MemoryPool } from "../../mod.ts";

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
