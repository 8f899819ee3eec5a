/**
 * One process of each runtime on each side: run in Deno and in Bun, these are all four pairings, each in both directions.
 * Needs no package, so that it runs on a GPU machine: CUDA_IPC_DRIVER=cuda.
 */
import { assert, assertEquals } from "@std/assert";
import { test } from "node:test";
import { currentRuntime, type Runtime, skipWithout } from "../helpers/runtimes.ts";
import { Balance, Pair, toolkit } from "./harness.ts";

const LENGTH = 1_000_003;

for (const runtime of ["deno", "bun"] satisfies Runtime[]) {
  const options = { skip: skipWithout(runtime) };

  test(`${currentRuntime} sends buffers to ${runtime}, which reads, writes and releases them`, options, async () => {
    const t = toolkit();
    const balance = await Balance.take();
    {
      await using pair = await Pair.start(runtime);
      const { pool, buffer } = t.createBuffer(LENGTH, 7);
      const lease = await pair.channel.send({ data: { frame: 1 }, buffers: { frame: buffer } }, { after: t.stream });
      const seen = await pair.peer.run(async (t) => {
        const message = t.kept.message = await t.kept.channel.receive({ stream: t.stream });
        const { frame } = message.buffers;
        const bytes: Uint8Array = await frame.read({ stream: t.stream });
        frame.fill(9, { stream: t.stream });
        return { data: message.data, length: bytes.length, isFilled: bytes.every((byte) => byte === 7), kind: frame.kind };
      });
      assertEquals(seen, { data: { frame: 1 }, length: LENGTH, isFilled: true, kind: "pool" });
      assert(!lease.isReleased);
      await pair.peer.run((t) => t.kept.message.release({ after: t.stream }));
      await lease.released;
      assertEquals(lease.outcome, "released");
      assert((await buffer.read({ stream: t.stream })).every((byte) => byte === 9));
      buffer.free();
      pool.close();
    }
    await balance.check();
  });

  test(`${currentRuntime} receives buffers from ${runtime}`, options, async () => {
    const t = toolkit();
    const balance = await Balance.take();
    {
      await using pair = await Pair.start(runtime);
      await pair.peer.run(async (t, length) => {
        const { pool, buffer } = t.createBuffer(length, 3);
        const part = buffer.subarray(1000, 3000);
        t.kept.pool = pool;
        t.kept.lease = await t.kept.channel.send({ buffers: { whole: buffer, part } }, { after: t.stream });
        buffer.free();
      }, LENGTH);
      {
        await using message = await pair.channel.receive({ stream: t.stream });
        const { whole, part } = message.buffers;
        assertEquals([whole.byteLength, part.byteLength], [LENGTH, 2000]);
        part.fill(5, { stream: t.stream });
        const bytes = await whole.read({ stream: t.stream });
        assertEquals([bytes[999], bytes[1000], bytes[2999], bytes[3000]], [3, 5, 5, 3]);
      }
      const { outcome, usedBytes } = await pair.peer.run(async (t) => {
        await t.kept.lease.released;
        t.stream.synchronize();
        return { outcome: t.kept.lease.outcome, usedBytes: t.kept.pool.attributes.usedBytes };
      });
      assertEquals(outcome, "released");
      assertEquals(usedBytes, 0);
    }
    await balance.check();
  });

  test(`${currentRuntime} and ${runtime} take turns by fences alone`, options, async () => {
    const t = toolkit();
    const balance = await Balance.take();
    {
      await using pair = await Pair.start(runtime);
      const ping = t.cuda.SharedFence.create(t.device);
      await pair.channel.send({ fences: { ping } });
      await pair.peer.run(async (t) => {
        const message = await t.kept.channel.receive();
        const pong = t.kept.pong = t.cuda.SharedFence.create(t.device);
        await t.kept.channel.send({ fences: { pong } });
        for (let turn = 1n; turn <= 10n; turn++) {
          t.stream.waitFor(message.fences.ping, turn);
          t.stream.signal(pong, turn);
        }
        t.kept.ping = message.fences.ping;
      });
      const { fences: { pong } } = await pair.channel.receive();
      for (let turn = 1n; turn <= 10n; turn++) {
        t.stream.signal(ping, turn);
        t.stream.waitFor(pong, turn);
      }
      await pong.reached(10n);
      await t.stream.finished();
      assertEquals([ping.value, pong.value], [10n, 10n]);
      ping.close();
      pong.close();
    }
    await balance.check();
  });

  test(`${currentRuntime} sends an event and a pool's handle to ${runtime}`, options, async () => {
    const t = toolkit();
    const balance = await Balance.take();
    {
      await using pair = await Pair.start(runtime);
      const { pool, buffer } = t.createBuffer(4096, 4);
      const event = t.stream.record({ ipc: true });
      const handle = pool.exportHandle();
      await pair.channel.send({
        data: [...buffer.ipcDescriptor.toBytes()],
        events: { filled: event },
        handles: { pool: handle },
      });
      handle.close();
      const byte = await pair.peer.run(async (t) => {
        const { cuda, device, stream, kept } = t;
        const message = await kept.channel.receive();
        using event = message.events.filled;
        stream.wait(event);
        using handle = message.handles.pool;
        using pool = cuda.MemoryPool.import(device, handle);
        const descriptor = cuda.BufferDescriptor.fromBytes(Uint8Array.from(message.data));
        await using buffer = cuda.DeviceBuffer.import(pool, descriptor, { stream });
        return (await buffer.read({ stream }))[4095];
      });
      assertEquals(byte, 4);
      event.close();
      buffer.free();
      pool.close();
    }
    await balance.check();
  });

  test(`${currentRuntime} shares virtual memory and host memory with ${runtime}`, options, async () => {
    const t = toolkit();
    const balance = await Balance.take();
    {
      await using pair = await Pair.start(runtime);
      const big = t.cuda.VirtualMemory.allocate(t.device, 3 << 20, { ipc: true, stream: t.stream });
      big.fill(6, { stream: t.stream });
      const hostPool = t.cuda.HostPool.create(t.device, { ipc: true });
      const host = hostPool.allocate(10_000, { stream: t.stream });
      host.view.fill(8);
      const lease = await pair.channel.send({ buffers: { big, host } }, { after: t.stream });
      const seen = await pair.peer.run(async (t) => {
        const { big, host } = (t.kept.message = await t.kept.channel.receive({ stream: t.stream })).buffers;
        const bytes = [(await big.read({ stream: t.stream })).at(-1), host.view[9999]];
        big.fill(7, { stream: t.stream });
        host.view.fill(9);
        return { kinds: [big.kind, host.kind], bytes };
      });
      assertEquals(seen, { kinds: ["virtual", "host"], bytes: [6, 8] });
      assert(!lease.isReleased);
      big.free();
      host.free();
      await pair.peer.run((t) => t.kept.message.release({ after: t.stream }));
      await lease.released;
      assertEquals(lease.outcome, "released");
      hostPool.close();
    }
    await balance.check();
  });

  test(`${currentRuntime} receives host memory from ${runtime} without a device`, options, async () => {
    const balance = await Balance.take();
    {
      await using pair = await Pair.start(runtime, {});
      await pair.peer.run(async (t) => {
        const pool = t.kept.pool = t.cuda.HostPool.create(t.device, { ipc: true });
        const host = pool.allocate(4096, { stream: t.stream });
        host.fill(3, { stream: t.stream });
        t.kept.lease = await t.kept.channel.send({ buffers: { host } }, { after: t.stream });
        host.free();
      });
      {
        await using message = await pair.channel.receive();
        assertEquals(message.buffers.host.view[4095], 3);
      }
      assertEquals(await pair.peer.run(async (t) => (await t.kept.lease.released, t.kept.lease.outcome)), "released");
    }
    await balance.check();
  });
}
