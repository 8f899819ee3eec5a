/** Streams, events and fences of the simulator: order, time, what blocks, and what another process sees. */
import { test } from "node:test";
import { assert, assertEquals, assertGreater, assertGreaterOrEqual, assertLess } from "@std/assert";
import { discardFds } from "../../src/os/fd.ts";
import { currentRuntime, otherRuntime, skipWithout } from "../helpers/runtimes.ts";
import { local } from "./local.ts";
import { Peer } from "./peer.ts";
import { address, bytes, size, u64 } from "./session.ts";

const MiB = 2 ** 20;
const DISABLE_TIMING = 2;
const INTERPROCESS = 4;
const skip = skipWithout(otherRuntime);

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

async function elapsed(action: () => Promise<unknown>): Promise<number> {
  const start = performance.now();
  await action();
  return performance.now() - start;
}

test("work takes the time it was told to take, in order, and its effect comes at its end", async () => {
  const { session, occupyStream } = local();
  const stream = await session.start();
  const pool = await session.createPool();
  const pointer = await session.allocate(pool, 4096, stream);
  await session.fill(pointer, 1, 4096, stream);
  occupyStream(stream, 200);
  const enqueued = await elapsed(async () => await session.fill(pointer, 2, 4096, stream));
  assertLess(enqueued, 190);
  assertEquals(await session.code("streamQuery", address(stream)), 600);

  const other = (await session.do("streamCreateWithPriority", 1, 0)).address;
  assert(await session.isFilled(pointer, 1, 4096, other));
  const waited = await elapsed(async () => await session.do("streamSynchronize", address(stream)));
  assertGreaterOrEqual(waited, 10);
  assert(await session.isFilled(pointer, 2, 4096, other));

  await session.do("memFree", address(pointer));
  await session.do("memPoolDestroy", address(pool));
  for (const s of [stream, other]) await session.do("streamDestroy", address(s));
});

test("a timer moves the work on when nobody calls", async () => {
  const { session, control, occupyStream } = local();
  const stream = await session.start();
  occupyStream(stream, 10);
  assertEquals(control.report().pendingWork, 1);
  await pause(60);
  assertEquals(await session.code("streamQuery", address(stream)), 0);
  await session.do("streamDestroy", address(stream));
});

test("a busy device starts nothing; faults can make work slow, by call and number", async () => {
  const { session, control } = local();
  const stream = await session.start();
  const pool = await session.createPool();
  const pointer = await session.allocate(pool, 4096, stream);
  control.occupyDevice(0, 150);
  await session.fill(pointer, 1, 1, stream);
  assertEquals(await session.code("streamQuery", address(stream)), 600);
  await session.do("streamSynchronize", address(stream));

  control.injectFault({ call: "cuMemsetD8Async", at: 2, workMs: 150 });
  await session.fill(pointer, 1, 1, stream);
  assertEquals(await session.code("streamQuery", address(stream)), 0);
  await session.fill(pointer, 1, 1, stream);
  assertEquals(await session.code("streamQuery", address(stream)), 600);
  await session.do("streamSynchronize", address(stream));
  await session.fill(pointer, 1, 1, stream);
  assertEquals(await session.code("streamQuery", address(stream)), 0);
  control.clearFaults();

  await session.do("memFree", address(pointer));
  await session.do("memPoolDestroy", address(pool));
  await session.do("streamDestroy", address(stream));
});

test("events: complete before any record, 600 while busy, waits across streams, elapsed time", async () => {
  const { session, occupyStream } = local();
  const [first, second] = [await session.start(), await session.start()];
  assertEquals(await session.code("eventCreate", INTERPROCESS), 1);
  const start = (await session.do("eventCreate", 0)).address;
  const end = (await session.do("eventCreate", 0)).address;
  const untimed = (await session.do("eventCreate", DISABLE_TIMING)).address;
  assertEquals(await session.code("eventQuery", address(start)), 0);
  assertEquals(await session.code("eventElapsedTime", address(start), address(end)), 400);
  assertEquals(await session.code("ipcGetEventHandle", address(start)), 400);

  await session.do("eventRecord", address(start), address(first));
  occupyStream(first, 150);
  await session.do("eventRecord", address(end), address(first));
  assertEquals(await session.code("eventQuery", address(end)), 600);
  assertEquals(await session.code("eventElapsedTime", address(start), address(end)), 600);
  await session.do("streamWaitEvent", address(second), address(end), 0);
  assertEquals(await session.code("streamQuery", address(second)), 600);
  await session.do("streamSynchronize", address(second));
  assertEquals(await session.code("eventQuery", address(end)), 0);
  const ms = (await session.do("eventElapsedTime", address(start), address(end))).f32;
  assertGreaterOrEqual(ms, 149);
  await session.do("eventRecord", address(untimed), address(first));
  assertEquals(await session.code("eventElapsedTime", address(start), address(untimed)), 400);
  for (const event of [start, end, untimed]) await session.do("eventDestroy", address(event));
  assertEquals(await session.code("eventQuery", address(end)), 400);
  for (const stream of [first, second]) await session.do("streamDestroy", address(stream));
});

