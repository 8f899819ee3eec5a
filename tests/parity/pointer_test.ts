/** What the driver tells of an address. Rows PTR-… of docs/driver-behaviour.md. */
import { test } from "node:test";
import { assertEquals } from "@std/assert";
import * as enums from "../../src/driver/enums.ts";
import { FD, HOST_POOL, isOnGpu, MiB, PAGE, type Session, shareAllocation, startLocal, startPeer } from "./harness.ts";

const { CU_MEMORYTYPE_HOST: HOST, CU_MEMORYTYPE_DEVICE: DEVICE } = enums;
/** Not a multiple of anything, so that rounding shows. */
const BYTES = 10_001;
const CHUNK = 2 * MiB;

/** What decides how memory can be shared, and the driver's numbers for it. */
const ATTRIBUTES = {
  type: enums.CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
  device: enums.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
  start: enums.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
  size: enums.CU_POINTER_ATTRIBUTE_RANGE_SIZE,
  isLegacyCapable: enums.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
  handleTypes: enums.CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
  pool: enums.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
};

const refused = (code: number): string => `result ${code}`;

/** Each attribute, or the result of asking for it. */
async function attributesOf(session: Session, address: bigint): Promise<Record<string, bigint | string>> {
  const values: Record<string, bigint | string> = {};
  for (const [name, number] of Object.entries(ATTRIBUTES)) {
    const result = await session.call("pointerGetAttribute", number, address);
    values[name] = result.code === 0 ? result.long(0) : refused(result.code);
  }
  return values;
}

/** What is expected: memory of the first device that cannot be shared, but for what is given. */
function attributes(
  values: { type: number; start: bigint; size: number; isLegacyCapable?: boolean; handleTypes?: number; pool?: bigint },
): Record<string, bigint | string> {
  const { type, start, size, isLegacyCapable = false, handleTypes = 0, pool = 0n } = values;
  return {
    type: BigInt(type),
    device: 0n,
    start,
    size: BigInt(size),
    isLegacyCapable: isLegacyCapable ? 1n : 0n,
    handleTypes: BigInt(handleTypes),
    pool,
  };
}

/** Base and size of what is around an address, or the result of asking for it. */
async function addressRange(session: Session, address: bigint): Promise<[bigint, bigint] | string> {
  const result = await session.call("memGetAddressRange", address);
  return result.code === 0 ? [result.address, result.long(8)] : refused(result.code);
}

// ---- attributes, each of an address within the memory

test("PTR-01 pool memory that can be shared: its pool, the handle types, the size that was asked for", async () => {
  await using session = await startLocal();
  const pool = await session.createPool();
  const start = await session.allocate(pool, BYTES);
  const expected = attributes({ type: DEVICE, start, size: BYTES, handleTypes: FD, pool });
  assertEquals(await attributesOf(session, start + 100n), expected);
});

test("PTR-02 pool memory that cannot be shared: its pool, no handle types", async () => {
  await using session = await startLocal();
  const pool = await session.createPool({ handleTypes: enums.CU_MEM_HANDLE_TYPE_NONE });
  const start = await session.allocate(pool, BYTES);
  assertEquals(await attributesOf(session, start + 100n), attributes({ type: DEVICE, start, size: BYTES, pool }));
});

test("PTR-03 an import: the imported pool, no handle types", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const { imported: { address: start, pool } } = await shareAllocation(exporter, importer, { byteLength: BYTES });
  assertEquals(await attributesOf(importer, start + 100n), attributes({ type: DEVICE, start, size: BYTES, pool }));
});

test("PTR-04 host pool memory: host memory of a pool, without a begin", async () => {
  await using session = await startLocal();
  const pool = await session.createPool(HOST_POOL);
  const start = await session.allocate(pool, BYTES);
  const expected = attributes({ type: HOST, start: 0n, size: BYTES, handleTypes: FD, pool });
  assertEquals(await attributesOf(session, start + 100n), expected);
});

test("PTR-05 plain memory: capable of a legacy handle, no pool", async () => {
  await using session = await startLocal();
  const start = await session.allocatePlain(BYTES);
  assertEquals(
    await attributesOf(session, start + 100n),
    attributes({ type: DEVICE, start, size: BYTES, isLegacyCapable: true }),
  );
});

test("PTR-06 virtual memory: the range of all reserved addresses, and the handle types of its memory", async () => {
  await using session = await startLocal();
  const handles = [await session.createVirtual(CHUNK), await session.createVirtual(CHUNK)];
  const start = await session.mapVirtual(handles, CHUNK);
  const expected = attributes({ type: DEVICE, start, size: 2 * CHUNK, handleTypes: FD });
  assertEquals(await attributesOf(session, start + 100n), expected, "in the first chunk");
  assertEquals(await attributesOf(session, start + BigInt(CHUNK) + 100n), expected, "in the second chunk");
});

