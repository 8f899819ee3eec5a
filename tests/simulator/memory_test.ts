/** Copies, fills, host memory and pointers of the simulator. */
import { test } from "node:test";
import { assertEquals, assertNotEquals } from "@std/assert";
import { local } from "./local.ts";
import { address, type Argument, bytes, size } from "./session.ts";

const HOST = 1;
const DEVICE = 2;

test("copies between host, device and device, in one dimension and two", async () => {
  const { session } = local();
  const stream = await session.start();
  const context = (await session.do("ctxGetCurrent")).address;
  const pool = await session.createPool();
  const [a, b] = [await session.allocate(pool, 1024, stream), await session.allocate(pool, 1024, stream)];
  const data = Uint8Array.from({ length: 1024 }, (_, index) => index);
  await session.write(a, data, stream);
  await session.do("memcpyDtoDAsync", address(b), address(a), size(1000), address(stream));
  assertEquals((await session.read(b, 1024, stream)).slice(0, 1000), data.slice(0, 1000));
  await session.do(
    "memcpyPeerAsync",
    address(b + 1000n),
    address(context),
    address(a + 1000n),
    address(context),
    size(24),
    address(stream),
  );
  assertEquals(await session.read(b, 1024, stream), data);
  await session.do("memcpyDtoDAsync", address(a + 100n), address(a), size(500), address(stream)); // overlapping
  assertEquals((await session.read(a, 600, stream)).slice(100), data.slice(0, 500));

  // a block of 3 rows of 10 bytes, from pitch 64 at (4, 2) to pitch 16 at (1, 1)
  const host = (await session.do("hostBlock", 256)).address;
  const copy = {
    srcMemoryType: DEVICE,
    srcDevice: address(b),
    srcPitch: 64,
    srcXInBytes: 4,
    srcY: 2,
    dstMemoryType: HOST,
    dstHost: address(host),
    dstPitch: 16,
    dstXInBytes: 1,
    dstY: 1,
    WidthInBytes: 10,
    Height: 3,
  } satisfies Record<string, Argument>;
  await session.do("memcpy2DAsync", copy, address(stream));
  const got = (await session.do("readHost", address(host), 64)).bytes(64);
  for (let row = 0; row < 3; row++) {
    const from = (2 + row) * 64 + 4;
    assertEquals(got.slice((1 + row) * 16 + 1, (1 + row) * 16 + 11), data.slice(from, from + 10));
  }
  assertEquals(got[0], 0);
  assertEquals(await session.code("memcpy2DAsync", { ...copy, srcPitch: 8 }, address(stream)), 0);
  assertEquals(await session.code("memcpy2DAsync", { ...copy, Height: 30 }, address(stream)), 1);
  assertEquals(await session.code("memcpy2DAsync", { ...copy, Height: 0 }, address(stream)), 0);
  for (const pointer of [a, b]) await session.do("memFree", address(pointer));
  await session.do("memPoolDestroy", address(pool));
  await session.do("streamDestroy", address(stream));
});

test("fills of 1, 2 and 4 bytes, in one dimension and two", async () => {
  const { session } = local();
  const stream = await session.start();
  const pool = await session.createPool();
  const pointer = await session.allocate(pool, 256, stream);
  const read = () => session.read(pointer, 256, stream);
  await session.do("memsetD8Async", address(pointer), 0x1ff, size(256), address(stream));
  assertEquals(await read(), new Uint8Array(256).fill(0xff));
  await session.do("memsetD16Async", address(pointer + 2n), 0x0102, size(3), address(stream));
  assertEquals((await read()).slice(0, 10), new Uint8Array([255, 255, 2, 1, 2, 1, 2, 1, 255, 255]));
  await session.do("memsetD32Async", address(pointer + 4n), 0x04030201, size(5), address(stream));
  assertEquals((await read()).slice(0, 26).slice(4, 26), new Uint8Array([...Array(5).fill([1, 2, 3, 4]).flat(), 255, 255]));
  await session.do("memsetD2D8Async", address(pointer), size(64), 7, size(2), size(3), address(stream));
  await session.do("memsetD2D16Async", address(pointer + 8n), size(64), 0x0908, size(1), size(2), address(stream));
  await session.do("memsetD2D32Async", address(pointer + 16n), size(64), 0x0d0c0b0a, size(1), size(4), address(stream));
  const rows = await read();
  for (let row = 0; row < 4; row++) {
    const at = row * 64;
    assertEquals(rows[at] === 7 && rows[at + 1] === 7 && rows[at + 2] !== 7, row < 3);
    assertEquals(rows[at + 8] === 8 && rows[at + 9] === 9, row < 2);
    assertEquals(rows.slice(at + 16, at + 20), new Uint8Array([10, 11, 12, 13]));
  }
  assertEquals(await session.code("memsetD16Async", address(pointer + 1n), 0, size(1), address(stream)), 1);
  assertEquals(await session.code("memsetD32Async", address(pointer + 2n), 0, size(1), address(stream)), 1);
  assertEquals(await session.code("memsetD2D8Async", address(pointer), size(4), 0, size(8), size(2), address(stream)), 1);
  assertEquals(await session.code("memsetD8Async", address(pointer), 0, size(0), address(stream)), 0);
  await session.do("memFree", address(pointer));
  await session.do("memPoolDestroy", address(pool));
  await session.do("streamDestroy", address(stream));
});

