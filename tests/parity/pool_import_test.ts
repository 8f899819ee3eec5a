/** Pools, as another process sees them. Rows POOL-IMP-… of docs/driver-behaviour.md. */
import { test } from "node:test";
import { assert, assertEquals, assertNotEquals } from "@std/assert";
import type { MemPoolProps } from "../../src/driver/driver.ts";
import * as enums from "../../src/driver/enums.ts";
import {
  eventually,
  FD,
  HOST_POOL,
  isOnGpu,
  MiB,
  ON_DEVICE,
  PAGE,
  passFd,
  shareAllocation,
  startLocal,
  startPeer,
} from "./harness.ts";

const THRESHOLD = enums.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;

test("POOL-IMP-01 an imported pointer is readable and writable at once on the pool's device", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const { address, imported } = await shareAllocation(exporter, importer, { value: 11 });
  assertEquals(await importer.byteAt(imported.address), 11);
  await importer.fill(imported.address, 12);
  assertEquals(await exporter.byteAt(address), 12);
  const access = (await importer.do("memPoolGetAccess", imported.pool, ON_DEVICE)).i32;
  assertEquals(access, enums.CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
});

test("POOL-IMP-02 a closed descriptor, or a socket, is no pool", async () => {
  await using importer = await startPeer();
  assertEquals(await importer.code("memPoolImportFromShareableHandle", 999n, FD), 999);
  const socket = await importer.host("openSocket");
  assertEquals(await importer.code("memPoolImportFromShareableHandle", BigInt(socket), FD), 999);
});

test("POOL-IMP-03 descriptor 0 is refused by its number", async () => {
  await using importer = await startPeer();
  assertEquals(await importer.code("memPoolImportFromShareableHandle", 0n, FD), 1);
});

test("POOL-IMP-04 64 bytes of garbage are no pointer", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const { imported } = await shareAllocation(exporter, importer);
  assertEquals(await importer.code("memPoolImportPointer", imported.pool, new Uint8Array(64).fill(7)), 1);
});

test("POOL-IMP-05 a second import of a pointer is the same mapping, and the first free ends it", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const { data, imported } = await shareAllocation(exporter, importer, { value: 13 });
  assertEquals(await importer.importPointer(imported.pool, data), imported.address);
  await importer.free(imported.address);
  assert(await importer.byteAt(imported.address) < 0);
  assertEquals(await importer.code("memFreeAsync", imported.address, importer.stream), 1);
  assertEquals(await importer.byteAt(await importer.importPointer(imported.pool, data)), 13);
});

test("POOL-IMP-06 a second import of a pool is the same handle, and leaks no descriptor", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const { imported } = await shareAllocation(exporter, importer);
  const before = await importer.host("countFds");
  for (let i = 0; i < 200; i++) assertEquals(await importer.importPool(imported.fd), imported.pool);
  assertEquals(await importer.host("countFds"), before);
});

test("POOL-IMP-07 an imported pool gives no allocations", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const { imported } = await shareAllocation(exporter, importer);
  assertEquals(await importer.code("memAllocFromPoolAsync", PAGE, imported.pool, importer.stream), 1);
});

test("POOL-IMP-08 an imported pool has no attributes, no trim and no export", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const { pool, address } = (await shareAllocation(exporter, importer)).imported;
  for (let attribute = 1; attribute <= 8; attribute++) {
    assertEquals(await importer.code("memPoolGetAttribute", pool, attribute), 1, `getting attribute ${attribute}`);
  }
  assertEquals(await importer.code("memPoolSetAttribute", pool, THRESHOLD, 0n), 1);
  assertEquals(await importer.code("memPoolTrimTo", pool, 0), 1);
  assertEquals(await importer.code("memPoolExportToShareableHandle", pool, FD), 1);
  assertEquals(await importer.code("memPoolExportPointer", address), 1);
});

test("POOL-IMP-09 an imported pool cannot be destroyed, and the attempt changes nothing", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const { pool, data, imported } = await shareAllocation(exporter, importer, { value: 14 });
  const second = await exporter.allocate(pool);
  await exporter.fill(second, 15);
  assertEquals(await importer.code("memPoolDestroy", imported.pool), 1);
  assertEquals(await importer.byteAt(imported.address), 14);
  assertEquals(await importer.importPointer(imported.pool, data), imported.address);
  assertEquals(await importer.importPool(imported.fd), imported.pool);
  const other = await importer.importPointer(imported.pool, await exporter.exportPointer(second));
  assertEquals(await importer.byteAt(other), 15);
});

