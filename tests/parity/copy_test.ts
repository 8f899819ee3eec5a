/** Fills and copies. Rows FILL-… and COPY-… of docs/driver-behaviour.md. */
import { test } from "node:test";
import { assertEquals } from "@std/assert";
import * as enums from "../../src/driver/enums.ts";
import type { PlainMemcpy2D } from "./executor.ts";
import { HOST_POOL, PAGE, READ_WRITE_ON_DEVICE, type Session, shareAllocation, startLocal, startPeer } from "./harness.ts";

const HOST = enums.CU_MEMORYTYPE_HOST;
const DEVICE = enums.CU_MEMORYTYPE_DEVICE;
const UNIFIED = enums.CU_MEMORYTYPE_UNIFIED;
const WORK_MS = 120;

/** 0, 1, 2, … */
const counting = (length: number): Uint8Array => Uint8Array.from({ length }, (_, index) => index);

/** Pool memory that begins with the bytes, and is 0 behind them. */
async function allocateWith(session: Session, bytes: Uint8Array = new Uint8Array(0)): Promise<bigint> {
  const address = await session.allocate(await session.createPool());
  await session.fill(address, 0);
  const source = await session.host("allocate", PAGE);
  await session.host("write", source, bytes);
  await session.do("memcpyHtoDAsync", address, source, bytes.byteLength, session.stream);
  await session.synchronize();
  return address;
}

/** Memory of a host pool that begins with the bytes. */
async function allocateOnHost(session: Session, bytes: Uint8Array = new Uint8Array(PAGE)): Promise<bigint> {
  const address = await session.allocate(await session.createPool(HOST_POOL));
  await session.synchronize();
  await session.host("write", address, bytes);
  return address;
}

/** Registered memory that begins with the bytes. Its address is the same for the host and for the device (FENCE-05). */
async function allocateRegistered(session: Session, bytes: Uint8Array = new Uint8Array(PAGE)): Promise<bigint> {
  const address = await session.host("mapShared", await session.host("createShared", PAGE), PAGE);
  await session.host("write", address, bytes);
  return await session.register(address, PAGE);
}

function copy2D(session: Session, copy: PlainMemcpy2D): Promise<number> {
  return session.workCode("memcpy2DAsync", copy, session.stream);
}

// ---- fills

async function assertFills(session: Session, address: bigint, where: string): Promise<void> {
  const { stream } = session;
  await session.fill(address, 0);
  const codes = {
    D8: await session.workCode("memsetD8Async", address, 0x11, 5, stream),
    D16: await session.workCode("memsetD16Async", address + 6n, 0x2233, 2, stream),
    D32: await session.workCode("memsetD32Async", address + 12n, 0x44556677, 1, stream),
  };
  assertEquals(codes, { D8: 0, D16: 0, D32: 0 }, where);
  const expected = [0x11, 0x11, 0x11, 0x11, 0x11, 0, 0x33, 0x22, 0x33, 0x22, 0, 0, 0x77, 0x66, 0x55, 0x44];
  assertEquals(await session.bytesAt(address, 16), Uint8Array.from(expected), where);
}

test("FILL-01 fills with elements of 1, 2 and 4 bytes work on pool memory and on an import", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const { address, imported } = await shareAllocation(exporter, importer);
  await assertFills(exporter, address, "pool memory");
  await assertFills(importer, imported.address, "import");
});

test("FILL-02 an address that is no multiple of the element is refused", async () => {
  await using session = await startPeer();
  const address = await allocateWith(session);
  const { stream } = session;
  const codes = {
    "D16 + 1": await session.workCode("memsetD16Async", address + 1n, 1, 4, stream),
    "D32 + 1": await session.workCode("memsetD32Async", address + 1n, 1, 4, stream),
    "D32 + 2": await session.workCode("memsetD32Async", address + 2n, 1, 4, stream),
  };
  assertEquals(codes, { "D16 + 1": 1, "D32 + 1": 1, "D32 + 2": 1 });
});

async function assertFills2D(session: Session, address: bigint, where: string): Promise<void> {
  const { stream } = session;
  const filled: Record<string, number[]> = {};
  for (
    const [name, method, value, width] of [
      ["D2D8", "memsetD2D8Async", 0x11, 3],
      ["D2D16", "memsetD2D16Async", 0x2233, 1],
      ["D2D32", "memsetD2D32Async", 0x44556677, 1],
    ] as const
  ) {
    await session.fill(address, 0);
    assertEquals(await session.workCode(method, address, 8, value, width, 2, stream), 0, `${name} on ${where}`);
    filled[name] = [...await session.bytesAt(address, 16)];
  }
  assertEquals(filled, {
    D2D8: [0x11, 0x11, 0x11, 0, 0, 0, 0, 0, 0x11, 0x11, 0x11, 0, 0, 0, 0, 0],
    D2D16: [0x33, 0x22, 0, 0, 0, 0, 0, 0, 0x33, 0x22, 0, 0, 0, 0, 0, 0],
    D2D32: [0x77, 0x66, 0x55, 0x44, 0, 0, 0, 0, 0x77, 0x66, 0x55, 0x44, 0, 0, 0, 0],
  }, where);
}

