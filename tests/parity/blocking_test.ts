/** Which calls wait for queued work. Rows BLOCK-… of docs/driver-behaviour.md. */
import { test } from "node:test";
import { assert, assertEquals } from "@std/assert";
import { FD, MiB, PAGE, passFd, type Result, type Session, shareAllocation, startLocal, startPeer } from "./harness.ts";

const WORK_MS = 120;

interface Blocked {
  readonly code: number;
  readonly ms: number;
  /** From the call until the work was done. */
  readonly workMs: number;
}

/** Makes a call behind queued work. */
async function behindWork(session: Session, call: () => Promise<Result>): Promise<Blocked> {
  await session.host("prepareBusy", session.stream);
  await session.host("keepBusy", session.stream, WORK_MS);
  const start = performance.now();
  const { code, ms } = await call();
  await session.synchronize();
  return { code, ms, workMs: performance.now() - start };
}

async function assertBlocks(session: Session, call: () => Promise<Result>): Promise<void> {
  const { code, ms, workMs } = await behindWork(session, call);
  assertEquals(code, 0);
  assert(ms > workMs / 2, `kept the host for ${ms} ms of ${workMs} ms of work, expected more than half`);
}

async function assertDoesNotBlock(session: Session, call: () => Promise<Result>): Promise<void> {
  const { code, ms, workMs } = await behindWork(session, call);
  assertEquals(code, 0);
  assert(workMs > WORK_MS / 2, `the work took only ${workMs} ms`);
  assert(ms < workMs / 4, `kept the host for ${ms} ms of ${workMs} ms of work, expected less than a quarter`);
}

test("BLOCK-01 cuIpcCloseMemHandle waits for all work", async () => {
  await using exporter = await startPeer();
  await using session = await startLocal();
  const opened = await session.openMemHandle(await exporter.memHandle(await exporter.allocatePlain()));
  await assertBlocks(session, () => session.call("ipcCloseMemHandle", opened));
});

test("BLOCK-02 cuMemFree of own memory waits for all work", async () => {
  await using session = await startLocal();
  const address = await session.allocatePlain();
  await assertBlocks(session, () => session.call("memFree", address));
});

test("BLOCK-03 cuMemHostUnregister waits for all work", async () => {
  await using session = await startLocal();
  const address = await session.host("mapShared", await session.host("createShared", PAGE), PAGE);
  await session.register(address, PAGE);
  await assertBlocks(session, () => session.call("memHostUnregister", address));
});

test("BLOCK-04 a copy to pageable memory waits for its stream", async () => {
  await using session = await startLocal();
  const address = await session.allocatePlain();
  const target = await session.host("allocate", MiB);
  await assertBlocks(session, () => session.call("memcpyDtoHAsync", target, address, MiB, session.stream));
});

test("BLOCK-05 cuMemFreeAsync of an import on a busy stream works, and may wait", async () => {
  await using exporter = await startPeer();
  await using session = await startLocal();
  const { imported } = await shareAllocation(exporter, session, { byteLength: MiB });
  const { code } = await behindWork(session, () => session.call("memFreeAsync", imported.address, session.stream));
  assertEquals(code, 0);
});

test("BLOCK-06 cuMemFreeAsync of an import on an idle stream waits for nothing", async () => {
  await using exporter = await startPeer();
  await using session = await startLocal();
  const { imported } = await shareAllocation(exporter, session, { byteLength: MiB });
  const idle = await session.createStream();
  await assertDoesNotBlock(session, () => session.call("memFreeAsync", imported.address, idle));
});

test("BLOCK-07 cuMemFree of an import waits for nothing", async () => {
  await using exporter = await startPeer();
  await using session = await startLocal();
  const { imported } = await shareAllocation(exporter, session, { byteLength: MiB });
  await assertDoesNotBlock(session, () => session.call("memFree", imported.address));
});

test("BLOCK-08 cuMemUnmap waits for nothing", async () => {
  await using exporter = await startPeer();
  await using session = await startLocal();
  const fd = await passFd(exporter, await exporter.exportVirtual(await exporter.createVirtual(2 * MiB)), session);
  const address = await session.mapVirtual([await session.importVirtual(fd)], 2 * MiB);
  await assertDoesNotBlock(session, () => session.call("memUnmap", address, 2 * MiB));
});

test("BLOCK-09 cuMemFreeAsync of own pool memory waits for nothing", async () => {
  await using session = await startLocal();
  const address = await session.allocate(await session.createPool(), MiB);
  await session.synchronize();
  await assertDoesNotBlock(session, () => session.call("memFreeAsync", address, session.stream));
});

test("BLOCK-10 exporting a pool or a pointer waits for nothing", async () => {
  await using session = await startLocal();
  const pool = await session.createPool();
  const address = await session.allocate(pool, MiB);
  await session.synchronize();
  await assertDoesNotBlock(session, async () => {
    const result = await session.call("memPoolExportToShareableHandle", pool, FD);
    await session.host("closeFd", result.i32);
    return result;
  });
  await assertDoesNotBlock(session, () => session.call("memPoolExportPointer", address));
});

test("BLOCK-11 importing a pointer waits for nothing", async () => {
  await using exporter = await startPeer();
  await using session = await startLocal();
  const { pool, imported } = await shareAllocation(exporter, session);
  const data = await exporter.exportPointer(await exporter.allocate(pool, MiB));
  await assertDoesNotBlock(session, () => session.call("memPoolImportPointer", imported.pool, data));
});

test("BLOCK-12 creating a stream, and creating and destroying an interprocess event, wait for nothing", async () => {
  await using session = await startLocal();
  await assertDoesNotBlock(session, async () => {
    const result = await session.call("streamCreateWithPriority", 1, 0);
    await session.do("streamDestroy", result.address);
    return result;
  });
  const event = await session.createIpcEvent();
  await assertDoesNotBlock(session, () => session.call("eventDestroy", event));
  await assertDoesNotBlock(session, async () => {
    const result = await session.call("eventCreate", 6);
    await session.do("eventDestroy", result.address);
    return result;
  });
});

test("BLOCK-13 cuMemAlloc waits for nothing", async () => {
  await using session = await startLocal();
  let address = 0n;
  await assertDoesNotBlock(session, async () => {
    const result = await session.call("memAlloc", 2 * MiB);
    address = result.address;
    return result;
  });
  await session.do("memFree", address);
});

test("BLOCK-14 cuMemHostRegister waits for nothing", async () => {
  await using session = await startLocal();
  const address = await session.host("mapShared", await session.host("createShared", PAGE), PAGE);
  await assertDoesNotBlock(session, () => session.call("memHostRegister", address, PAGE, 2));
  await session.do("memHostUnregister", address);
});

test("BLOCK-15 a copy of 1 MiB from pageable memory waits for nothing", async () => {
  await using session = await startLocal();
  const address = await session.allocatePlain();
  const source = await session.host("allocate", MiB);
  await assertDoesNotBlock(session, () => session.call("memcpyHtoDAsync", address, source, MiB, session.stream));
});
