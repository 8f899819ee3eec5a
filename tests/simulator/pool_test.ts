/** Memory pools of the simulator: the rows "Pools (exporter)" and "Pools (importer)" of docs/driver-behaviour.md. */
import { test } from "node:test";
import { assert, assertEquals, assertNotEquals } from "@std/assert";
import { discardFds } from "../../src/os/fd.ts";
import { currentRuntime, otherRuntime, skipWithout } from "../helpers/runtimes.ts";
import { local } from "./local.ts";
import { Peer } from "./peer.ts";
import { address, bytes, type LocalSession, size, u64 } from "./session.ts";

const MiB = 2 ** 20;
const RESERVED = 5;
const USED = 7;
const THRESHOLD = 4;
const skip = skipWithout(otherRuntime);

async function attribute(session: LocalSession, pool: bigint, which: number): Promise<number> {
  return (await session.do("memPoolGetAttribute", address(pool), which)).number();
}

test("a pool's pointer cannot be exported before the pool, nor without a handle type, nor from its middle", async () => {
  const { session } = local();
  const stream = await session.start();
  const pool = await session.createPool();
  const pointer = await session.allocate(pool, MiB, stream);
  assertEquals(await session.code("memPoolExportPointer", address(pointer)), 1);
  const fd = await session.exportPool(pool);
  const first = (await session.do("memPoolExportPointer", address(pointer))).opaque;
  const second = (await session.do("memPoolExportPointer", address(pointer))).opaque;
  assertEquals(first, second);
  assertEquals(await session.code("memPoolExportPointer", address(pointer + 256n)), 1);
  const another = await session.exportPool(pool);
  assertNotEquals(another, fd);
  assertEquals((await session.do("isCloseOnExec", fd)).number(), 0);

  const privatePool = await session.createPool({ handleTypes: 0 });
  const own = await session.allocate(privatePool, MiB, stream);
  assertEquals(await session.code("memPoolExportToShareableHandle", address(privatePool), 1), 1);
  assertEquals(await session.code("memPoolExportPointer", address(own)), 1);

  const view = new DataView(first.buffer, first.byteOffset);
  assertEquals(view.getBigUint64(32, true), BigInt(MiB));
  assertEquals(view.getBigUint64(24, true), 0n);
  discardFds(fd, another);
  for (const [p, owner] of [[pointer, pool], [own, privatePool]]) {
    await session.do("memFreeAsync", address(p), address(stream));
    await session.do("streamSynchronize", address(stream));
    await session.do("memPoolDestroy", address(owner));
  }
});

test("maxSize is rounded up to 32 MiB and 0 is no limit", async () => {
  const { session } = local();
  const stream = await session.start();
  for (const [maxSize, fits] of [[1, 32], [MiB, 32], [33 * MiB, 64]]) {
    const pool = await session.createPool({ maxSize });
    const pointers: bigint[] = [];
    for (let mib = 0; mib < fits; mib++) pointers.push(await session.allocate(pool, MiB, stream));
    assertEquals(await session.code("memAllocFromPoolAsync", size(MiB), address(pool), address(stream)), 2, `${maxSize}`);
    for (const pointer of pointers) await session.do("memFreeAsync", address(pointer), address(stream));
    await session.do("memPoolDestroy", address(pool));
  }
  const unlimited = await session.createPool({ maxSize: 0 });
  const pointer = await session.allocate(unlimited, 1024 * MiB, stream);
  await session.do("memFree", address(pointer));
  await session.do("memPoolDestroy", address(unlimited));
});

test("attributes count what is reserved and used, and a synchronization gives back what is above the threshold", async () => {
  const { session } = local();
  const stream = await session.start();
  const before = await session.freeBytes();
  const pool = await session.createPool();
  for (const [which, value] of [[1, 1], [2, 1], [3, 1], [4, 0], [5, 0], [6, 0], [7, 0], [8, 0]]) {
    assertEquals(await attribute(session, pool, which), value, `attribute ${which}`);
  }
  assertEquals((await session.do("memAllocFromPoolAsync", size(0), address(pool), address(stream))).address, 0n);
  await session.do("memFreeAsync", address(0n), address(stream));
  assertEquals(await attribute(session, pool, RESERVED), 0);

  const pointer = await session.allocate(pool, 1, stream);
  assertEquals(pointer % 512n, 0n);
  assertEquals(await attribute(session, pool, RESERVED), 32 * MiB);
  assertEquals(await session.freeBytes(), before - 32 * MiB);
  await session.do("memFreeAsync", address(pointer), address(stream));
  assertEquals(await attribute(session, pool, RESERVED), 32 * MiB);
  await session.do("streamSynchronize", address(stream));
  assertEquals(await attribute(session, pool, RESERVED), 0);
  assertEquals(await attribute(session, pool, USED), 0);

  await session.do("memPoolSetAttribute", address(pool), THRESHOLD, u64(2n ** 64n - 1n));
  assertEquals((await session.do("memPoolGetAttribute", address(pool), THRESHOLD)).address, 2n ** 64n - 1n);
  await session.do("memFreeAsync", address(await session.allocate(pool, 40 * MiB, stream)), address(stream));
  await session.do("streamSynchronize", address(stream));
  assertEquals(await attribute(session, pool, RESERVED), 64 * MiB);
  await session.do("memPoolTrimTo", address(pool), size(0));
  assertEquals(await attribute(session, pool, RESERVED), 0);
  await session.do("memPoolDestroy", address(pool));
  assertEquals(await session.freeBytes(), before);
});