test("FILL-03 fills of rows leave what is between them", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const { address, imported } = await shareAllocation(exporter, importer);
  await assertFills2D(exporter, address, "pool memory");
  await assertFills2D(importer, imported.address, "an import");
});

test("FILL-04 rows whose address or pitch is no multiple of the element are refused", async () => {
  await using session = await startPeer();
  const address = await allocateWith(session);
  const { stream } = session;
  const codes = {
    "D2D16, address": await session.workCode("memsetD2D16Async", address + 1n, 8, 1, 1, 2, stream),
    "D2D16, pitch": await session.workCode("memsetD2D16Async", address, 9, 1, 1, 2, stream),
    "D2D32, address": await session.workCode("memsetD2D32Async", address + 2n, 8, 1, 1, 2, stream),
    "D2D32, pitch": await session.workCode("memsetD2D32Async", address, 10, 1, 1, 2, stream),
  };
  assertEquals(codes, { "D2D16, address": 1, "D2D16, pitch": 1, "D2D32, address": 1, "D2D32, pitch": 1 });
});

test("FILL-05 a pitch below the bytes of a row is refused", async () => {
  await using session = await startLocal();
  const address = await allocateWith(session);
  assertEquals(await session.workCode("memsetD2D8Async", address, 4, 1, 5, 2, session.stream), 1);
});

test("FILL-06 no rows, or rows of no elements, are no work", async () => {
  await using session = await startLocal();
  const address = await allocateWith(session);
  const codes = {
    width: await session.workCode("memsetD2D8Async", address, 8, 1, 0, 2, session.stream),
    height: await session.workCode("memsetD2D8Async", address, 8, 1, 2, 0, session.stream),
  };
  assertEquals(codes, { width: 0, height: 0 });
});

test("FILL-07 a fill past the end of an allocation is refused", async () => {
  await using session = await startLocal();
  const address = await allocateWith(session);
  assertEquals(await session.workCode("memsetD8Async", address, 1, PAGE + 512, session.stream), 1);
});

test("FILL-08 a fill of host pool memory needs access, which neither the owner's device has nor an importer's", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const { address, imported } = await shareAllocation(exporter, importer, { props: HOST_POOL });
  const fill = (session: Session, at: bigint) => session.workCode("memsetD8Async", at, 1, 1, session.stream);
  const owner = await fill(exporter, address);
  const before = await fill(importer, imported.address);
  await importer.do("memPoolSetAccess", imported.pool, [READ_WRITE_ON_DEVICE]);
  assertEquals({ owner, before, after: await fill(importer, imported.address) }, { owner: 1, before: 1, after: 0 });
});

test("FILL-09 registered memory can be filled", async () => {
  await using session = await startLocal();
  const address = await allocateRegistered(session);
  assertEquals(await session.workCode("memsetD32Async", address, 0x01020304, 1, session.stream), 0);
  assertEquals(await session.host("read", address, 8), Uint8Array.of(4, 3, 2, 1, 0, 0, 0, 0));
});

// ---- copies of rows

/** 2 rows of 3 bytes, from pitch 8 at (2, 1) to pitch 4 at (1, 0). */
const BLOCK = { srcPitch: 8, srcXInBytes: 2, srcY: 1, dstPitch: 4, dstXInBytes: 1, WidthInBytes: 3, Height: 2 };
const SOURCE = counting(24);
const TARGET = Uint8Array.of(0, 10, 11, 12, 0, 18, 19, 20);
/** 8 bytes in one row. */
const ROW = { srcPitch: 8, dstPitch: 8, WidthInBytes: 8, Height: 1 };

test("COPY-01 rows are copied within a device by pitch and offset, on an import too", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const { address, imported } = await shareAllocation(exporter, importer);
  for (const [where, session, to] of [["owner", exporter, address], ["importer", importer, imported.address]] as const) {
    await session.fill(to, 0);
    const source = await allocateWith(session, SOURCE);
    const copy = { ...BLOCK, srcMemoryType: DEVICE, srcDevice: source, dstMemoryType: DEVICE, dstDevice: to };
    assertEquals(await copy2D(session, copy), 0, where);
    assertEquals(await session.bytesAt(to, 8), TARGET, where);
  }
});