test("PTR-07 addresses that are reserved only are not known", async () => {
  await using session = await startPeer();
  const start = (await session.do("memAddressReserve", CHUNK, 0, 0n)).address;
  const { type, start: first, size } = await attributesOf(session, start + 100n);
  assertEquals({ type, start: first, size }, { type: refused(1), start: refused(1), size: refused(1) });
});

test("PTR-08 registered memory: host memory", async () => {
  await using session = await startLocal();
  const start = await session.host("mapShared", await session.host("createShared", PAGE), PAGE);
  await session.register(start, PAGE);
  assertEquals(await attributesOf(session, start + 100n), attributes({ type: HOST, start, size: PAGE }));
});

const skipUnbound = !isOnGpu && "the driver has no method for it, so there is nothing to simulate";

test("PTR-09 managed memory: device memory that cannot be shared", { skip: skipUnbound }, async () => {
  await using session = await startPeer();
  const out = await session.host("allocate", 8);
  const CU_MEM_ATTACH_GLOBAL = 1n;
  assertEquals(await session.host("callByName", "cuMemAllocManaged", out, BigInt(BYTES), CU_MEM_ATTACH_GLOBAL), 0);
  const start = new DataView((await session.host("read", out, 8)).slice().buffer).getBigUint64(0, true);
  assertEquals(await attributesOf(session, start + 100n), attributes({ type: DEVICE, start, size: BYTES }));
  const isManaged = await session.do("pointerGetAttribute", enums.CU_POINTER_ATTRIBUTE_IS_MANAGED, start);
  assertEquals(isManaged.out[0], 1, "IS_MANAGED");
});

/** Every attribute is refused. */
const UNKNOWN = Object.fromEntries(Object.keys(ATTRIBUTES).map((name) => [name, refused(1)]));

test("PTR-10 pageable memory is not known", async () => {
  await using session = await startLocal();
  const address = await session.host("allocate", PAGE);
  assertEquals({ ...await attributesOf(session, address), around: await addressRange(session, address) }, {
    ...UNKNOWN,
    around: refused(500),
  });
});

test("PTR-11 freed memory is not known", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const { address: pooled, imported } = await shareAllocation(exporter, importer);
  const plain = await exporter.allocatePlain();
  await importer.free(imported.address);
  await exporter.free(pooled);
  await exporter.do("memFree", plain);
  const around = refused(500);
  const all = async (session: Session, address: bigint) => ({
    ...await attributesOf(session, address),
    around: await addressRange(session, address),
  });
  assertEquals(await all(importer, imported.address), { ...UNKNOWN, around }, "import");
  assertEquals(await all(exporter, pooled), { ...UNKNOWN, around }, "pool");
  assertEquals(await all(exporter, plain), { ...UNKNOWN, around }, "plain");
});

// ---- cuMemGetAddressRange, of an address within the memory

test("PTR-12 the range around an address of pool memory and of an import has the size asked for; host pools have none", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const { address, imported } = await shareAllocation(exporter, importer, { byteLength: BYTES });
  const hosts = await exporter.allocate(await exporter.createPool(HOST_POOL), BYTES);
  const ranges = {
    pool: await addressRange(exporter, address + 100n),
    host: await addressRange(exporter, hosts + 100n),
    import: await addressRange(importer, imported.address + 100n),
  };
  const size = BigInt(BYTES);
  assertEquals(ranges, { pool: [address, size], host: refused(500), import: [imported.address, size] });
});

test("PTR-13 so has that of plain memory, and of a legacy handle that was opened", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const address = await exporter.allocatePlain(BYTES);
  const opened = await importer.openMemHandle(await exporter.memHandle(address));
  const ranges = {
    own: await addressRange(exporter, address + 100n),
    opened: await addressRange(importer, opened + 100n),
  };
  assertEquals(ranges, { own: [address, BigInt(BYTES)], opened: [opened, BigInt(BYTES)] });
});

test("PTR-14 the range around an address of virtual memory is one mapping, not what is beside it", async () => {
  await using session = await startLocal();
  const start = await session.mapVirtual([await session.createVirtual(CHUNK), await session.createVirtual(CHUNK)], CHUNK);
  const chunk = BigInt(CHUNK);
  const ranges = [await addressRange(session, start + 100n), await addressRange(session, start + chunk + 100n)];
  assertEquals(ranges, [[start, chunk], [start + chunk, chunk]]);
});

test("PTR-15 the range around an address of registered memory", async () => {
  await using session = await startLocal();
  const start = await session.host("mapShared", await session.host("createShared", PAGE), PAGE);
  await session.register(start, PAGE);
  assertEquals(await addressRange(session, start + 100n), [start, BigInt(PAGE)]);
});
