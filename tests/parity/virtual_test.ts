/** Physical memory mapped at reserved addresses. Rows VMM-… of docs/driver-behaviour.md. */
import { test } from "node:test";
import { assert, assertEquals, assertNotEquals } from "@std/assert";
import type { MemAccessDesc } from "../../src/driver/driver.ts";
import * as enums from "../../src/driver/enums.ts";
import {
  ALLOCATION_PROP,
  eventually,
  FD,
  isOnGpu,
  MiB,
  ON_DEVICE,
  passFd,
  READ_WRITE_ON_DEVICE,
  type Session,
  startLocal,
  startPeer,
} from "./harness.ts";

const CHUNK = 2 * MiB;
const SECOND = BigInt(CHUNK);
const READ_ON_DEVICE: MemAccessDesc = { ...READ_WRITE_ON_DEVICE, flags: enums.CU_MEM_ACCESS_FLAGS_PROT_READ };
const NONE_ON_DEVICE: MemAccessDesc = { ...READ_WRITE_ON_DEVICE, flags: enums.CU_MEM_ACCESS_FLAGS_PROT_NONE };

/** Chunks side by side, for the device to read and write unless told otherwise. */
async function mapChunks(
  session: Session,
  count: number,
  access?: readonly MemAccessDesc[],
): Promise<{ address: bigint; handles: bigint[] }> {
  const handles: bigint[] = [];
  for (let index = 0; index < count; index++) handles.push(await session.createVirtual(CHUNK));
  return { address: await session.mapVirtual(handles, CHUNK, access), handles };
}

const setAccess = (session: Session, address: bigint, byteLength: number, ...accesses: MemAccessDesc[]): Promise<number> =>
  session.code("memSetAccess", address, byteLength, accesses);

const getAccess = async (session: Session, address: bigint): Promise<number> =>
  (await session.do("memGetAccess", ON_DEVICE, address)).number();

const fillCode = (session: Session, address: bigint, byteLength: number): Promise<number> =>
  session.workCode("memsetD8Async", address, 7, byteLength, session.stream);

// ---- access. What the device refuses may cost a process its context, so it is not the test's own.

test("VMM-01 a mapping without SetAccess cannot be used, and GetAccess gives 0", async () => {
  await using session = await startPeer();
  const { address } = await mapChunks(session, 1, []);
  assertEquals(await getAccess(session, address), 0, "GetAccess");
  assertEquals(await session.byteAt(address), -1, "a read");
  assertEquals(await fillCode(session, address, 1), 1, "a fill");
});

test("VMM-02 GetAccess gives what SetAccess has set", async () => {
  await using session = await startPeer();
  const { address } = await mapChunks(session, 1, []);
  const outcome: Record<number, unknown> = {};
  for (const access of [READ_WRITE_ON_DEVICE, READ_ON_DEVICE, NONE_ON_DEVICE]) {
    outcome[access.flags!] = [await setAccess(session, address, CHUNK, access), await getAccess(session, address)];
  }
  assertEquals(outcome, { 3: [0, 3], 1: [0, 1], 0: [0, 0] });
});

test("VMM-03 memory that may only be read is read and not written", async () => {
  await using session = await startPeer();
  const { address } = await mapChunks(session, 1);
  await session.fill(address, 5);
  assertEquals(await setAccess(session, address, CHUNK, READ_ON_DEVICE), 0, "SetAccess");
  assertEquals(await session.byteAt(address), 5, "a read");
  assertEquals(await fillCode(session, address, 1), 1, "a fill");
});

test("VMM-04 access can be taken away and given back", async () => {
  await using session = await startPeer();
  const { address } = await mapChunks(session, 1);
  await session.fill(address, 5);
  assertEquals(await setAccess(session, address, CHUNK, NONE_ON_DEVICE), 0, "SetAccess to nothing");
  assertEquals(await session.byteAt(address), -1, "a read without access");
  assertEquals(await setAccess(session, address, CHUNK, READ_WRITE_ON_DEVICE), 0, "SetAccess to everything");
  assertEquals(await session.byteAt(address), 5, "a read with access");
});