test("what is being freed can be had at once on the same stream, later on others", async () => {
  const { session, occupyStream } = local();
  const [stream, other] = [await session.start(), await session.start()];
  const pool = await session.createPool();
  const pointer = await session.allocate(pool, MiB, stream);
  occupyStream(stream, 200);
  await session.do("memFreeAsync", address(pointer), address(stream));
  assertEquals(await session.code("memFreeAsync", address(pointer), address(stream)), 1);
  const elsewhere = await session.allocate(pool, MiB, other);
  assertNotEquals(elsewhere, pointer);
  assertEquals(await session.allocate(pool, MiB, stream), pointer);
  await session.do("streamSynchronize", address(stream));
  await session.fill(pointer, 1, MiB, other); // the old free has not met the new owner
  await session.do("memFreeAsync", address(elsewhere), address(other));
  assertEquals(await session.allocate(pool, MiB, stream), elsewhere);
  for (const p of [pointer, elsewhere]) await session.do("memFree", address(p));
  await session.do("memPoolDestroy", address(pool));
  for (const s of [stream, other]) await session.do("streamDestroy", address(s));
});

test("a destroyed pool's live allocation stays readable and can be freed", async () => {
  const { session } = local();
  const stream = await session.start();
  const before = await session.freeBytes();
  const pool = await session.createPool();
  const pointer = await session.allocate(pool, 4096, stream);
  await session.fill(pointer, 9, 4096, stream);
  await session.do("memPoolDestroy", address(pool));
  assert(await session.isFilled(pointer, 9, 4096, stream));
  assertEquals(await session.code("memAllocFromPoolAsync", size(1), address(pool), address(stream)), 1);
  await session.do("memFreeAsync", address(pointer), address(stream));
  await session.do("streamSynchronize", address(stream));
  assertEquals(await session.freeBytes(), before);
});

test("host pools: HOST_NUMA can be shared, HOST cannot", async () => {
  const { session } = local();
  const shared = await session.createPool({ locationType: 3, locationId: 0 });
  assertEquals(await session.code("memPoolCreate", { allocType: 1, handleTypes: 1, locationType: 2, locationId: 0 }), 1);
  const unshared = await session.createPool({ locationType: 2, handleTypes: 0 });
  for (const pool of [shared, unshared]) await session.do("memPoolDestroy", address(pool));
});

test("bad descriptors are refused with the driver's codes", async () => {
  const { session } = local();
  assertEquals(await session.code("memPoolImportFromShareableHandle", address(0n), 1), 1);
  assertEquals(await session.code("memPoolImportFromShareableHandle", address(54321n), 1), 999);
  const foreign = (await session.do("createSharedMemory", 65536)).number();
  assertEquals(await session.code("memPoolImportFromShareableHandle", address(BigInt(foreign)), 1), 999);
  discardFds(foreign);
});

test("in the exporting process an import is an alias at another address", async () => {
  const { session } = local();
  const stream = await session.start();
  const pool = await session.createPool();
  const pointer = await session.allocate(pool, 4096, stream);
  await session.fill(pointer, 3, 4096, stream);
  const fd = await session.exportPool(pool);
  const imported = (await session.do("memPoolImportFromShareableHandle", address(BigInt(fd)), 1)).address;
  const again = (await session.do("memPoolImportFromShareableHandle", address(BigInt(fd)), 1)).address;
  assertNotEquals(imported, pool);
  assertEquals(again, imported);
  discardFds(fd);
  const data = (await session.do("memPoolExportPointer", address(pointer))).opaque;
  const alias = (await session.do("memPoolImportPointer", address(imported), bytes(data))).address;
  assertNotEquals(alias, pointer);
  assert(await session.isFilled(alias, 3, 4096, stream));
  await session.do("memFree", address(alias));
  assert(await session.isFilled(pointer, 3, 4096, stream));
  await session.do("memFree", address(pointer));
  await session.do("memPoolDestroy", address(pool));
});

