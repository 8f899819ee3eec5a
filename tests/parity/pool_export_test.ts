/** Pools, as their owner sees them. Rows POOL-EXP-… of docs/driver-behaviour.md. */
import { existsSync } from "node:fs";
import { test } from "node:test";
import { assert, assertEquals } from "@std/assert";
import * as enums from "../../src/driver/enums.ts";
import {
  ALLOCATION_PROP,
  eventually,
  FD,
  HOST_POOL,
  MiB,
  ON_DEVICE,
  passFd,
  poolProps,
  READ_WRITE_ON_DEVICE,
  type Session,
  startLocal,
  startPeer,
} from "./harness.ts";

const NO_HANDLE = { handleTypes: enums.CU_MEM_HANDLE_TYPE_NONE };

test("POOL-EXP-01 a pointer cannot be exported before its pool", async () => {
  await using exporter = await startLocal();
  const pool = await exporter.createPool();
  const address = await exporter.allocate(pool);
  assertEquals(await exporter.code("memPoolExportPointer", address), 1);
  await exporter.exportPool(pool);
  assertEquals(await exporter.code("memPoolExportPointer", address), 0);
});

test("POOL-EXP-02 a pool without a handle type cannot be exported", async () => {
  await using exporter = await startLocal();
  const pool = await exporter.createPool(NO_HANDLE);
  assertEquals(await exporter.code("memPoolExportToShareableHandle", pool, FD), 1);
});

test("POOL-EXP-03 nor can a pointer of it", async () => {
  await using exporter = await startLocal();
  const pool = await exporter.createPool(NO_HANDLE);
  assertEquals(await exporter.code("memPoolExportPointer", await exporter.allocate(pool)), 1);
});

test("POOL-EXP-04 an interior pointer cannot be exported", async () => {
  await using exporter = await startLocal();
  const pool = await exporter.createPool();
  const address = await exporter.allocate(pool);
  await exporter.exportPool(pool);
  assertEquals(await exporter.code("memPoolExportPointer", address + 256n), 1);
});

test("POOL-EXP-05 a pointer can be exported again", async () => {
  await using exporter = await startLocal();
  const pool = await exporter.createPool();
  const address = await exporter.allocate(pool);
  await exporter.exportPool(pool);
  for (let i = 0; i < 10; i++) assertEquals(await exporter.code("memPoolExportPointer", address), 0);
});

test("POOL-EXP-06 every export of a pool is a fresh descriptor", async () => {
  await using exporter = await startLocal();
  const pool = await exporter.createPool();
  const fds = [await exporter.exportPool(pool), await exporter.exportPool(pool), await exporter.exportPool(pool)];
  assertEquals(new Set(fds).size, 3);
});

/** How many of `wanted` allocations of 1 MiB work, and the code of the one that does not. */
async function fillPool(session: Session, maxSize: number, wanted: number): Promise<{ worked: number; code: number }> {
  const pool = await session.createPool({ maxSize });
  const addresses: bigint[] = [];
  let code = 0;
  while (addresses.length < wanted && code === 0) {
    const result = await session.call("memAllocFromPoolAsync", MiB, pool, session.stream);
    code = result.code;
    if (code === 0) addresses.push(result.address);
  }
  for (const address of addresses) await session.do("memFreeAsync", address, session.stream);
  await session.synchronize();
  return { worked: addresses.length, code };
}

test("POOL-EXP-07 maxSize 0 sets no limit", async () => {
  await using exporter = await startLocal();
  const pool = await exporter.createPool({ maxSize: 0 });
  assertEquals((await exporter.call("memAllocFromPoolAsync", 1024 * MiB, pool, exporter.stream)).code, 0);
});

test("POOL-EXP-08 maxSize of 1 byte or 1 MiB is rounded up to 32 MiB", async () => {
  await using exporter = await startLocal();
  assertEquals(await fillPool(exporter, 1, 64), { worked: 32, code: 2 });
  assertEquals(await fillPool(exporter, MiB, 64), { worked: 32, code: 2 });
});

test("POOL-EXP-09 maxSize of 33 MiB gives 64 MiB", async () => {
  await using exporter = await startLocal();
  assertEquals(await fillPool(exporter, 33 * MiB, 64), { worked: 64, code: 0 });
});

test("POOL-EXP-10 allocating and filling 0 bytes works", async () => {
  await using exporter = await startLocal();
  const pool = await exporter.createPool();
  assertEquals(await exporter.code("memAllocFromPoolAsync", 0, pool, exporter.stream), 0);
  assertEquals(await exporter.code("memsetD8Async", await exporter.allocate(pool), 1, 0, exporter.stream), 0);
});