test("the default stream and blocking streams wait for each other; non-blocking ones do not", async () => {
  const { session, occupyStream } = local();
  const nonBlocking = await session.start();
  const blocking = (await session.do("streamCreateWithPriority", 0, 0)).address;
  const host = (await session.do("memHostAlloc", size(4096), 0)).address;
  occupyStream(blocking, 150);
  await session.do("memsetD8Async", address(host), 1, size(1), address(0n));
  assertEquals(await session.code("streamQuery", address(0n)), 600);
  await session.do("memsetD8Async", address(host), 1, size(1), address(nonBlocking));
  assertEquals(await session.code("streamQuery", address(nonBlocking)), 0);
  await session.do("streamSynchronize", address(0n));
  assertEquals(await session.code("streamQuery", address(blocking)), 0);
  occupyStream(0n, 150);
  await session.do("memsetD8Async", address(host), 1, size(1), address(blocking));
  assertEquals(await session.code("streamQuery", address(blocking)), 600);
  await session.do("memFreeHost", address(host));
  for (const stream of [nonBlocking, blocking]) await session.do("streamDestroy", address(stream));
});

test("which calls wait for queued work, and which do not", async () => {
  const { session, control, occupyStream } = local();
  const stream = await session.start();
  const busy = (await session.do("streamCreateWithPriority", 1, 0)).address;
  const pool = await session.createPool();
  const own = await session.allocate(pool, MiB, stream);
  const plain = (await session.do("memAlloc", size(MiB))).address;
  const pageable = (await session.do("hostBlock", 4096)).address;
  const registered = (await session.do("hostBlock", 4096)).address;
  const fd = await session.exportPool(pool);
  const imported = (await session.do("memPoolImportFromShareableHandle", address(BigInt(fd)), 1)).address;
  const data = (await session.do("memPoolExportPointer", address(own))).opaque;

  async function blocks(method: string, ...args: Parameters<typeof session.call> extends [unknown, ...infer A] ? A : never) {
    occupyStream(busy, 40);
    const before = blockedCalls();
    await session.do(method, ...args);
    const hasBlocked = blockedCalls() > before;
    if (hasBlocked) assertEquals(await session.code("streamQuery", address(busy)), 0, method);
    await session.do("streamSynchronize", address(busy));
    return hasBlocked;
  }
  const blockedCalls = () => {
    const { cuStreamSynchronize: _, ...blocked } = control.report().blockedCalls;
    return Object.values(blocked).reduce((sum, count) => sum + count, 0);
  };

  await session.do("memHostRegister", address(registered), size(4096), 0);
  assert(await blocks("memcpyDtoHAsync", address(pageable), address(own), size(4096), address(busy)));
  assert(!await blocks("memcpyDtoHAsync", address(registered), address(own), size(4096), address(busy)));
  assert(!await blocks("memcpyHtoDAsync", address(own), address(pageable), size(4096), address(busy)));
  assert(await blocks("memHostUnregister", address(registered)));
  assert(!await blocks("memHostRegister", address(registered), size(4096), 0));
  assert(!await blocks("memPoolExportPointer", address(own)));
  assert(!await blocks("eventCreate", 0));
  assert(!await blocks("memPoolImportPointer", address(imported), bytes(data)));
  const alias = (await session.do("memPoolImportPointer", address(imported), bytes(data))).address;
  assert(!await blocks("memFree", address(alias)));
  await session.do("memPoolImportPointer", address(imported), bytes(data));
  assert(await blocks("memFreeAsync", address(alias), address(busy)));
  await session.do("memPoolImportPointer", address(imported), bytes(data));
  assert(!await blocks("memFreeAsync", address(alias), address(stream)));
  assert(!await blocks("memFreeAsync", address(own), address(busy)));
  assert(await blocks("memFree", address(plain)));
  await session.do("memHostUnregister", address(registered));
  await session.do("memPoolDestroy", address(pool));
  discardFds(fd);
  for (const s of [stream, busy]) await session.do("streamDestroy", address(s));
});

