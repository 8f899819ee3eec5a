import { test } from "node:test";
import { assert, assertEquals, assertNotEquals, assertRejects, assertThrows } from "@std/assert";
import { ClosedError, Device, DeviceBuffer, InvalidArgumentError, MemoryPool } from "../../mod.ts";
import { KINDS, openAllocators } from "./allocators.ts";

const MIB = 1024 * 1024;

/** A pool on the first device, and a stream. */
function open(): { device: Device; stream: ReturnType<Device["createStream"]>; pool: MemoryPool; [Symbol.dispose](): void } {
  const device = Device.open(0);
  const stream = device.createStream();
  const pool = MemoryPool.create(device);
  return {
    device,
    stream,
    pool,
    [Symbol.dispose]() {
      pool.close();
      stream.close();
      device.close();
    },
  };
}

test("what was written is read, at any offset and length", async () => {
  using here = open();
  using buffer = here.pool.allocate(10 * MIB + 3, here);
  const data = new Uint8Array(10 * MIB + 3).map((_, index) => index * 31 + (index >> 16));
  await buffer.write(data);
  assertEquals(await buffer.read(), data);
  assertEquals(await buffer.read({ byteOffset: 5 * MIB - 1, byteLength: 4 }), data.slice(5 * MIB - 1, 5 * MIB + 3));
  const into = new Uint8Array(10).fill(9);
  assertEquals((await buffer.read({ into, byteOffset: 1, byteLength: 3 })).byteLength, 3);
  assertEquals(into, new Uint8Array([...data.slice(1, 4), 9, 9, 9, 9, 9, 9, 9]));
  await buffer.write(new Uint8Array([1, 2, 3]), { byteOffset: 10 * MIB });
  assertEquals(await buffer.read({ byteOffset: 10 * MIB - 1 }), new Uint8Array([data[10 * MIB - 1], 1, 2, 3]));
});

test("the blocking forms do the same", () => {
  using here = open();
  using buffer = here.pool.allocate(9 * MIB, here);
  const data = new Uint8Array(9 * MIB).map((_, index) => index * 17);
  buffer.writeSync(data);
  assertEquals(buffer.readSync(), data);
  buffer.writeSync(new Uint8Array([7]), { byteOffset: 4 * MIB });
  assertEquals(buffer.readSync({ byteOffset: 4 * MIB, byteLength: 1 }), new Uint8Array([7]));
});

test("any view of bytes can be written", async () => {
  using here = open();
  using buffer = here.pool.allocate(16, here);
  const memory = new ArrayBuffer(24);
  new Uint8Array(memory).forEach((_, index, bytes) => bytes[index] = index);
  for (const view of [new Float64Array(memory, 8, 2), new DataView(memory, 8, 16), new Uint16Array(memory, 8, 8)]) {
    buffer.fill(0);
    await buffer.write(view);
    assertEquals(await buffer.read(), new Uint8Array(memory.slice(8)));
  }
  await assertRejects(() => buffer.write(memory as unknown as Uint8Array), InvalidArgumentError, "bytes");
  await assertRejects(() => buffer.write(new Uint8Array(0)), InvalidArgumentError, "empty or detached");
  await assertRejects(() => buffer.write(new Uint8Array(17)), InvalidArgumentError, "do not fit");
});

test("an array that is transferred away during a write ends it with an error, and nothing foreign is written", async () => {
  using here = open();
  using buffer = here.pool.allocate(32 * MIB, here);
  buffer.fill(1);
  const bytes = new Uint8Array(32 * MIB).fill(2);
  const writing = buffer.write(bytes);
  structuredClone(bytes.buffer, { transfer: [bytes.buffer] });
  await assertRejects(() => writing, InvalidArgumentError, "transferred away");
  const seen = new Set(await buffer.read());
  assert([...seen].every((value) => value === 1 || value === 2), `read ${[...seen]}`);
});

test("an array that is transferred away during a read ends it with an error", async () => {
  using here = open();
  using buffer = here.pool.allocate(32 * MIB, here);
  const into = new Uint8Array(32 * MIB);
  const reading = buffer.read({ into });
  structuredClone(into.buffer, { transfer: [into.buffer] });
  await assertRejects(() => reading, InvalidArgumentError, "transferred away");
});

