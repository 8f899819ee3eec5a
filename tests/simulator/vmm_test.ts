/** Virtual memory and legacy handles of the simulator, in this process and between runtimes. */
import { readdirSync } from "node:fs";
import { test } from "node:test";
import { assert, assertEquals, assertNotEquals } from "@std/assert";
import { discardFds } from "../../src/os/fd.ts";
import { currentRuntime, otherRuntime, skipWithout } from "../helpers/runtimes.ts";
import { local } from "./local.ts";
import { Peer } from "./peer.ts";
import { address, bytes, type Session, size } from "./session.ts";

const MiB = 2 ** 20;
const GiB = 2 ** 30;
const skip = skipWithout(otherRuntime);
const PROP = { type: 1, requestedHandleTypes: 1, locationType: 1, locationId: 0 };
const ACCESS = [{ locationType: 1, locationId: 0, flags: 3 }];

async function map(session: Session, handle: bigint, byteLength: number): Promise<bigint> {
  const start = (await session.do("memAddressReserve", size(byteLength), size(0), address(0n))).address;
  await session.do("memMap", address(start), size(byteLength), size(0), address(handle));
  await session.do("memSetAccess", address(start), size(byteLength), ACCESS);
  return start;
}

async function unmap(session: Session, start: bigint, byteLength: number): Promise<void> {
  await session.do("memUnmap", address(start), size(byteLength));
  await session.do("memAddressFree", address(start), size(byteLength));
}

test("physical memory: granularity, access, aliases, and life until the last mapping", async () => {
  const { session } = local();
  const stream = await session.start();
  const before = await session.freeBytes();
  const granularity = (await session.do("memGetAllocationGranularity", PROP, 0)).number();
  assertEquals(granularity, 2 * MiB);
  assertEquals(await session.code("memCreate", size(granularity + 1), PROP), 1);
  assertEquals(await session.code("memCreate", size(0), PROP), 1);
  assertEquals(await session.code("memCreate", size(granularity), { ...PROP, requestedHandleTypes: 8 }), 800);
  assertEquals(await session.code("memCreate", size(16 * GiB), PROP), 2);
  assertEquals(await session.code("memAddressReserve", size(granularity), size(3), address(0n)), 1);

  const handle = (await session.do("memCreate", size(4 * MiB), PROP)).address;
  assertEquals(await session.freeBytes(), before - 4 * MiB);
  const start = (await session.do("memAddressReserve", size(8 * MiB), size(4 * MiB), address(0n))).address;
  assertEquals(start % BigInt(4 * MiB), 0n);
  assertEquals(await session.code("memMap", address(start + 1n), size(4 * MiB), size(0), address(handle)), 1);
  assertEquals(await session.code("memMap", address(start), size(8 * MiB), size(0), address(handle)), 801);
  await session.do("memMap", address(start), size(4 * MiB), size(0), address(handle));
  assertEquals(await session.code("memMap", address(start), size(4 * MiB), size(0), address(handle)), 1);
  assertEquals(await session.code("memsetD8Async", address(start), 1, size(1), address(stream)), 1);
  await session.do("memSetAccess", address(start), size(4 * MiB), ACCESS);
  assertEquals((await session.do("memGetAccess", { type: 1, id: 0 }, address(start))).number(), 3);

  // a second piece behind the first: one contiguous range
  const second = (await session.do("memCreate", size(4 * MiB), PROP)).address;
  await session.do("memMap", address(start + BigInt(4 * MiB)), size(4 * MiB), size(0), address(second));
  await session.do("memSetAccess", address(start), size(8 * MiB), ACCESS);
  await session.fill(start, 6, 8 * MiB, stream);
  assert(await session.isFilled(start, 6, 8 * MiB, stream));

  // an alias of the second piece through its descriptor
  const fd = (await session.do("memExportToShareableHandle", address(second), 1)).i32;
  assertEquals((await session.do("isCloseOnExec", fd)).number(), 1);
  const again = (await session.do("memImportFromShareableHandle", address(BigInt(fd)), 1)).address;
  assertNotEquals(again, second);
  const alias = await map(session, again, 4 * MiB);
  await session.fill(alias, 7, 4 * MiB, stream);
  assert(await session.isFilled(start + BigInt(4 * MiB), 7, 4 * MiB, stream));
  assertEquals(await session.code("memPoolImportFromShareableHandle", address(BigInt(fd)), 1), 801);
  assertEquals(await session.code("memExportToShareableHandle", address(second), 8), 1);

  // released handles cannot be used; the memory lives while it is mapped, and a handle of it can be had again
  const fds = () => readdirSync("/proc/self/fd").length;
  const fdsBefore = fds();
  for (const h of [handle, second, again]) await session.do("memRelease", address(h));
  assertEquals(await session.code("memRelease", address(handle)), 1);
  assertEquals((await session.do("memRetainAllocationHandle", address(start))).address, handle);
  await session.do("memRelease", address(handle));
  assert(await session.isFilled(alias, 7, 4 * MiB, stream));
  assertEquals(await session.freeBytes(), before - 8 * MiB);
  assertEquals(await session.code("memAddressFree", address(start), size(8 * MiB)), 1);
  assertEquals(await session.code("memUnmap", address(start), size(2 * MiB)), 1);
  await unmap(session, alias, 4 * MiB);
  await unmap(session, start, 8 * MiB);
  assertEquals(fds(), fdsBefore - 3);
  assertEquals(await session.code("memsetD8Async", address(start), 1, size(1), address(stream)), 1);
  discardFds(fd);
  assertEquals(await session.freeBytes(), before);
  await session.do("streamDestroy", address(stream));
});