test("VMM-05 access is set for whole mappings, one or several", async () => {
  await using session = await startPeer();
  const { address } = await mapChunks(session, 2, []);
  const codes = {
    half: await setAccess(session, address, CHUNK / 2, READ_WRITE_ON_DEVICE),
    "one and a half": await setAccess(session, address, CHUNK * 1.5, READ_WRITE_ON_DEVICE),
    one: await setAccess(session, address, CHUNK, READ_WRITE_ON_DEVICE),
    both: await setAccess(session, address, 2 * CHUNK, READ_WRITE_ON_DEVICE),
  };
  assertEquals(codes, { half: 1, "one and a half": 1, one: 0, both: 0 });
});

test("VMM-06 other flags, no descriptors, and a host's access to device memory are refused", async () => {
  await using session = await startPeer();
  const { address } = await mapChunks(session, 1);
  const [host, node] = [enums.CU_MEM_LOCATION_TYPE_HOST, enums.CU_MEM_LOCATION_TYPE_HOST_NUMA];
  const codes = {
    "flags 2": await setAccess(session, address, CHUNK, { ...READ_WRITE_ON_DEVICE, flags: 2 }),
    "no descriptors": await setAccess(session, address, CHUNK),
    HOST: await setAccess(session, address, CHUNK, { ...READ_WRITE_ON_DEVICE, locationType: host }),
    HOST_NUMA: await setAccess(session, address, CHUNK, { ...READ_WRITE_ON_DEVICE, locationType: node }),
  };
  assertEquals(codes, { "flags 2": 1, "no descriptors": 1, HOST: 801, HOST_NUMA: 801 });
});

// ---- mapping and unmapping

test("VMM-07 one of two neighbouring mappings can be unmapped, and the other stays", async () => {
  await using session = await startPeer();
  const { address } = await mapChunks(session, 2);
  await session.fill(address + SECOND, 5);
  assertEquals(await session.code("memUnmap", address, CHUNK), 0, "unmap the first");
  assertEquals(await session.byteAt(address + SECOND), 5, "read the second");
  assertEquals(await session.code("memGetAccess", ON_DEVICE, address), 1, "GetAccess of the first");
  assertEquals(await session.byteAt(address), -1, "read the first");
  assertEquals(await fillCode(session, address + SECOND - 8n, 16), 1, "fill across the border");
});

test("VMM-08 a part of a mapping cannot be unmapped, and the attempt changes nothing", async () => {
  await using session = await startPeer();
  const { address } = await mapChunks(session, 1);
  const { address: large } = await mapChunks(session, 2);
  const handle = await session.createVirtual(2 * CHUNK);
  const whole = await session.mapVirtual([handle], 2 * CHUNK);
  await session.fill(whole, 5);
  const codes = {
    "half a granule": await session.code("memUnmap", address, CHUNK / 2),
    "one of its two granules": await session.code("memUnmap", whole, CHUNK),
    "one and a half mappings": await session.code("memUnmap", large, CHUNK * 1.5),
  };
  assertEquals(codes, { "half a granule": 1, "one of its two granules": 1, "one and a half mappings": 1 });
  assertEquals(await session.byteAt(whole), 5);
});

test("VMM-09 neighbouring mappings can be unmapped by one call", async () => {
  await using session = await startPeer();
  const { address } = await mapChunks(session, 2);
  assertEquals(await session.code("memUnmap", address, 2 * CHUNK), 0);
  assertEquals(await session.byteAt(address + SECOND), -1);
});

test("VMM-10 reserved addresses are freed as they were reserved, once nothing is mapped there", async () => {
  await using session = await startPeer();
  const { address } = await mapChunks(session, 2);
  const free = (byteLength: number) => session.code("memAddressFree", address, byteLength);
  const mapped = await free(2 * CHUNK);
  await session.do("memUnmap", address, 2 * CHUNK);
  assertEquals({ mapped, part: await free(CHUNK), whole: await free(2 * CHUNK) }, { mapped: 1, part: 1, whole: 0 });
});

