/** Words that streams write and wait for. Rows FENCE-… of docs/driver-behaviour.md. */
import { test } from "node:test";
import { assert, assertEquals } from "@std/assert";
import { addressFromBigInt, createHostView, toSize } from "../../ffi/mod.ts";
import * as enums from "../../src/driver/enums.ts";
import {
  HOST_POOL,
  isOnGpu,
  localDriver,
  MiB,
  PAGE,
  passFd,
  type Peer,
  READ_WRITE_ON_DEVICE,
  type Session,
  shareAllocation,
  shareRegistered,
  sleep,
  startLocal,
  startPeer,
} from "./harness.ts";

// Streams that could wait for ever belong to other processes, so that a failing test ends.

async function assertRefused(session: Session, address: bigint): Promise<void> {
  assertEquals(await session.code("streamWriteValue64", session.stream, address, 1n, 0), 1);
  assertEquals(await session.code("streamWaitValue64", session.stream, address, 0n, 0), 1);
}

test("FENCE-01 pool memory cannot hold a fence, neither for its owner nor for an importer", async () => {
  await using exporter = await startPeer();
  await using importer = await startPeer();
  const device = await shareAllocation(exporter, importer);
  await assertRefused(exporter, device.address);
  await assertRefused(importer, device.imported.address);

  const host = await shareAllocation(exporter, importer, { props: HOST_POOL });
  await exporter.do("memPoolSetAccess", host.pool, [READ_WRITE_ON_DEVICE]);
  await importer.do("memPoolSetAccess", host.imported.pool, [READ_WRITE_ON_DEVICE]);
  await assertRefused(exporter, host.address);
  await assertRefused(importer, host.imported.address);
});

/** One stream writes a word and waits for the other's, which it writes after the first: both come to their end. */
async function assertOrders(one: Session, address: bigint, other: Session, alias: bigint): Promise<void> {
  await one.fill(address, 0);
  await other.do("streamWaitValue64", other.stream, alias, 1n, enums.CU_STREAM_WAIT_VALUE_GEQ);
  await other.do("streamWriteValue64", other.stream, alias + 8n, 2n, 0);
  await one.do("streamWaitValue64", one.stream, address + 8n, 2n, enums.CU_STREAM_WAIT_VALUE_GEQ);
  await sleep(20);
  assertEquals([await one.code("streamQuery", one.stream), await other.code("streamQuery", other.stream)], [600, 600]);
  const signaller = await one.createStream();
  await one.do("streamWriteValue64", signaller, address, 1n, 0);
  assertEquals([await one.isFinished(), await other.isFinished()], [true, true]);
}

test("FENCE-02 physical and plain device memory holds fences in both processes", async () => {
  await using exporter = await startPeer();
  await using importer = await startPeer();
  const physical = await exporter.createVirtual(2 * MiB);
  const fd = await passFd(exporter, await exporter.exportVirtual(physical), importer);
  const alias = await importer.mapVirtual([await importer.importVirtual(fd)], 2 * MiB);
  await assertOrders(exporter, await exporter.mapVirtual([physical], 2 * MiB), importer, alias);

  const plain = await exporter.allocatePlain();
  await assertOrders(exporter, plain, importer, await importer.openMemHandle(await exporter.memHandle(plain)));
});

test("FENCE-03 shared memory that both processes have registered holds fences, for streams and hosts alike", async () => {
  await using first = await startPeer();
  await using second = await startPeer();
  const { one, other } = await shareRegistered(first, second);
  // stream to host
  await first.do("streamWriteValue64", first.stream, one.device, 5n, 0);
  assert(await first.isFinished());
  assertEquals([await first.host("loadWord", one.host), await second.host("loadWord", other.host)], [5n, 5n]);
  // host to stream
  await second.do("streamWaitValue64", second.stream, other.device + 8n, 6n, 0);
  await sleep(20);
  assertEquals(await second.code("streamQuery", second.stream), 600);
  await first.host("storeWord", one.host + 8n, 6n);
  assert(await second.isFinished());
  // stream to stream
  await second.do("streamWaitValue64", second.stream, other.device + 16n, 7n, 0);
  await first.do("streamWriteValue64", first.stream, one.device + 16n, 7n, 0);
  assert(await second.isFinished());
});

test("FENCE-04 the comparison is cyclic: -3 is before 2, and 2^62 is after it", async () => {
  await using session = await startPeer();
  const host = await session.host("mapShared", await session.host("createShared", PAGE), PAGE);
  const word = await session.register(host, PAGE);
  await session.host("storeWord", host, -3n);
  await session.do("streamWaitValue64", session.stream, word, 2n, enums.CU_STREAM_WAIT_VALUE_GEQ);
  await sleep(50);
  assertEquals(await session.code("streamQuery", session.stream), 600);
  await session.host("storeWord", host, 2n ** 62n);
  assert(await session.isFinished());
});

test("FENCE-05 registered memory has the same address on the device, which says that it can write and wait for words", async () => {
  await using session = await startLocal();
  const host = await session.host("mapShared", await session.host("createShared", PAGE), PAGE);
  assertEquals(await session.register(host, PAGE), host);
  for (
    const attribute of [
      enums.CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
      enums.CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
    ]
  ) assertEquals((await session.do("deviceGetAttribute", attribute, 0)).i32, 1, `attribute ${attribute}`);
});

const ROUNDS = isOnGpu ? 100_000 : 10_000;
const STAMPED_BYTES = 256;
/** Passes any value: frees a stream that a failed test has left waiting. */
const BROKEN = 2n ** 62n;