test("POOL-IMP-10 an imported pool does not need its descriptor any more", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const { pool, imported } = await shareAllocation(exporter, importer);
  await importer.host("closeFd", imported.fd);
  const second = await exporter.allocate(pool);
  await exporter.fill(second, 16);
  const other = await importer.importPointer(imported.pool, await exporter.exportPointer(second));
  assertEquals(await importer.byteAt(other), 16);
});

test("POOL-IMP-11 a process may import its own pool: an alias at another address", async () => {
  await using session = await startLocal();
  const { pool, address, imported } = await shareAllocation(session, session, { value: 17 });
  assertNotEquals(imported.pool, pool);
  assertNotEquals(imported.address, address);
  assertEquals(await session.byteAt(imported.address), 17);
  await session.free(imported.address);
  assertEquals(await session.byteAt(address), 17);
});

test("POOL-IMP-12 a host pool can be imported without a context, and an import freed", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer({ context: false });
  const pool = await exporter.createPool(HOST_POOL);
  const address = await exporter.allocate(pool);
  await exporter.synchronize();
  await exporter.host("write", address, Uint8Array.of(18));
  const fd = await passFd(exporter, await exporter.exportPool(pool), importer);
  const imported = await importer.importPool(fd);
  const data = await exporter.exportPointer(address);
  const alias = (await importer.do("memPoolImportPointer", imported, data)).address;
  assertEquals(await importer.host("read", alias, 1), Uint8Array.of(18));
  await importer.do("memFree", alias);
  assertEquals((await importer.do("memPoolImportPointer", imported, data)).address, alias);
});

test("POOL-IMP-13 a second import of a host pool's pointer is refused", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const { data, imported } = await shareAllocation(exporter, importer, { props: HOST_POOL });
  assertEquals(await importer.code("memPoolImportPointer", imported.pool, data), 208);
});

test("POOL-IMP-14 memory that was allocated again at an address is imported at the old import's address", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const { pool, address, imported } = await shareAllocation(exporter, importer, { value: 19 });
  await exporter.allocate(pool); // keeps the pool's memory reserved
  await exporter.free(address);
  assertEquals(await exporter.allocate(pool), address);
  await exporter.fill(address, 20);
  const again = await exporter.exportPointer(address);
  assertEquals(await importer.importPointer(imported.pool, again), imported.address);
  assertEquals(await importer.byteAt(imported.address), 20);
});

test("POOL-IMP-15 a descriptor of the other kind is refused", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const poolFd = await passFd(exporter, await exporter.exportPool(await exporter.createPool()), importer);
  const physical = await exporter.createVirtual(2 * MiB);
  const virtualFd = await passFd(exporter, await exporter.exportVirtual(physical), importer);
  assertEquals(await importer.code("memPoolImportFromShareableHandle", BigInt(virtualFd), FD), 801);
  assertEquals(await importer.code("memImportFromShareableHandle", BigInt(poolFd), FD), 801);
});

test("POOL-IMP-16 a descriptor is NVIDIA's control device; the simulator's is sealed shared memory", async () => {
  await using exporter = await startLocal();
  const physical = await exporter.createVirtual(2 * MiB);
  for (const fd of [await exporter.exportPool(await exporter.createPool()), await exporter.exportVirtual(physical)]) {
    const { kind, deviceMajor, deviceMinor } = await exporter.host("inspectFd", fd);
    if (isOnGpu) assertEquals([kind, deviceMajor, deviceMinor], ["character device", 195, 255]);
    else assertEquals(kind, "regular file");
  }
});

test("POOL-IMP-17 a pointer that the exporter has freed is imported, and shows its next owner's bytes", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const { pool, imported } = await shareAllocation(exporter, importer);
  const freed = await exporter.allocate(pool);
  await exporter.fill(freed, 21);
  const data = await exporter.exportPointer(freed);
  await exporter.free(freed);
  const stale = await importer.importPointer(imported.pool, data);
  assertEquals(await exporter.allocate(pool), freed);
  await exporter.fill(freed, 77);
  assertEquals(await importer.byteAt(stale), 77);
});