test("VMM-11 what is mapped cannot be mapped over; an offset, a part and more than there is are not supported", async () => {
  await using session = await startPeer();
  const { address, handles: [handle] } = await mapChunks(session, 1);
  const { address: free } = await mapChunks(session, 2);
  await session.do("memUnmap", free, 2 * CHUNK);
  const large = await session.createVirtual(2 * CHUNK);
  const codes = {
    "mapped addresses": await session.code("memMap", address, CHUNK, 0, handle),
    offset: await session.code("memMap", free, CHUNK, CHUNK, large),
    "more than there is": await session.code("memMap", free, 2 * CHUNK, 0, handle),
  };
  assertEquals(codes, { "mapped addresses": 1, offset: 801, "more than there is": 801 });
});

test("VMM-12 physical memory is mapped whole: its beginning alone is not supported", async () => {
  await using session = await startPeer();
  const { address: free } = await mapChunks(session, 2);
  await session.do("memUnmap", free, 2 * CHUNK);
  const large = await session.createVirtual(2 * CHUNK);
  assertEquals(await session.code("memMap", free, CHUNK, 0, large), 801);
});

test("VMM-13 fills and copies cross the border of two chunks", async () => {
  await using session = await startLocal();
  const { stream } = session;
  const { address } = await mapChunks(session, 2);
  const { address: other } = await mapChunks(session, 2);
  const [from, to] = [address + SECOND - 8n, other + SECOND - 8n];
  const DEVICE = enums.CU_MEMORYTYPE_DEVICE;
  const rows = { srcPitch: 16, dstPitch: 16, WidthInBytes: 4, Height: 2 };
  const codes = {
    fill: await fillCode(session, from, 16),
    "2D fill": await session.workCode("memsetD2D8Async", from, 12, 9, 2, 2, stream),
    copy: await session.workCode("memcpyDtoDAsync", to, from, 16, stream),
    "2D copy": await session.workCode(
      "memcpy2DAsync",
      { ...rows, srcMemoryType: DEVICE, srcDevice: from, dstMemoryType: DEVICE, dstDevice: to + 4n },
      stream,
    ),
  };
  assertEquals(codes, { fill: 0, "2D fill": 0, copy: 0, "2D copy": 0 });
  const filled = Uint8Array.of(9, 9, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 9, 9, 7, 7);
  assertEquals(await session.bytesAt(from, 16), filled, "filled");
  assertEquals(await session.bytesAt(to, 16), Uint8Array.of(9, 9, 7, 7, 9, 9, 7, 7, 7, 7, 7, 7, 9, 9, 7, 7), "copied");
});

test("VMM-14 the same memory mapped twice is an alias", async () => {
  await using session = await startLocal();
  const { address, handles } = await mapChunks(session, 1);
  const alias = await session.mapVirtual(handles, CHUNK);
  assertNotEquals(alias, address);
  await session.fill(alias, 5);
  assertEquals(await session.byteAt(address), 5);
});

// ---- handles

test("VMM-15 an imported handle cannot be exported again; the descriptor that it came by opens it in a third process", async () => {
  await using first = await startLocal();
  await using second = await startPeer();
  await using third = await startPeer();
  const { address, handles: [handle] } = await mapChunks(first, 1);
  await first.fill(address, 5);
  const fd = await passFd(first, await first.exportVirtual(handle), second);
  const imported = await second.importVirtual(fd);
  assertEquals(await second.code("memExportToShareableHandle", imported, FD), 1, "export the imported handle");
  const again = await third.importVirtual(await passFd(second, fd, third));
  const alias = await third.mapVirtual([again], CHUNK);
  assertEquals(await third.byteAt(alias), 5, "read by the third process");
  await third.fill(alias, 6);
  assertEquals(await first.byteAt(address), 6, "written by the third process");
});

test("VMM-16 RetainAllocationHandle gives the handle that is mapped, at any address of it", async () => {
  await using session = await startPeer();
  const { address, handles } = await mapChunks(session, 2);
  for (const [place, handle] of [[0n, handles[0]], [4096n, handles[0]], [SECOND + 1n, handles[1]]]) {
    const retained = await session.call("memRetainAllocationHandle", address + place);
    assertEquals([retained.code, retained.address], [0, handle], `at ${place}`);
    assertEquals(await session.code("memRelease", handle), 0, "the use that was retained");
  }
});