for (const runtime of [currentRuntime, otherRuntime]) {
  test(`an importer in ${runtime}: data, double imports, stale imports, refusals`, { skip }, async () => {
    const { session } = local();
    const stream = await session.start();
    const pool = await session.createPool();
    const pointer = await session.allocate(pool, MiB, stream);
    await session.fill(pointer, 1, MiB, stream);
    const fd = await session.exportPool(pool);
    const data = (await session.do("memPoolExportPointer", address(pointer))).opaque;

    await using peer = await Peer.start(runtime);
    const peerStream = await peer.start();
    const peerFd = await peer.sendFd(fd);
    const imported = (await peer.do("memPoolImportFromShareableHandle", address(BigInt(peerFd)), 1)).address;
    await peer.do("closeFd", peerFd);
    discardFds(fd);
    assertEquals((await peer.do("memPoolGetAccess", address(imported), { type: 1, id: 0 })).i32, 3);

    // data both ways
    const mapped = (await peer.do("memPoolImportPointer", address(imported), bytes(data))).address;
    const range = await peer.do("memGetAddressRange", address(mapped));
    assertEquals([range.address, range.number(8)], [mapped, MiB]);
    assert(await peer.isFilled(mapped, 1, MiB, peerStream));
    await peer.fill(mapped, 2, MiB, peerStream);
    await peer.do("streamSynchronize", address(peerStream));
    assert(await session.isFilled(pointer, 2, MiB, stream));

    // what an imported pool cannot do
    assertEquals(await peer.code("memAllocFromPoolAsync", size(1), address(imported), address(peerStream)), 1);
    assertEquals(await peer.code("memPoolGetAttribute", address(imported), USED), 1);
    assertEquals(await peer.code("memPoolSetAttribute", address(imported), THRESHOLD, u64(0n)), 1);
    assertEquals(await peer.code("memPoolTrimTo", address(imported), size(0)), 1);
    assertEquals(await peer.code("memPoolExportToShareableHandle", address(imported), 1), 1);
    assertEquals(await peer.code("memPoolExportPointer", address(mapped)), 1);
    assertEquals(await peer.code("memPoolDestroy", address(imported)), 1);
    assertEquals(await peer.code("memPoolImportPointer", address(imported), bytes(new Uint8Array(64).fill(0xa5))), 1);

    // two imports are one mapping
    assertEquals((await peer.do("memPoolImportPointer", address(imported), bytes(data))).address, mapped);
    await peer.do("memFreeAsync", address(mapped), address(peerStream));
    assertEquals(await peer.code("memFreeAsync", address(mapped), address(peerStream)), 1);
    assertEquals(await peer.code("memsetD8Async", address(mapped), 0, size(1), address(peerStream)), 1);

    // a freed pointer can be imported: it shows the next owner's bytes, at the same address as its own import
    await session.do("memFreeAsync", address(pointer), address(stream));
    const next = await session.allocate(pool, MiB, stream);
    assertEquals(next, pointer);
    await session.fill(next, 7, MiB, stream);
    await session.do("streamSynchronize", address(stream));
    const stale = (await peer.do("memPoolImportPointer", address(imported), bytes(data))).address;
    assert(await peer.isFilled(stale, 7, MiB, peerStream));
    const nextData = (await session.do("memPoolExportPointer", address(next))).opaque;
    assertNotEquals(nextData, data);
    assertEquals((await peer.do("memPoolImportPointer", address(imported), bytes(nextData))).address, stale);

    await session.do("memFree", address(next));
    await session.do("memPoolDestroy", address(pool));
  });

  test(`memory is in use until the last of exporter and importer (${runtime}) is gone, also by death`, { skip }, async () => {
    const { session } = local();
    const stream = await session.start();
    const before = await session.freeBytes();
    const exporter = await Peer.start(runtime);
    const exporterStream = await exporter.start();
    const pool = await exporter.createPool();
    const pointer = await exporter.allocate(pool, 40 * MiB, exporterStream);
    const second = await exporter.allocate(pool, MiB, exporterStream);
    await exporter.fill(pointer, 5, 40 * MiB, exporterStream);
    await exporter.fill(second, 6, MiB, exporterStream);
    assertEquals(await session.freeBytes(), before - 64 * MiB);

    // the descriptor comes the other way: out of /proc, since the harness sends only to peers
    const importer = await Peer.start(currentRuntime);
    const importerStream = await importer.start();
    const fd = await importer.do("openFdOf", exporter.process.pid, await exporter.exportPool(pool));
    const imported = (await importer.do("memPoolImportFromShareableHandle", address(BigInt(fd.number())), 1)).address;
    const data = (await exporter.do("memPoolExportPointer", address(pointer))).opaque;
    const secondData = (await exporter.do("memPoolExportPointer", address(second))).opaque;
    const mapped = (await importer.do("memPoolImportPointer", address(imported), bytes(data))).address;
    await importer.do("closeFd", fd.number());

    await exporter.kill();
    assertEquals(await session.freeBytes(), before - 64 * MiB);
    assert(await importer.isFilled(mapped, 5, 40 * MiB, importerStream));
    const mappedSecond = (await importer.do("memPoolImportPointer", address(imported), bytes(secondData))).address;
    assert(await importer.isFilled(mappedSecond, 6, MiB, importerStream));
    await importer.do("memFree", address(mapped));
    await importer.kill();
    assertEquals(await session.freeBytes(), before);
    await session.do("streamDestroy", address(stream));
  });
}