test("pageable memory is staged: what the caller writes after the call is not copied", async () => {
  const { session, occupyStream } = local();
  const stream = await session.start();
  const pool = await session.createPool();
  const pointer = await session.allocate(pool, 4096, stream);
  const host = (await session.do("hostBlock", 4096)).address;
  await session.do("writeHost", address(host), bytes(new Uint8Array(4096).fill(5)));
  occupyStream(stream, 100);
  await session.do("memcpyHtoDAsync", address(pointer), address(host), size(4096), address(stream));
  await session.do("writeHost", address(host), bytes(new Uint8Array(4096).fill(6)));
  assert(await session.isFilled(pointer, 5, 4096, stream));
  await session.do("memFree", address(pointer));
  await session.do("memPoolDestroy", address(pool));
  await session.do("streamDestroy", address(stream));
});

test("work on memory that is gone loses the context", async () => {
  await using peer = await Peer.start(currentRuntime);
  const stream = await peer.start();
  const plain = (await peer.do("memAddressReserve", size(2 * MiB), size(0), address(0n))).address;
  const handle = (await peer.do("memCreate", size(2 * MiB), { type: 1, locationType: 1, locationId: 0 })).address;
  await peer.do("memMap", address(plain), size(2 * MiB), size(0), address(handle));
  await peer.do("memSetAccess", address(plain), size(2 * MiB), [{ locationType: 1, locationId: 0, flags: 3 }]);
  await peer.do("occupyStream", address(stream), 200);
  await peer.fill(plain, 1, 16, stream);
  await peer.do("memUnmap", address(plain), size(2 * MiB));
  assertEquals(await peer.code("streamSynchronize", address(stream)), 700);
  assertEquals(await peer.code("eventCreate", 0), 700);
});

test("fences: refused on pool memory, cyclic comparison, freed by a host store", async () => {
  const { session } = local();
  const stream = await session.start();
  const pool = await session.createPool();
  const hostPool = await session.createPool({ locationType: 3 });
  for (const p of [pool, hostPool]) {
    const pointer = await session.allocate(p, 4096, stream);
    assertEquals(await session.code("streamWriteValue64", address(stream), address(pointer), u64(1n), 0), 1);
    assertEquals(await session.code("streamWaitValue64", address(stream), address(pointer), u64(1n), 0), 1);
    const exported = await session.exportPool(p);
    const imported = (await session.do("memPoolImportFromShareableHandle", address(BigInt(exported)), 1)).address;
    discardFds(exported);
    const data = (await session.do("memPoolExportPointer", address(pointer))).opaque;
    const alias = (await session.do("memPoolImportPointer", address(imported), bytes(data))).address;
    assertEquals(await session.code("streamWriteValue64", address(stream), address(alias), u64(1n), 0), 1);
    for (const freed of [alias, pointer]) await session.do("memFree", address(freed));
    await session.do("memPoolDestroy", address(p));
  }
  const plain = (await session.do("memAlloc", size(4096))).address;
  await session.do("streamWriteValue64", address(stream), address(plain), u64(7n), 0);
  await session.do("streamWaitValue64", address(stream), address(plain), u64(7n), 0);
  assertEquals(await session.code("streamQuery", address(stream)), 0);
  await session.do("memFree", address(plain));

  const fd = (await session.do("createSharedMemory", 65536)).number();
  const block = (await session.do("sharedMapping", fd, 65536)).address;
  assertEquals(await session.code("streamWriteValue64", address(stream), address(block), u64(1n), 0), 1);
  await session.do("memHostRegister", address(block), size(65536), 3);
  assertEquals((await session.do("memHostGetDevicePointer", address(block))).address, block);
  await session.do("streamWriteValue64", address(stream), address(block), u64(2n ** 64n - 3n), 0);
  await session.do("streamWaitValue64", address(stream), address(block), u64(2n), 0);
  assertEquals(await session.code("streamQuery", address(stream)), 600);
  const store = new Uint8Array(new BigInt64Array([2n ** 62n]).buffer);
  await session.do("writeHost", address(block), bytes(store));
  await session.do("streamSynchronize", address(stream));
  await session.do("memHostUnregister", address(block));
  discardFds(fd);
  await session.do("streamDestroy", address(stream));
});