test("addresses that are no memory of the driver are refused", async () => {
  const { session } = local();
  const stream = await session.start();
  const pool = await session.createPool();
  const pointer = await session.allocate(pool, 4096, stream);
  const host = (await session.do("hostBlock", 4096)).address;
  for (const bad of [0n, 8n, host, pointer - 512n, pointer + 4096n, 2n ** 52n]) {
    assertEquals(await session.code("memsetD8Async", address(bad), 0, size(1), address(stream)), 1, `${bad}`);
    assertEquals(await session.code("memcpyDtoHAsync", address(host), address(bad), size(1), address(stream)), 1);
    assertEquals(await session.code("memGetAddressRange", address(bad)), 500);
    assertEquals(await session.code("pointerGetAttribute", 2, address(bad)), 1);
    if (bad !== 0n) assertEquals(await session.code("memFree", address(bad)), 1);
    if (bad !== 0n) assertEquals(await session.code("memFreeAsync", address(bad), address(stream)), 1);
  }
  assertEquals(await session.code("memsetD8Async", address(pointer), 0, size(4097), address(stream)), 1);
  assertEquals(await session.code("memFree", address(pointer + 8n)), 1);
  for (const bad of [3n, pointer, pool, 2n ** 52n]) {
    assertEquals(await session.code("streamQuery", address(bad)), 400);
    assertEquals(await session.code("eventQuery", address(bad)), 400);
  }
  for (const bad of [0n, stream, 2n ** 52n]) {
    assertEquals(await session.code("memAllocFromPoolAsync", size(1), address(bad), address(stream)), 1);
    assertEquals(await session.code("memPoolDestroy", address(bad)), 1);
  }
  await session.do("memFree", address(pointer));
  assertEquals(await session.code("memFree", address(pointer)), 1);
  await session.do("memPoolDestroy", address(pool));
  assertEquals(await session.code("memPoolDestroy", address(pool)), 1);
  await session.do("streamDestroy", address(stream));
  assertEquals(await session.code("streamDestroy", address(stream)), 400);
});

test("host memory: allocated and registered, with a device pointer equal to the host's", async () => {
  const { session } = local();
  const stream = await session.start();
  const pinned = (await session.do("memHostAlloc", size(5000), 1)).address;
  assertEquals((await session.do("memHostGetDevicePointer", address(pinned + 8n))).address, pinned + 8n);
  await session.do("memsetD8Async", address(pinned), 4, size(5000), address(stream));
  assertEquals((await session.do("countOther", address(pinned), 5000, 4)).number(), 0);
  assertEquals(await session.code("memHostRegister", address(pinned), size(64), 0), 712);
  assertEquals(await session.code("memHostUnregister", address(pinned)), 713);
  await session.do("memFreeHost", address(pinned));
  assertEquals(await session.code("memFreeHost", address(pinned)), 1);

  const block = (await session.do("hostBlock", 4096)).address;
  assertEquals(await session.code("memHostGetDevicePointer", address(block)), 1);
  await session.do("memHostRegister", address(block), size(4096), 3);
  assertEquals(await session.code("memHostRegister", address(block), size(4096), 3), 712);
  await session.do("memsetD8Async", address(block), 9, size(4096), address(stream));
  assertEquals((await session.do("countOther", address(block), 4096, 9)).number(), 0);
  await session.do("memHostUnregister", address(block));
  assertEquals(await session.code("memHostUnregister", address(block)), 713);
  await session.do("streamDestroy", address(stream));
});

test("pointer attributes tell what memory is", async () => {
  const { session } = local();
  const stream = await session.start();
  const pool = await session.createPool();
  const pointer = await session.allocate(pool, 1000, stream);
  const plain = (await session.do("memAlloc", size(1000))).address;
  const pinned = (await session.do("memHostAlloc", size(1000), 0)).address;
  const attributes = async (of: bigint) => {
    const values: Record<number, bigint> = {};
    for (const which of [2, 8, 9, 10, 11, 12, 14, 17]) {
      values[which] = (await session.do("pointerGetAttribute", which, address(of + 8n))).address;
    }
    return values;
  };
  const common = { 8: 0n, 9: 0n, 12: 1000n };
  assertEquals(await attributes(pointer), { ...common, 2: 2n, 10: 0n, 11: pointer, 14: 1n, 17: pool });
  assertEquals(await attributes(plain), { ...common, 2: 2n, 10: 1n, 11: plain, 14: 0n, 17: 0n });
  assertEquals(await attributes(pinned), { ...common, 2: 1n, 10: 0n, 11: pinned, 14: 0n, 17: 0n });
  const buffer = async () => (await session.do("pointerGetAttribute", 7, address(pointer))).number();
  const first = await buffer();
  await session.do("memFreeAsync", address(pointer), address(stream));
  assertEquals(await session.allocate(pool, 1000, stream), pointer);
  assertNotEquals(await buffer(), first);
  for (const p of [pointer, plain]) await session.do("memFree", address(p));
  await session.do("memFreeHost", address(pinned));
  await session.do("memPoolDestroy", address(pool));
  await session.do("streamDestroy", address(stream));
});

test("an opaque block of the wrong length is an error of the caller", async () => {
  const { session } = local();
  for (const method of ["memPoolImportPointer", "ipcOpenMemHandle", "ipcOpenEventHandle"]) {
    const args = method === "memPoolImportPointer" ? [address(1n), bytes(new Uint8Array(63))] : [bytes(new Uint8Array(65)), 1];
    let message = "";
    await session.call(method, ...args).catch((error) => message = String(error));
    assertEquals(message.includes("opaque bytes"), true, method);
  }
});