test("POOL-IMP-18 cuMemFree and cuMemFreeAsync both end an import", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const { data, imported } = await shareAllocation(exporter, importer);
  assertEquals(await importer.code("memFree", imported.address), 0);
  assert(await importer.byteAt(imported.address) < 0);
  const again = await importer.importPointer(imported.pool, data);
  assertEquals(await importer.code("memFreeAsync", again, importer.stream), 0);
  await importer.synchronize();
  assert(await importer.byteAt(again) < 0);
});

test("POOL-IMP-19 an import knows its base and the size that the exporter asked for", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const { imported } = await shareAllocation(exporter, importer, { byteLength: 10_001 });
  const range = await importer.do("memGetAddressRange", imported.address);
  assertEquals([range.long(0), range.number(8)], [imported.address, 10_001]);
});

test("POOL-IMP-20 imports survive the exporter's SIGKILL", async () => {
  await using exporter = await startPeer();
  await using importer = await startLocal();
  const { pool, imported } = await shareAllocation(exporter, importer, { value: 22 });
  const second = await exporter.allocate(pool);
  await exporter.fill(second, 23);
  const data = await exporter.exportPointer(second);
  await exporter.kill();
  assertEquals(await importer.byteAt(imported.address), 22);
  assertEquals(await importer.code("memFreeAsync", imported.address, importer.stream), 0);
  assertEquals(await importer.byteAt(await importer.importPointer(imported.pool, data)), 23);
});

// Much, because a process's context takes memory too, and comes and goes with it
const MUCH = 3072 * MiB;
const isMuch = (bytes: number) => bytes > MUCH * 0.75;

test("POOL-IMP-21 a killed importer does not keep what the exporter frees", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const before = await exporter.freeBytes();
  const { pool, exportedFd, address } = await shareAllocation(exporter, importer, { byteLength: MUCH });
  await exporter.closeFd(exportedFd);
  assert(isMuch(before - await exporter.freeBytes()), "the allocation takes memory");
  await importer.kill();
  await exporter.free(address);
  await exporter.do("memPoolDestroy", pool);
  assert(await eventually(async () => !isMuch(before - await exporter.freeBytes())), "the memory has come back");
});

test("POOL-IMP-22 memory of a destroyed pool stays in use until its importer has gone", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const before = await exporter.freeBytes();
  const { pool, exportedFd, address } = await shareAllocation(exporter, importer, { byteLength: MUCH, value: 24 });
  await exporter.closeFd(exportedFd);
  await exporter.free(address);
  await exporter.do("memPoolDestroy", pool);
  assert(isMuch(before - await exporter.freeBytes()), "the importer keeps the memory");
  await importer.kill();
  assert(await eventually(async () => !isMuch(before - await exporter.freeBytes())), "the memory has come back");
});

test("POOL-IMP-24 an open descriptor keeps the memory of a destroyed pool that was imported", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const before = await exporter.freeBytes();
  const { pool, exportedFd, address } = await shareAllocation(exporter, importer, { byteLength: MUCH });
  await importer.kill();
  await exporter.free(address);
  await exporter.do("memPoolDestroy", pool);
  await new Promise((resolve) => setTimeout(resolve, 1000));
  assert(isMuch(before - await exporter.freeBytes()), "the descriptor keeps the memory");
  await exporter.closeFd(exportedFd);
  assert(await eventually(async () => !isMuch(before - await exporter.freeBytes())), "the memory has come back");
});

test("POOL-IMP-23 10,000 imports and frees leave no descriptor and no memory behind", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const { data, imported } = await shareAllocation(exporter, importer, { byteLength: MiB });
  await importer.free(imported.address);
  const [fds, bytes] = [await importer.host("countFds"), await importer.freeBytes()];
  assertEquals(await importer.host("churnImports", imported.pool, data, importer.stream, 10_000), 0);
  assertEquals(await importer.host("countFds"), fds);
  assert(Math.abs(await importer.freeBytes() - bytes) < 64 * MiB, "the device's memory is the same");
});

const UNIT = 64 * 1024;

/**
 * An importer that still has an old import mapped when a new pointer comes. The owner allocates `before`, shares the one with
 * the index `old`, frees them all, and allocates `after` in their place. Lengths are in units.
 */