test("COPY-02 rows are copied from and to pageable memory", async () => {
  await using session = await startLocal();
  const [source, target] = [await session.host("allocate", 64), await session.host("allocate", 64)];
  await session.host("write", source, SOURCE);
  const up = await allocateWith(session);
  const from = { ...BLOCK, srcMemoryType: HOST, srcHost: source, dstMemoryType: DEVICE, dstDevice: up };
  assertEquals(await copy2D(session, from), 0, "host to device");
  assertEquals(await session.bytesAt(up, 8), TARGET, "host to device");
  const down = await allocateWith(session, SOURCE);
  const to = { ...BLOCK, srcMemoryType: DEVICE, srcDevice: down, dstMemoryType: HOST, dstHost: target };
  assertEquals(await copy2D(session, to), 0, "device to host");
  assertEquals(await session.host("read", target, 8), TARGET, "device to host");
});

test("COPY-03 a pitch below the offset and the bytes of a row is not refused", async () => {
  await using session = await startLocal();
  const [source, target] = [await allocateWith(session), await allocateWith(session)];
  const copy = { ...BLOCK, srcMemoryType: DEVICE, srcDevice: source, dstMemoryType: DEVICE, dstDevice: target };
  const codes = {
    source: await copy2D(session, { ...copy, srcPitch: 4 }),
    target: await copy2D(session, { ...copy, dstPitch: 3 }),
  };
  assertEquals(codes, { source: 0, target: 0 });
});

test("COPY-04 without a pitch the rows follow each other", async () => {
  await using session = await startLocal();
  const [source, target] = [await allocateWith(session, SOURCE), await allocateWith(session)];
  const copy = { srcMemoryType: DEVICE, srcDevice: source, dstMemoryType: DEVICE, dstDevice: target, WidthInBytes: 4, Height: 3 };
  assertEquals(await copy2D(session, copy), 0);
  assertEquals(await session.bytesAt(target, 16), Uint8Array.of(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 0, 0, 0));
});

test("COPY-05 no rows, or rows of no bytes, are no work", async () => {
  await using session = await startLocal();
  const [source, target] = [await allocateWith(session), await allocateWith(session)];
  const copy = { ...ROW, srcMemoryType: DEVICE, srcDevice: source, dstMemoryType: DEVICE, dstDevice: target };
  const codes = {
    width: await copy2D(session, { ...copy, WidthInBytes: 0 }),
    height: await copy2D(session, { ...copy, Height: 0 }),
  };
  assertEquals(codes, { width: 0, height: 0 });
});

/** What copies of one row give that call both sides' memory HOST, DEVICE or UNIFIED, and whether the bytes arrived. */
async function copyByTypes(session: Session, make: (session: Session, bytes?: Uint8Array) => Promise<bigint>): Promise<unknown> {
  const outcome: Record<string, unknown> = {};
  for (const [name, type] of Object.entries({ HOST, DEVICE, UNIFIED })) {
    const [source, target] = [await make(session, SOURCE), await make(session)];
    const addresses = type === HOST ? { srcHost: source, dstHost: target } : { srcDevice: source, dstDevice: target };
    const code = await copy2D(session, { ...ROW, ...addresses, srcMemoryType: type, dstMemoryType: type });
    outcome[name] = [code, (await session.host("read", target, 8))[7]];
  }
  return outcome;
}

test("COPY-06 copies of rows take host pool memory as HOST or UNIFIED, not as DEVICE", async () => {
  await using session = await startLocal();
  assertEquals(await copyByTypes(session, allocateOnHost), { HOST: [0, 7], DEVICE: [1, 0], UNIFIED: [0, 7] });
});

test("COPY-07 copies of rows take registered memory as HOST, DEVICE or UNIFIED", async () => {
  await using session = await startLocal();
  assertEquals(await copyByTypes(session, allocateRegistered), { HOST: [0, 7], DEVICE: [0, 7], UNIFIED: [0, 7] });
});

test("COPY-08 copies of rows take pageable memory as UNIFIED", async () => {
  await using session = await startLocal();
  const [source, target] = [await session.host("allocate", 8), await allocateWith(session)];
  await session.host("write", source, counting(8));
  const copy = { ...ROW, srcMemoryType: UNIFIED, srcDevice: source, dstMemoryType: UNIFIED, dstDevice: target };
  assertEquals(await copy2D(session, copy), 0);
  assertEquals(await session.bytesAt(target, 8), counting(8));
});

