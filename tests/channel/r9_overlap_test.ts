/** R9: an exporter gives a place in its pool out again; an import of it never lies over an older one that is still mapped. */
import { assert, assertEquals } from "@std/assert";
import { test } from "node:test";
import type { DeviceBuffer, MemoryPool } from "../../mod.ts";
import { Pair, toolkit } from "./harness.ts";

const UNIT = 64 * 1024;

/** Memory that the peer has mapped twice: received, and by an import of its own that outlives the lease. */
async function startMapped(pair: Pair): Promise<{ pool: MemoryPool; place: bigint }> {
  const { stream } = toolkit();
  const { pool, buffer } = toolkit().createBuffer(4 * UNIT, 1);
  const { address } = buffer;
  const lease = await pair.channel.send({ buffers: { buffer } }, { after: stream });
  buffer.free();
  await pair.peer.run(async (t) => {
    await using message = await t.kept.channel.receive({ stream: t.stream });
    const { buffer } = message.buffers;
    t.kept.other = t.device.createStream();
    t.kept.alias = t.cuda.DeviceBuffer.import(buffer.pool, buffer.ipcDescriptor, { stream: t.kept.other });
    t.kept.pool = buffer.pool;
  });
  await lease.released;
  stream.synchronize();
  return { pool, place: address };
}

/** The same place in two parts, and the last one is shared. */
function allocateParts(pool: MemoryPool, place: bigint): [DeviceBuffer, DeviceBuffer] {
  const { stream } = toolkit();
  const first = pool.allocate(2 * UNIT, { stream });
  assertEquals(first.address, place, "the driver gives the place out again");
  const second = pool.allocate(2 * UNIT, { stream });
  second.fill(2, { stream });
  return [first, second];
}

test("R9: an import over one that is still mapped is refused, until that one is gone", async () => {
  await using pair = await Pair.start();
  const { pool, place } = await startMapped(pair);
  const [first, second] = allocateParts(pool, place);
  await toolkit().stream.finished();

  const seen = await pair.peer.run(async (t, bytes) => {
    const descriptor = t.cuda.BufferDescriptor.fromBytes(new Uint8Array(bytes));
    const open = () => t.cuda.DeviceBuffer.import(t.kept.pool, descriptor, { stream: t.stream });
    const refusal = () => {
      try {
        open().free();
        return "opened";
      } catch (error) {
        return String(error);
      }
    };
    const inUse = refusal();
    t.prepareBusy();
    t.keepBusy(t.kept.other, 300);
    t.kept.alias.free();
    const ending = refusal();
    await t.kept.alias.closeAsync();
    using opened = open();
    return { inUse, ending, bytes: [...await opened.read({ byteLength: 2, stream: t.stream })] };
  }, [...second.ipcDescriptor.toBytes()]);
  assert(/InvalidArgumentError: .*has freed since. Free that import first/.test(seen.inUse), seen.inUse);
  assert(/InvalidArgumentError: .*still has work to do. Await that buffer's closeAsync\(\) first/.test(seen.ending), seen.ending);
  assertEquals(seen.bytes, [2, 2]);
  for (const buffer of [first, second]) buffer.free();
  pool.close();
});

test("R9: a message waits for a mapping of its place that is still ending", async () => {
  await using pair = await Pair.start();
  const { stream } = toolkit();
  const { pool, place } = await startMapped(pair);
  await pair.peer.run((t) => {
    t.prepareBusy();
    t.keepBusy(t.kept.other, 300);
    t.kept.alias.free();
  });
  const [first, second] = allocateParts(pool, place);
  const leases = [
    await pair.channel.send({ buffers: { second } }, { after: stream }),
    await pair.channel.send({ buffers: { first } }, { after: stream }),
  ];
  const seen = await pair.peer.run(async (t) => {
    const isBusy = !t.kept.other.isIdle;
    await using message = await t.kept.channel.receive({ stream: t.stream });
    const isStillBusy = !t.kept.other.isIdle;
    const bytes = await message.buffers.second.read({ byteLength: 2, stream: t.stream });
    await using next = await t.kept.channel.receive({ stream: t.stream });
    return { isBusy, isStillBusy, bytes: [...bytes], units: next.buffers.first.byteLength };
  });
  assertEquals(seen, { isBusy: true, isStillBusy: false, bytes: [2, 2], units: 2 * UNIT });
  for (const lease of leases) await lease.released;
  for (const buffer of [first, second]) buffer.free();
  pool.close();
});