test("a pool's descriptor is no physical memory's", async () => {
  const { session } = local();
  await session.start();
  const pool = await session.createPool();
  const fd = await session.exportPool(pool);
  assertEquals(await session.code("memImportFromShareableHandle", address(BigInt(fd)), 1), 801);
  assertEquals(await session.code("memImportFromShareableHandle", address(54321n), 1), 999);
  discardFds(fd);
  await session.do("memPoolDestroy", address(pool));
});

for (const runtime of [currentRuntime, otherRuntime]) {
  test(`6 GiB of virtual memory shared with ${runtime}`, { skip }, async () => {
    const byteLength = 6 * GiB;
    const { session } = local();
    const stream = await session.start();
    await using peer = await Peer.start(runtime);
    const peerStream = await peer.start();
    const handle = (await session.do("memCreate", size(byteLength), PROP)).address;
    const start = await map(session, handle, byteLength);
    const places = [0n, BigInt(byteLength / 2), BigInt(5 * GiB), BigInt(byteLength - 64)];
    for (const [index, place] of places.entries()) await session.fill(start + place, 10 + index, 64, stream);
    await session.do("streamSynchronize", address(stream));
    const fd = (await session.do("memExportToShareableHandle", address(handle), 1)).i32;
    const peerFd = await peer.sendFd(fd);
    discardFds(fd);
    const imported = (await peer.do("memImportFromShareableHandle", address(BigInt(peerFd)), 1)).address;
    await peer.do("closeFd", peerFd);
    const mapped = await map(peer, imported, byteLength);
    await peer.do("memRelease", address(imported));
    for (const [index, place] of places.entries()) {
      assert(await peer.isFilled(mapped + place, 10 + index, 64, peerStream), `${place}`);
    }
    await peer.fill(mapped + places[3], 99, 64, peerStream);
    await peer.do("streamSynchronize", address(peerStream));
    assert(await session.isFilled(start + places[3], 99, 64, stream));
    await unmap(session, start, byteLength);
    await session.do("memRelease", address(handle));
    assert(await peer.isFilled(mapped + places[2], 12, 64, peerStream));
    await session.do("streamDestroy", address(stream));
  });

  test(`legacy handles with ${runtime}`, { skip }, async () => {
    const { session } = local();
    const stream = await session.start();
    await using peer = await Peer.start(runtime);
    const peerStream = await peer.start();
    const plain = (await peer.do("memAlloc", size(2 * MiB))).address;
    await peer.fill(plain, 3, 2 * MiB, peerStream);
    await peer.do("streamSynchronize", address(peerStream));
    const handle = (await peer.do("ipcGetMemHandle", address(plain))).opaque;
    assertEquals((await peer.do("ipcGetMemHandle", address(plain + 4096n))).opaque, handle);
    assertEquals(await peer.code("ipcOpenMemHandle", bytes(handle), 1), 201);
    const pool = await peer.createPool();
    const pooled = await peer.allocate(pool, 4096, peerStream);
    assertEquals(await peer.code("ipcGetMemHandle", address(pooled)), 1);

    assertEquals(await session.code("ipcOpenMemHandle", bytes(new Uint8Array(64).fill(0x77)), 1), 1);
    const opened = (await session.do("ipcOpenMemHandle", bytes(handle), 1)).address;
    assertEquals((await session.do("ipcOpenMemHandle", bytes(handle), 1)).address, opened);
    assert(await session.isFilled(opened, 3, 2 * MiB, stream));
    await session.do("ipcCloseMemHandle", address(opened));
    assert(await session.isFilled(opened, 3, 2 * MiB, stream));

    // fences work on it, in both processes
    await session.do("memsetD8Async", address(opened), 0, size(8), address(stream));
    await session.do("streamWaitValue64", address(stream), address(opened), { u64: "5" }, 0);
    await peer.do("streamWriteValue64", address(peerStream), address(plain), { u64: "5" }, 0);
    await session.do("streamSynchronize", address(stream));

    // the exporter dies: the mapping stays, and the handle can be opened while it does
    await peer.kill();
    assert(await session.isFilled(opened + 4096n, 3, 4096, stream));
    assertEquals((await session.do("ipcOpenMemHandle", bytes(handle), 1)).address, opened);
    await session.do("ipcCloseMemHandle", address(opened));
    await session.do("ipcCloseMemHandle", address(opened));
    assertEquals(await session.code("ipcCloseMemHandle", address(opened)), 1);
    assertEquals(await session.code("ipcOpenMemHandle", bytes(handle), 1), 1);
    await session.do("streamDestroy", address(stream));
  });

  test(`host pools with ${runtime}: no context needed, a second import is 208, device access must be set`, { skip }, async () => {
    const { session } = local();
    const stream = await session.start();
    const pool = await session.createPool({ locationType: 3, locationId: 0 });
    const pointer = await session.allocate(pool, 4096, stream);
    assertEquals(await session.code("memsetD8Async", address(pointer), 8, size(4096), address(stream)), 1);
    await session.do("memPoolSetAccess", address(pool), ACCESS);
    await session.fill(pointer, 8, 4096, stream);
    await session.do("streamSynchronize", address(stream));
    assertEquals((await session.do("countOther", address(pointer), 4096, 8)).number(), 0);
    const fd = await session.exportPool(pool);
    const data = (await session.do("memPoolExportPointer", address(pointer))).opaque;

    await using peer = await Peer.start(runtime);
    const peerFd = await peer.sendFd(fd);
    discardFds(fd);
    const imported = (await peer.do("memPoolImportFromShareableHandle", address(BigInt(peerFd)), 1)).address;
    const mapped = (await peer.do("memPoolImportPointer", address(imported), bytes(data))).address;
    assertEquals(await peer.code("memPoolImportPointer", address(imported), bytes(data)), 208);
    assertEquals((await peer.do("countOther", address(mapped), 4096, 8)).number(), 0);
    await peer.do("writeHost", address(mapped), bytes(new Uint8Array(4096).fill(9)));
    assertEquals((await session.do("countOther", address(pointer), 4096, 9)).number(), 0);

    const peerStream = await peer.start();
    assertEquals(await peer.code("memsetD8Async", address(mapped), 1, size(16), address(peerStream)), 1);
    await peer.do("memPoolSetAccess", address(imported), ACCESS);
    await peer.do("memsetD8Async", address(mapped), 1, size(16), address(peerStream));
    await peer.do("memFreeAsync", address(mapped), address(peerStream));
    await session.do("memFree", address(pointer));
    await session.do("memPoolDestroy", address(pool));
    await session.do("streamDestroy", address(stream));
  });
}