test("COPY-09 rows are copied between a device and host pool memory as HOST", async () => {
  await using session = await startLocal();
  const [hosts, device, back] = [
    await allocateOnHost(session, SOURCE),
    await allocateWith(session),
    await allocateOnHost(session),
  ];
  const up = { ...BLOCK, srcMemoryType: HOST, srcHost: hosts, dstMemoryType: DEVICE, dstDevice: device };
  assertEquals(await copy2D(session, up), 0, "to the device");
  assertEquals(await session.bytesAt(device, 8), TARGET, "to the device");
  const down = { ...ROW, srcMemoryType: DEVICE, srcDevice: device, dstMemoryType: HOST, dstHost: back };
  assertEquals(await copy2D(session, down), 0, "from the device");
  assertEquals(await session.host("read", back, 8), TARGET, "from the device");
});

// ---- copies of bytes

test("COPY-10 cuMemcpyAsync takes registered memory as its source and as its target", async () => {
  await using session = await startLocal();
  const { stream } = session;
  const [source, device, target] = [
    await allocateRegistered(session, SOURCE),
    await allocateWith(session),
    await allocateRegistered(session),
  ];
  assertEquals(await session.workCode("memcpyAsync", device, source, 8, stream), 0, "source");
  assertEquals(await session.bytesAt(device, 8), counting(8), "source");
  assertEquals(await session.workCode("memcpyAsync", target, device, 8, stream), 0, "target");
  assertEquals(await session.host("read", target, 8), counting(8), "target");
});

test("COPY-11 cuMemcpyAsync takes pageable memory", async () => {
  await using session = await startLocal();
  const { stream } = session;
  const [source, device, target] = [
    await session.host("allocate", 8),
    await allocateWith(session),
    await session.host("allocate", 8),
  ];
  await session.host("write", source, counting(8));
  assertEquals(await session.workCode("memcpyAsync", device, source, 8, stream), 0, "source");
  assertEquals(await session.workCode("memcpyAsync", target, device, 8, stream), 0, "target");
  assertEquals(await session.host("read", target, 8), counting(8));
});

test("COPY-12 cuMemcpyHtoDAsync and cuMemcpyDtoHAsync take registered memory as the host's, cuMemcpyDtoDAsync as a device's", async () => {
  await using session = await startLocal();
  const { stream } = session;
  const [source, device] = [await allocateRegistered(session, SOURCE), await allocateWith(session)];
  const targets = [await allocateRegistered(session), await allocateRegistered(session)];
  const codes = {
    HtoD: await session.workCode("memcpyHtoDAsync", device, source, 8, stream),
    DtoH: await session.workCode("memcpyDtoHAsync", targets[0], device, 8, stream),
    DtoD: await session.workCode("memcpyDtoDAsync", targets[1], source, 8, stream),
  };
  assertEquals(codes, { HtoD: 0, DtoH: 0, DtoD: 0 });
  for (const target of targets) assertEquals(await session.host("read", target, 8), counting(8));
});

/** What arrives on the device of a byte that the host changes from 1 to 2 behind the call, while the stream is busy. */
async function copiedWhileBusy(session: Session, source: bigint): Promise<number> {
  const device = await allocateWith(session);
  await session.host("write", source, Uint8Array.of(1));
  await session.host("prepareBusy", session.stream);
  await session.host("keepBusy", session.stream, WORK_MS);
  await session.do("memcpyHtoDAsync", device, source, 1, session.stream);
  await session.host("write", source, Uint8Array.of(2));
  await session.synchronize();
  return await session.byteAt(device);
}

test("COPY-13 a copy reads registered memory when it runs, pageable memory when it is queued", async () => {
  await using session = await startLocal();
  const outcome = {
    registered: await copiedWhileBusy(session, await allocateRegistered(session)),
    pageable: await copiedWhileBusy(session, await session.host("allocate", PAGE)),
  };
  assertEquals(outcome, { registered: 2, pageable: 1 });
});

test("COPY-14 a copy past the end of an allocation is refused", async () => {
  await using session = await startLocal();
  const { stream } = session;
  const [one, other, hosts] = [
    await allocateWith(session),
    await allocateWith(session),
    await session.host("allocate", 2 * PAGE),
  ];
  const codes = {
    DtoD: await session.workCode("memcpyDtoDAsync", one, other, PAGE + 512, stream),
    HtoD: await session.workCode("memcpyHtoDAsync", one, hosts, PAGE + 512, stream),
    DtoH: await session.workCode("memcpyDtoHAsync", hosts, one, PAGE + 512, stream),
  };
  assertEquals(codes, { DtoD: 1, HtoD: 1, DtoH: 1 });
});