test("an aborted transfer rejects with the signal's reason, and the buffer works on", async () => {
  using here = open();
  using buffer = here.pool.allocate(64 * MIB, here);
  const controller = new AbortController();
  const writing = buffer.write(new Uint8Array(64 * MIB), { signal: controller.signal });
  controller.abort(new Error("enough"));
  await assertRejects(() => writing, Error, "enough");
  await assertRejects(() => buffer.read({ signal: AbortSignal.abort(new Error("no")) }), Error, "no");
  await buffer.write(new Uint8Array([5]));
  assertEquals((await buffer.read({ byteLength: 1 }))[0], 5);
});

test("chunks gives the whole buffer in order", async () => {
  using here = open();
  using buffer = here.pool.allocate(1000, here);
  const data = new Uint8Array(1000).map((_, index) => index);
  await buffer.write(data);
  const lengths: number[] = [];
  const all: number[] = [];
  for await (const bytes of buffer.chunks({ chunkBytes: 300 })) {
    lengths.push(bytes.byteLength);
    all.push(...bytes);
  }
  assertEquals([lengths, all], [[300, 300, 300, 100], [...data]]);
});

test("a read that no array can hold is refused with a RangeError, and chunks works", async () => {
  using here = open();
  using buffer = here.pool.allocate(2 ** 32 + 1, here);
  await assertRejects(() => buffer.read(), RangeError, "chunks()");
  let first: Uint8Array | undefined;
  for await (const bytes of buffer.chunks({ chunkBytes: 8 })) {
    first = bytes;
    break;
  }
  assertEquals(first!.byteLength, 8);
});

test("fill has widths of 1, 2 and 4 bytes", async () => {
  using here = open();
  using buffer = here.pool.allocate(16, here);
  buffer.fill(0xab);
  assertEquals(await buffer.read(), new Uint8Array(16).fill(0xab));
  buffer.fill(0x0102, { width: 2 });
  assertEquals(await buffer.read({ byteLength: 4 }), new Uint8Array([2, 1, 2, 1]));
  buffer.fill(0x01020304, { width: 4 });
  assertEquals(await buffer.read({ byteOffset: 8 }), new Uint8Array([4, 3, 2, 1, 4, 3, 2, 1]));
  buffer.fill(0xffff_ffff, { width: 4 });
  assertEquals((await buffer.read())[15], 255);
  assertThrows(() => buffer.fill(256), InvalidArgumentError, "value");
  assertThrows(() => buffer.fill(-1, { width: 2 }), InvalidArgumentError, "value");
  assertThrows(() => buffer.fill(0, { width: 3 as 4 }), InvalidArgumentError, "width");
  assertThrows(() => buffer.subarray(0, 3).fill(0, { width: 2 }), InvalidArgumentError, "multiples of the width");
  assertThrows(() => buffer.subarray(1, 3).fill(0, { width: 2 }), InvalidArgumentError, "multiples of the width");
});

test("copies go between buffers and their parts", async () => {
  using here = open();
  using a = here.pool.allocate(1000, here);
  using b = here.pool.allocate(1000, here);
  a.fill(1);
  b.fill(2);
  a.subarray(10, 20).copyTo(b.subarray(500, 510));
  assertEquals(await b.read({ byteOffset: 499, byteLength: 12 }), new Uint8Array([2, ...new Array(10).fill(1), 2]));
  a.copyFrom(b, { stream: here.stream });
  assertEquals(await a.read({ byteOffset: 505, byteLength: 1 }), new Uint8Array([1]));
  assertThrows(() => a.copyFrom(b.subarray(1)), InvalidArgumentError, "byteLength");
  assertThrows(() => a.copyFrom({} as DeviceBuffer), InvalidArgumentError, "a DeviceBuffer");
});