async function startOverlap(before: readonly number[], old: number, after: readonly number[], now: number, props?: MemPoolProps) {
  const exporter = await startLocal();
  const importer = await startPeer();
  const pool = await exporter.createPool(props);
  const imported = await importer.importPool(await passFd(exporter, await exporter.exportPool(pool), importer));
  await exporter.allocate(pool, UNIT); // keeps the pool's memory reserved
  const allocate = async (units: readonly number[]) => {
    const addresses: bigint[] = [];
    for (const count of units) addresses.push(await exporter.allocate(pool, count * UNIT));
    return addresses;
  };
  const first = await allocate(before);
  const oldAddress = await importer.importPointer(imported, await exporter.exportPointer(first[old]));
  for (const address of first) await exporter.free(address);
  const second = await allocate(after);
  assertEquals(second[0], first[0], "the same place");
  for (const [index, address] of second.entries()) {
    if (props === undefined) await exporter.fill(address, 50 + index, after[index] * UNIT);
  }
  return {
    importer,
    imported,
    data: await exporter.exportPointer(second[now]),
    oldAddress,
    newAddress: oldAddress + second[now] - first[old],
    async rangeOf(address: bigint): Promise<{ start: bigint; units: number }> {
      const range = await importer.do("memGetAddressRange", address);
      return { start: range.address, units: range.number(8) / UNIT };
    },
    async [Symbol.asyncDispose](): Promise<void> {
      await importer[Symbol.asyncDispose]();
      await exporter[Symbol.asyncDispose]();
    },
  };
}

test("POOL-IMP-25 a smaller allocation at an old import's address keeps the old size", async () => {
  await using t = await startOverlap([4], 0, [2, 2], 0);
  assertEquals(await t.importer.importPointer(t.imported, t.data), t.oldAddress);
  assertEquals(await t.rangeOf(t.oldAddress), { start: t.oldAddress, units: 4 });
  assertEquals(await t.importer.byteAt(t.oldAddress), 50);
  await t.importer.free(t.oldAddress);
  assertEquals(await t.importer.code("memFree", t.oldAddress), 1);
});

test("POOL-IMP-26 a larger allocation at an old import's address keeps the old size", async () => {
  await using t = await startOverlap([2], 0, [4], 0);
  assertEquals(await t.importer.importPointer(t.imported, t.data), t.oldAddress);
  assertEquals(await t.rangeOf(t.oldAddress), { start: t.oldAddress, units: 2 });
  const last = t.oldAddress + BigInt(4 * UNIT - 1);
  assertEquals(await t.importer.byteAt(last), -1);
  await t.importer.free(t.oldAddress);
  assertEquals(await t.importer.importPointer(t.imported, t.data), t.oldAddress);
  assertEquals(await t.importer.byteAt(last), 50);
});

test("POOL-IMP-27 an import that begins inside an old one cannot be freed before that", async () => {
  await using t = await startOverlap([4], 0, [2, 2], 1);
  const { importer, oldAddress, newAddress } = t;
  assertEquals(await importer.importPointer(t.imported, t.data), newAddress);
  assertEquals(await t.rangeOf(newAddress), { start: oldAddress, units: 4 });
  assertEquals(await importer.byteAt(newAddress), 51);
  assertEquals(await importer.code("memFree", newAddress), 1);
  await importer.do("memFree", oldAddress);
  assertEquals(await t.rangeOf(newAddress), { start: newAddress, units: 2 });
  assertEquals(await importer.byteAt(newAddress), 51);
  await importer.do("memFree", newAddress);
});

test("POOL-IMP-28 an import that begins before an old one and reaches into it is freed in either order", async () => {
  for (const isOldFirst of [true, false]) {
    await using t = await startOverlap([2, 2], 1, [4], 0);
    const { importer, oldAddress, newAddress } = t;
    assertEquals(await importer.importPointer(t.imported, t.data), newAddress);
    assertEquals(await t.rangeOf(oldAddress), { start: oldAddress, units: 2 });
    assertEquals(await t.rangeOf(newAddress), { start: newAddress, units: 4 });
    for (const address of isOldFirst ? [oldAddress, newAddress] : [newAddress, oldAddress]) await importer.do("memFree", address);
  }
});

test("POOL-IMP-29 host memory that overlaps an old import is not imported", async () => {
  for (const [before, old, after, now] of [[[4], 0, [2, 2], 0], [[4], 0, [2, 2], 1], [[2, 2], 1, [4], 0]] as const) {
    await using t = await startOverlap(before, old, after, now, HOST_POOL);
    assertEquals(await t.importer.code("memPoolImportPointer", t.imported, t.data), 208);
  }
});