for (const runtime of [currentRuntime, otherRuntime]) {
  test(`fences order this process and one in ${runtime}, both ways`, { skip }, async () => {
    const { session } = local();
    await using peer = await Peer.start(runtime);
    const [stream, peerStream] = [await session.start(), await peer.start()];
    const fd = (await session.do("createSharedMemory", 65536)).number();
    const block = (await session.do("sharedMapping", fd, 65536)).address;
    const peerFd = await peer.sendFd(fd);
    const peerBlock = (await peer.do("sharedMapping", peerFd, 65536)).address;
    await session.do("memHostRegister", address(block), size(65536), 3);
    await peer.do("memHostRegister", address(peerBlock), size(65536), 3);

    await peer.do("streamWaitValue64", address(peerStream), address(peerBlock), u64(1n), 0);
    await peer.do("streamWriteValue64", address(peerStream), address(peerBlock + 64n), u64(1n), 0);
    await session.do("streamWaitValue64", address(stream), address(block + 64n), u64(1n), 0);
    assertEquals(await session.code("streamQuery", address(stream)), 600);
    assertEquals(await peer.code("streamQuery", address(peerStream)), 600);
    const other = (await session.do("streamCreateWithPriority", 1, 0)).address;
    await session.do("streamWriteValue64", address(other), address(block), u64(1n), 0);
    await session.do("streamSynchronize", address(stream));
    assertEquals(await peer.code("streamQuery", address(peerStream)), 0);

    // a dead signaller's wait is freed by a store of the host
    await session.do("streamWaitValue64", address(stream), address(block + 64n), u64(2n), 0);
    await peer.kill();
    await pause(20);
    assertEquals(await session.code("streamQuery", address(stream)), 600);
    await session.do("writeHost", address(block + 64n), bytes(new Uint8Array(new BigInt64Array([2n ** 62n]).buffer)));
    await session.do("streamSynchronize", address(stream));
    await session.do("memHostUnregister", address(block));
    discardFds(fd);
    for (const s of [stream, other]) await session.do("streamDestroy", address(s));
  });

  test(`interprocess events between this process and one in ${runtime}`, { skip }, async () => {
    const { session, occupyStream } = local();
    await using peer = await Peer.start(runtime);
    const [stream, peerStream] = [await session.start(), await peer.start()];
    const event = (await session.do("eventCreate", INTERPROCESS | DISABLE_TIMING)).address;
    const handle = (await session.do("ipcGetEventHandle", address(event))).opaque;
    assertEquals(await session.code("ipcOpenEventHandle", bytes(handle)), 201);
    assertEquals(await peer.code("ipcOpenEventHandle", bytes(new Uint8Array(64).fill(0x5a))), 205);
    const opened = (await peer.do("ipcOpenEventHandle", bytes(handle))).address;
    const again = (await peer.do("ipcOpenEventHandle", bytes(handle))).address;
    assertEquals(await peer.code("eventQuery", address(opened)), 0);
    assertEquals(await peer.code("ipcGetEventHandle", address(opened)), 400);
    assertEquals(await peer.code("eventElapsedTime", address(opened), address(again)), 400);

    occupyStream(stream, 300);
    await session.do("eventRecord", address(event), address(stream));
    assertEquals(await peer.code("eventQuery", address(opened)), 600);
    await peer.do("streamWaitEvent", address(peerStream), address(opened), 0);
    assertEquals(await peer.code("streamQuery", address(peerStream)), 600);
    await session.do("eventSynchronize", address(event));
    await peer.do("streamSynchronize", address(peerStream));
    assertEquals(await peer.code("eventQuery", address(again)), 0);

    // the importer records it
    await peer.do("occupyStream", address(peerStream), 300);
    await peer.do("eventRecord", address(opened), address(peerStream));
    assertEquals(await session.code("eventQuery", address(event)), 600);
    await session.do("eventSynchronize", address(event));

    // it can be opened after its exporter has destroyed it
    await session.do("eventDestroy", address(event));
    const late = (await peer.do("ipcOpenEventHandle", bytes(handle))).address;
    for (const e of [opened, again, late]) await peer.do("eventDestroy", address(e));
    await session.do("streamDestroy", address(stream));
  });

  test(`an event whose exporter (${runtime}) was killed stays 600, and its waiter never moves`, { skip }, async () => {
    const { session, control } = local();
    const stream = await session.start();
    const peer = await Peer.start(runtime);
    const peerStream = await peer.start();
    const event = (await peer.do("eventCreate", INTERPROCESS | DISABLE_TIMING)).address;
    const handle = (await peer.do("ipcGetEventHandle", address(event))).opaque;
    const opened = (await session.do("ipcOpenEventHandle", bytes(handle))).address;
    await peer.do("occupyStream", address(peerStream), 1000);
    await peer.do("eventRecord", address(event), address(peerStream));
    await peer.kill();
    await session.do("streamWaitEvent", address(stream), address(opened), 0);
    await pause(1100);
    assertEquals(await session.code("eventQuery", address(opened)), 600);
    await session.do("eventDestroy", address(opened));
    assertEquals(await session.code("streamQuery", address(stream)), 600);
    await session.do("streamDestroy", address(stream));
    assertGreater(control.report().pendingWork, 0);
    control.dropWork();
    assertEquals(control.report().pendingWork, 0);
  });
}