test("copies between parts that overlap are refused, and no others", async () => {
  using here = open();
  using a = here.pool.allocate(64 * 8, here);
  await a.write(new Uint8Array(64 * 8).map((_, index) => index));
  const part = (begin: number, length: number) => a.subarray(begin, begin + length);
  const overlap = (call: () => void) => assertThrows(call, InvalidArgumentError, "overlap");
  overlap(() => a.copyFrom(a));
  overlap(() => part(0, 100).copyFrom(part(99, 100)));
  overlap(() => part(99, 100).copyTo(part(0, 100)));
  overlap(() => DeviceBuffer.wrap(here.device, a.address, 8).copyFrom(part(4, 8), { stream: here.stream }));
  part(0, 100).copyFrom(part(100, 100));
  assertEquals(await part(99, 2).read(), new Uint8Array([199, 100]));
  const columns = { rowBytes: 16, rows: 8, pitchBytes: 64, sourcePitchBytes: 64 };
  overlap(() => a.copyFrom2D(a.subarray(15), columns));
  overlap(() => a.subarray(63).copyFrom2D(a, { ...columns, rows: 7 }));
  overlap(() => a.copyFrom2D(a.subarray(32), { ...columns, rows: 4, sourcePitchBytes: 32 }));
  a.subarray(16).copyFrom2D(a, columns); // one column of the same rows into the next
  assertEquals((await a.read({ byteOffset: 7 * 64 + 16, byteLength: 1 }))[0], (7 * 64) % 256);
});

test("rows are copied and filled with a pitch on each side", async () => {
  using here = open();
  using image = here.pool.allocate(64 * 16, here);
  using tile = here.pool.allocate(8 * 4, here);
  await tile.write(new Uint8Array(32).map((_, index) => index + 1));
  image.fill(0);
  image.subarray(3 * 64 + 5).copyFrom2D(tile, { rowBytes: 8, rows: 4, pitchBytes: 64 });
  const bytes = await image.read();
  const expected = new Uint8Array(64 * 16);
  for (let row = 0; row < 4; row++) {
    for (let column = 0; column < 8; column++) expected[(3 + row) * 64 + 5 + column] = row * 8 + column + 1;
  }
  assertEquals(bytes, expected);
  image.subarray(64).fill2D(0x0201, { width: 2, rowBytes: 4, rows: 2, pitchBytes: 64 });
  expected.set([1, 2, 1, 2], 64);
  expected.set([1, 2, 1, 2], 128);
  assertEquals(await image.read(), expected);
  image.fill2D(0x04030201, { width: 4, rowBytes: 4, rows: 16, pitchBytes: 64 });
  image.subarray(8).fill2D(9, { rowBytes: 1, rows: 1 });
  assertEquals(await image.read({ byteOffset: 15 * 64, byteLength: 5 }), new Uint8Array([1, 2, 3, 4, 0]));
  assertEquals((await image.read({ byteOffset: 8, byteLength: 1 }))[0], 9);
});

test("rows that do not lie within the buffer are refused", () => {
  using here = open();
  using a = here.pool.allocate(100, here);
  using b = here.pool.allocate(100, here);
  const rows = (options: object) => () => a.copyFrom2D(b, { rowBytes: 10, rows: 10, ...options });
  rows({})();
  assertThrows(rows({ rows: 11 }), InvalidArgumentError, "take 110 bytes of the 100");
  assertThrows(rows({ pitchBytes: 11 }), InvalidArgumentError, "take 109 bytes");
  assertThrows(rows({ sourcePitchBytes: 11 }), InvalidArgumentError, "take 109 bytes");
  assertThrows(rows({ pitchBytes: 9 }), InvalidArgumentError, "pitchBytes is 9");
  assertThrows(rows({ rowBytes: 0 }), InvalidArgumentError, "rowBytes");
  assertThrows(rows({ rows: 0 }), InvalidArgumentError, "rows");
  assertThrows(() => a.copyFrom2D(b, {} as never), InvalidArgumentError, "rowBytes is undefined");
  assertThrows(() => a.fill2D(1, { rowBytes: 3, rows: 1, width: 2 }), InvalidArgumentError, "multiples of the width");
  assertThrows(() => a.fill2D(256, { rowBytes: 3, rows: 1 }), InvalidArgumentError, "value");
});

