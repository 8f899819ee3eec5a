/** R11: a pool's handle is the whole pool, for whoever holds it: what the documentation warns of is so. */
import { assertEquals } from "@std/assert";
import { test } from "node:test";
import { Balance, Pair, toolkit } from "./harness.ts";

test("R11: who was sent one buffer can open every other one of its pool, later ones included", async () => {
  const t = toolkit();
  const balance = await Balance.take();
  {
    await using pair = await Pair.start();
    const { pool, buffer: sent } = t.createBuffer(4096, 1);
    const lease = await pair.channel.send({ buffers: { sent } }, { after: t.stream });
    const later = pool.allocate(4096, { stream: t.stream });
    later.fill(77, { stream: t.stream });
    await t.stream.finished();
    // Never sent over the channel: only its descriptor is told, which is no secret
    const byte = await pair.peer.run(async (t, json) => {
      const message = await t.kept.channel.receive({ stream: t.stream });
      const { DeviceBuffer, BufferDescriptor } = t.cuda;
      const descriptor = BufferDescriptor.fromJSON(JSON.parse(json));
      const other = DeviceBuffer.import(message.buffers.sent.pool!, descriptor, { stream: t.stream });
      const [byte] = await other.read({ stream: t.stream });
      await other.closeAsync();
      await message.release({ after: t.stream });
      return byte;
    }, JSON.stringify(later.ipcDescriptor));
    assertEquals(byte, 77);
    await lease.released;
    for (const buffer of [sent, later]) buffer.free();
    pool.close();
  }
  await balance.check();
});