test("POOL-EXP-11 trimming an exported pool gives its memory back", async () => {
  await using exporter = await startLocal();
  const pool = await exporter.createPool();
  await exporter.do("memPoolSetAttribute", pool, enums.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 2n ** 64n - 1n);
  await exporter.exportPool(pool);
  const address = await exporter.allocate(pool);
  await exporter.exportPointer(address);
  await exporter.free(address);
  const reserved = () => exporter.poolAttribute(pool, enums.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  assertEquals(await reserved(), BigInt(32 * MiB));
  assertEquals(await exporter.code("memPoolTrimTo", pool, 0), 0);
  assertEquals(await reserved(), 0n);
});

test("POOL-EXP-12 an allocation outlives its destroyed pool", async () => {
  await using exporter = await startLocal();
  const pool = await exporter.createPool();
  const address = await exporter.allocate(pool);
  await exporter.fill(address, 9);
  assertEquals(await exporter.code("memPoolDestroy", pool), 0);
  assertEquals(await exporter.byteAt(address), 9);
  assertEquals(await exporter.code("memFreeAsync", address, exporter.stream), 0);
});

test("POOL-EXP-13 a pool in host memory of a NUMA node can be shared; a device of the importer needs SetAccess", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const pool = await exporter.createPool(HOST_POOL);
  const address = await exporter.allocate(pool);
  await exporter.synchronize();
  await exporter.host("write", address, Uint8Array.of(41));
  const fd = await passFd(exporter, await exporter.exportPool(pool), importer);
  const imported = await importer.importPool(fd);
  const alias = await importer.importPointer(imported, await exporter.exportPointer(address));
  assertEquals(await importer.host("read", alias, 1), Uint8Array.of(41));

  const access = async () => (await importer.do("memPoolGetAccess", imported, ON_DEVICE)).i32;
  assertEquals(await access(), enums.CU_MEM_ACCESS_FLAGS_PROT_NONE);
  assertEquals(await importer.code("memPoolSetAccess", imported, [READ_WRITE_ON_DEVICE]), 0);
  assertEquals(await access(), enums.CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  await importer.fill(alias, 42);
  assertEquals(await exporter.host("read", address, 1), Uint8Array.of(42));
});

test("POOL-EXP-14 a pool in host memory without a node cannot be shared, and exists without a handle type", async () => {
  await using exporter = await startLocal();
  const host = { locationType: enums.CU_MEM_LOCATION_TYPE_HOST };
  assertEquals(await exporter.code("memPoolCreate", poolProps(host)), 1);
  await exporter.createPool({ ...host, ...NO_HANDLE });
});

const imexChannel = "/dev/nvidia-caps-imex-channels/channel0";
const skip = existsSync(imexChannel) && `this machine has an IMEX channel (${imexChannel})`;

test("POOL-EXP-15 physical memory with a fabric handle needs an IMEX channel", { skip }, async () => {
  await using exporter = await startLocal();
  const prop = { ...ALLOCATION_PROP, requestedHandleTypes: enums.CU_MEM_HANDLE_TYPE_FABRIC };
  assertEquals(await exporter.code("memCreate", 2 * MiB, prop), 800);
});

test("POOL-EXP-16 a pool counts as used what was asked for, and as reserved whole chunks of 32 MiB", async () => {
  await using exporter = await startLocal();
  const pool = await exporter.createPool();
  const address = await exporter.allocate(pool, 10_000_001);
  const attributes = () =>
    Promise.all([
      exporter.poolAttribute(pool, enums.CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
      exporter.poolAttribute(pool, enums.CU_MEMPOOL_ATTR_USED_MEM_HIGH),
      exporter.poolAttribute(pool, enums.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
    ]);
  assertEquals(await attributes(), [10_000_001n, 10_000_001n, 33_554_432n]);
  await exporter.free(address);
  assertEquals((await attributes()).slice(0, 2), [0n, 10_000_001n]);
});

test("POOL-EXP-17 an open descriptor keeps a destroyed pool's memory once a pointer was exported, and only then", async () => {
  await using exporter = await startLocal();
  const isMuch = (bytes: number) => bytes > 0.75 * 1024 * MiB;
  const before = await exporter.freeBytes();
  const comesBack = () => eventually(async () => !isMuch(before - await exporter.freeBytes()));
  for (const withPointer of [false, true]) {
    const pool = await exporter.createPool();
    const fd = await exporter.exportPool(pool);
    const address = await exporter.allocate(pool, 1024 * MiB);
    if (withPointer) await exporter.exportPointer(address);
    assert(isMuch(before - await exporter.freeBytes()), "the allocation takes memory");
    await exporter.free(address);
    await exporter.do("memPoolDestroy", pool);
    if (withPointer) {
      await new Promise((resolve) => setTimeout(resolve, 500));
      assert(isMuch(before - await exporter.freeBytes()), "the descriptor keeps the memory");
      await exporter.closeFd(fd);
    }
    assert(await comesBack(), `the memory has come back, ${withPointer ? "with" : "without"} a pointer exported`);
  }
});

test("POOL-EXP-18 copies of host pool memory must leave its kind open", async () => {
  await using exporter = await startLocal();
  const hosts = await exporter.createPool(HOST_POOL);
  const one = await exporter.allocate(hosts);
  const other = await exporter.allocate(hosts);
  await exporter.synchronize();
  await exporter.host("write", one, Uint8Array.of(51));
  const { stream } = exporter;
  assertEquals(await exporter.code("memcpyDtoDAsync", other, one, 1, stream), 1);
  assertEquals(await exporter.code("memcpyDtoHAsync", other, one, 1, stream), 1);
  assertEquals(await exporter.code("memcpyAsync", other, one, 1, stream), 0);
  await exporter.synchronize();
  assertEquals(await exporter.host("read", other, 1), Uint8Array.of(51));
});

test("POOL-EXP-19 a pool with a fabric handle is made without an IMEX channel", { skip }, async () => {
  await using exporter = await startLocal();
  const fabric = await exporter.call("memPoolCreate", poolProps({ handleTypes: enums.CU_MEM_HANDLE_TYPE_FABRIC }));
  if (fabric.code === 0) await exporter.do("memPoolDestroy", fabric.address);
  assertEquals(fabric.code, 0);
});

test(
  "POOL-EXP-20 memory made for descriptors has no fabric handle, and none is taken in without an IMEX channel",
  { skip },
  async () => {
    await using exporter = await startLocal();
    const handle = await exporter.createVirtual(2 * MiB);
    const FABRIC = enums.CU_MEM_HANDLE_TYPE_FABRIC;
    const codes = {
      export: await exporter.code("memExportToShareableHandle", handle, FABRIC),
      import: await exporter.code("memImportFromShareableHandle", new Uint8Array(64), FABRIC),
    };
    assertEquals(codes, { export: 1, import: 801 });
  },
);

test("SMALL-02 a pool's descriptor is inherited by programs that are started, one of physical memory is not", async () => {
  await using exporter = await startLocal();
  const poolFd = await exporter.exportPool(await exporter.createPool());
  const virtualFd = await exporter.exportVirtual(await exporter.createVirtual(2 * MiB));
  assertEquals([await exporter.host("isCloseOnExec", poolFd), await exporter.host("isCloseOnExec", virtualFd)], [false, true]);
});

test("SMALL-03 allocations of a pool are aligned to 512 bytes", async () => {
  await using exporter = await startLocal();
  const pool = await exporter.createPool();
  const addresses = [await exporter.allocate(pool, 1), await exporter.allocate(pool, 1), await exporter.allocate(pool, 513)];
  assertEquals(addresses.map((address) => address % 512n), [0n, 0n, 0n]);
  assertEquals(addresses[1] - addresses[0], 512n);
});

test("SMALL-04 0 bytes of a pool are at address 0, which may be freed", async () => {
  await using exporter = await startLocal();
  const pool = await exporter.createPool();
  assertEquals((await exporter.do("memAllocFromPoolAsync", 0, pool, exporter.stream)).address, 0n);
  assertEquals(await exporter.code("memFreeAsync", 0n, exporter.stream), 0);
});

test("SMALL-05 the first byte of a pool reserves 32 MiB", async () => {
  await using exporter = await startLocal();
  const pool = await exporter.createPool();
  await exporter.allocate(pool, 1);
  assertEquals(await exporter.poolAttribute(pool, enums.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), BigInt(32 * MiB));
});

test("SMALL-06 the attributes of a new pool", async () => {
  await using exporter = await startLocal();
  const pool = await exporter.createPool();
  const values: bigint[] = [];
  for (let attribute = 1; attribute <= 8; attribute++) values.push(await exporter.poolAttribute(pool, attribute));
  assertEquals(values, [1n, 1n, 1n, 0n, 0n, 0n, 0n, 0n]);
});