test("a part is a view: it ends with its parent, and closing it frees nothing", async () => {
  using here = open();
  const buffer = here.pool.allocate(100, here);
  const part = buffer.subarray(10, 50);
  const inner = part.subarray(5);
  assertEquals([inner.byteLength, inner.address], [35, buffer.address + 15n]);
  part.fill(4);
  inner.close();
  assertThrows(() => inner.fill(1), ClosedError);
  assertEquals((await part.read())[5], 4);
  assertEquals([buffer.isFreed, part.isFreed, inner.isFreed], [false, false, true]);
  buffer.free();
  assertEquals([buffer.isFreed, part.isFreed], [true, true]);
  await assertRejects(() => part.read(), ClosedError);
  for (const [begin, end] of [[-1, 5], [0, 0], [5, 5], [0, 101], [100, undefined], [1.5, 2]] as [number, number][]) {
    using other = here.pool.allocate(100, here);
    assertThrows(() => other.subarray(begin, end), InvalidArgumentError);
  }
});

for (const kind of [...KINDS, "foreign"] as const) {
  test(`views of views end with each of their parents: ${kind}`, async () => {
    using allocators = openAllocators();
    using memory = allocators.allocate(kind === "foreign" ? "pool" : kind, 100);
    const make = () => kind === "foreign" ? DeviceBuffer.wrap(allocators.device, memory.address, 100) : memory.subarray(0);
    for (const ended of [0, 1, 2, 3]) {
      const chain = [make()];
      for (let depth = 0; depth < 4; depth++) chain.push(chain[depth].subarray(1));
      chain[ended].free();
      assertEquals(chain.map(({ isFreed }) => isFreed), chain.map((_, depth) => depth >= ended));
      for (const buffer of chain.slice(ended)) {
        assertThrows(() => buffer.fill(1), ClosedError);
        assertThrows(() => buffer.address, ClosedError);
        assertThrows(() => buffer.subarray(1), ClosedError);
        await assertRejects(() => buffer.read(), ClosedError);
      }
      chain[0].free();
    }
  });
}

test("a view of very many views is still one", () => {
  using here = open();
  using buffer = here.pool.allocate(100, here);
  let view = buffer.subarray(0);
  for (let depth = 0; depth < 20_000; depth++) view = view.subarray(0);
  assertEquals([view.isFreed, view.address], [false, buffer.address]);
});

test("a freed buffer is refused everywhere, and freeing again is allowed", async () => {
  using here = open();
  const buffer = here.pool.allocate(100, here);
  using other = here.pool.allocate(100, here);
  buffer.free();
  buffer.free();
  buffer.close();
  await buffer.closeAsync();
  await assertRejects(() => buffer.read(), ClosedError, "it was freed");
  await assertRejects(() => buffer.write(new Uint8Array(1)), ClosedError);
  assertThrows(() => buffer.fill(1), ClosedError);
  assertThrows(() => buffer.copyFrom(other), ClosedError);
  assertThrows(() => other.copyFrom(buffer), ClosedError);
  assertThrows(() => buffer.address, ClosedError);
  assertThrows(() => buffer.subarray(0), ClosedError);
  assertThrows(() => buffer.ipcDescriptor, ClosedError);
});

test("memory is freed in order with the stream that is named", () => {
  using here = open();
  using other = here.device.createStream();
  const buffer = here.pool.allocate(MIB, here);
  other.wait(here.stream);
  buffer.fill(1, { stream: other });
  buffer.free({ stream: other });
  other.synchronize();
  assertEquals(here.pool.attributes.usedBytes, 0);
});

test("a transfer under way keeps the memory that is freed meanwhile", async () => {
  using here = open();
  const buffer = here.pool.allocate(16 * MIB, here);
  const writing = buffer.write(new Uint8Array(16 * MIB).fill(1));
  buffer.free();
  assertNotEquals(here.pool.attributes.usedBytes, 0);
  await writing;
  here.stream.synchronize();
  assertEquals(here.pool.attributes.usedBytes, 0);
});

test("a stream of a closed or of no kind is refused", () => {
  using here = open();
  const closed = here.device.createStream();
  closed.close();
  using buffer = here.pool.allocate(10, here);
  assertThrows(() => buffer.fill(1, { stream: closed }), ClosedError);
  assertThrows(() => buffer.fill(1, { stream: {} as never }), InvalidArgumentError, "a CudaStream");
  assertThrows(() => buffer.free({ stream: closed }), ClosedError);
  assertEquals(buffer.isFreed, false);
});