/** A registered block with two words and stamped data, and device memory for the data. */
async function createStamped(session: Session) {
  const host = await session.host("mapShared", await session.host("createShared", PAGE), PAGE);
  const registered = await session.register(host, PAGE);
  const { buffer } = createHostView(addressFromBigInt(host), PAGE).bytes;
  return {
    stream: addressFromBigInt(session.stream),
    device: addressFromBigInt(await session.allocatePlain()),
    byteLength: toSize(STAMPED_BYTES),
    count: toSize(STAMPED_BYTES / 4),
    words: new BigInt64Array(buffer, 0, 2),
    word: [addressFromBigInt(registered), addressFromBigInt(registered + 8n)],
    sent: { address: addressFromBigInt(host + 1024n), data: new Int32Array(buffer, 1024, STAMPED_BYTES / 4) },
    back: { address: addressFromBigInt(host + 2048n), data: new Int32Array(buffer, 2048, STAMPED_BYTES / 4) },
  };
}

function isStamped(data: Int32Array, stamp: number): boolean {
  return data[0] === stamp && data[data.length - 1] === stamp && data.every((value) => value === stamp);
}

/** Looks at the word all the time, as a host does that waits for a fence. The query is for simulated devices. */
function spin(words: BigInt64Array, index: number, value: bigint, query: () => number): void {
  const end = performance.now() + 10_000;
  for (let spins = 1; Atomics.load(words, index) < value; spins++) {
    if (spins % 1000 !== 0) continue;
    const code = query();
    if (code !== 0 && code !== 600) throw new Error(`the stream answers ${code}`);
    if (performance.now() > end) throw new Error(`word ${index} is still ${words[index]}, expected ${value}`);
  }
}

test("FENCE-06 a host that sees the fence after a copy from the device sees the copied bytes", async () => {
  await using session = await startLocal();
  const driver = localDriver();
  const { stream, device, byteLength, count, words, word, back } = await createStamped(session);
  let stale = 0;
  for (let stamp = 1; stamp <= ROUNDS; stamp++) {
    const code = driver.memsetD32Async(device, stamp, count, stream) ||
      driver.memcpyDtoHAsync(back.address, device, byteLength, stream) ||
      driver.streamWriteValue64(stream, word[0], BigInt(stamp), enums.CU_STREAM_WRITE_VALUE_DEFAULT);
    assertEquals(code, 0);
    spin(words, 0, BigInt(stamp), () => driver.streamQuery(stream));
    if (!isStamped(back.data, stamp)) stale++;
  }
  assertEquals(stale, 0, `of ${ROUNDS} reads`);
});

test("FENCE-07 a copy to the device that waits for a fence takes what the host wrote before it", async () => {
  await using session = await startLocal();
  const driver = localDriver();
  const { stream, device, byteLength, words, word, sent, back } = await createStamped(session);
  let stale = 0;
  try {
    for (let stamp = 1; stamp <= ROUNDS; stamp++) {
      // The copy is queued before the host writes, so that an early one would be seen
      const code = driver.streamWaitValue64(stream, word[0], BigInt(stamp), enums.CU_STREAM_WAIT_VALUE_GEQ) ||
        driver.memcpyHtoDAsync(device, sent.address, byteLength, stream) ||
        driver.memcpyDtoHAsync(back.address, device, byteLength, stream) ||
        driver.streamWriteValue64(stream, word[1], BigInt(stamp), enums.CU_STREAM_WRITE_VALUE_DEFAULT);
      assertEquals(code, 0);
      sent.data.fill(stamp);
      Atomics.store(words, 0, BigInt(stamp));
      spin(words, 1, BigInt(stamp), () => driver.streamQuery(stream));
      if (!isStamped(back.data, stamp)) stale++;
    }
  } finally {
    Atomics.store(words, 0, BROKEN);
  }
  assertEquals(stale, 0, `of ${ROUNDS} copies`);
});

async function skipWithoutTwoDevices(): Promise<string | false> {
  if (!isOnGpu) return false;
  await using session = await startLocal();
  const { i32: count } = await session.do("deviceGetCount");
  return count < 2 && `needs a second GPU; this machine has ${count}`;
}

async function startOnDevice(peer: Peer, device: number): Promise<{ context: bigint; stream: bigint }> {
  await peer.start(device);
  return { context: (await peer.do("ctxGetCurrent")).address, stream: peer.stream };
}

test("FENCE-08 one registered block orders two devices", { skip: await skipWithoutTwoDevices() }, async () => {
  await using peer = await startPeer({ context: false, env: { CUDA_IPC_SIM_DEVICES: "2" } });
  const second = await startOnDevice(peer, 1);
  const first = await startOnDevice(peer, 0);
  const host = await peer.host("mapShared", await peer.host("createShared", PAGE), PAGE);
  const onFirst = await peer.register(host, PAGE);
  await peer.do("ctxSetCurrent", second.context);
  const onSecond = (await peer.do("memHostGetDevicePointer", host)).address;

  await peer.do("streamWaitValue64", second.stream, onSecond, 1n, enums.CU_STREAM_WAIT_VALUE_GEQ);
  await peer.do("streamWriteValue64", second.stream, onSecond + 8n, 2n, 0);
  await peer.do("ctxSetCurrent", first.context);
  await peer.do("streamWaitValue64", first.stream, onFirst + 8n, 2n, enums.CU_STREAM_WAIT_VALUE_GEQ);
  await sleep(20);
  const queries = async () => [await peer.code("streamQuery", first.stream), await peer.code("streamQuery", second.stream)];
  assertEquals(await queries(), [600, 600]);
  await peer.do("streamWriteValue64", await peer.createStream(), onFirst, 1n, 0);
  assert(await peer.isFinished());
  assertEquals(await queries(), [0, 0]);
});