test("VMM-17 RetainAllocationHandle refuses addresses that are only reserved, pool memory and plain memory", async () => {
  await using session = await startPeer();
  const { address } = await mapChunks(session, 1);
  await session.do("memUnmap", address, CHUNK);
  const retain = (at: bigint) => session.code("memRetainAllocationHandle", at);
  const codes = {
    reserved: await retain(address),
    pool: await retain(await session.allocate(await session.createPool())),
    plain: await retain(await session.allocatePlain()),
  };
  assertEquals(codes, { reserved: 1, pool: 1, plain: 1 });
});

test("VMM-18 memory that is mapped outlives its handle, and gives it again", async () => {
  await using session = await startPeer();
  const { address, handles: [handle] } = await mapChunks(session, 1);
  await session.fill(address, 5);
  await session.do("memRelease", handle);
  assertEquals(await session.byteAt(address), 5, "read");
  const retained = await session.call("memRetainAllocationHandle", address);
  assertEquals(retained.code, 0, "retain");
  assertEquals(await session.code("memExportToShareableHandle", retained.address, FD), 0, "export");
  assertEquals(await session.code("memRelease", retained.address), 0, "release");
});

test("VMM-19 memory comes back with its last mapping and its last handle", async () => {
  await using session = await startLocal();
  const byteLength = 512 * MiB;
  const before = await session.freeBytes();
  const takes = async () => before - await session.freeBytes() > byteLength / 2;
  const handle = await session.createVirtual(byteLength);
  const address = await session.mapVirtual([handle], byteLength);
  await session.do("memRelease", handle);
  assert(await takes(), "without a handle, while it is mapped");
  const retained = (await session.do("memRetainAllocationHandle", address)).address;
  await session.do("memUnmap", address, byteLength);
  assert(await takes(), "without a mapping, while there is a handle");
  await session.do("memRelease", retained);
  assert(await eventually(async () => !await takes()), "without either");
});

test("VMM-20 memory without a handle type cannot be exported", async () => {
  await using session = await startLocal();
  const prop = { ...ALLOCATION_PROP, requestedHandleTypes: enums.CU_MEM_HANDLE_TYPE_NONE };
  const handle = (await session.do("memCreate", CHUNK, prop)).address;
  const code = await session.code("memExportToShareableHandle", handle, FD);
  await session.do("memRelease", handle);
  assertEquals(code, 1);
});

test("VMM-21 memory is made in multiples of 2 MiB", async () => {
  await using session = await startLocal();
  const granularities = {
    minimum: (await session.do("memGetAllocationGranularity", ALLOCATION_PROP, enums.CU_MEM_ALLOC_GRANULARITY_MINIMUM)).number(),
    recommended: (await session.do("memGetAllocationGranularity", ALLOCATION_PROP, enums.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
      .number(),
  };
  assertEquals(granularities, { minimum: CHUNK, recommended: CHUNK });
  assertEquals(await session.code("memCreate", CHUNK / 2, ALLOCATION_PROP), 1);
});

const skipUnbound = !isOnGpu && "the driver has no method for it, so there is nothing to simulate";

test("VMM-22 an imported handle tells the properties that its memory was made with, but for the handle types", {
  skip: skipUnbound,
}, async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const handle = await exporter.createVirtual(CHUNK);
  const imported = await importer.importVirtual(await passFd(exporter, await exporter.exportVirtual(handle), importer));
  for (const [session, of] of [[exporter, handle], [importer, imported]] as const) {
    const prop = await session.host("allocate", 32);
    assertEquals(await session.host("callByName", "cuMemGetAllocationPropertiesFromHandle", prop, of), 0);
    const view = new DataView((await session.host("read", prop, 32)).slice().buffer);
    const [type, requestedHandleTypes, locationType, locationId] = [0, 4, 8, 12].map((at) => view.getUint32(at, true));
    const expected = session === exporter ? ALLOCATION_PROP : { ...ALLOCATION_PROP, requestedHandleTypes: 0 };
    assertEquals({ type, requestedHandleTypes, locationType, locationId }, { ...expected });
  }
});
