import { test } from "node:test";
import { assert, assertEquals, assertRejects, assertThrows } from "@std/assert";
import {
  AllocationHandle,
  BufferDescriptor,
  ClosedError,
  Device,
  DeviceBuffer,
  InvalidArgumentError,
  MemoryPool,
  NotSupportedError,
  ProtocolError,
  VirtualMemory,
} from "../../mod.ts";
import { duplicateFd } from "../../src/os/fd.ts";
import { createSharedMemory } from "../../src/os/memory.ts";
import { currentRuntime, skipWithout } from "../helpers/runtimes.ts";
import { assertNoFdLeft, countFds, onGpu, startPeer } from "./peer.ts";

const MIB = 1024 * 1024;
const LIMIT = 4064 * MIB;

function closeAll(handles: readonly AllocationHandle[]): void {
  for (const handle of handles) handle.close();
}

test("a virtual buffer is a buffer like any other", async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using buffer = VirtualMemory.allocate(device, 3 * MIB + 5, { stream });
  assertEquals([buffer.kind, buffer.byteLength, buffer.pool, buffer.isImported], ["virtual", 3 * MIB + 5, null, false]);
  const data = new Uint8Array(3 * MIB + 5).map((_, index) => index * 7);
  await buffer.write(data, { stream });
  assertEquals(await buffer.read({ stream }), data);
  using copy = VirtualMemory.allocate(device, 1000);
  copy.copyFrom(buffer.subarray(5, 1005), { stream });
  assertEquals(await copy.read({ stream }), data.slice(5, 1005));
  copy.fill(0x01020304, { width: 4, stream });
  assertEquals((await copy.read({ stream })).slice(0, 4), new Uint8Array([4, 3, 2, 1]));
});

test("without a stream it has its own, which ends with it", async () => {
  using device = Device.open(0);
  const buffer = VirtualMemory.allocate(device, 100);
  buffer.fill(9);
  assertEquals((await buffer.read())[99], 9);
  await buffer.closeAsync();
  assertThrows(() => buffer.fill(1), ClosedError);
});

test("importing in the exporter's own process gives an alias that outlives the original", async () => {
  using device = Device.open(0);
  const before = countFds();
  const buffer = VirtualMemory.allocate(device, 1000, { ipc: true });
  buffer.fill(3);
  const handles = buffer.exportHandles();
  assertEquals(handles.length, 1);
  const alias = DeviceBuffer.importVirtual(device, buffer.ipcDescriptor, handles);
  closeAll(handles);
  assert(alias.address !== buffer.address);
  await buffer.closeAsync();
  assertEquals((await alias.read())[999], 3);
  await alias.closeAsync();
  await assertNoFdLeft(before);
});

test("an import is exported by the handles that it came by, and gives them back", async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using buffer = VirtualMemory.allocate(device, 3 * MIB, { ipc: true, stream });
  buffer.fill(4, { stream });
  const fds = countFds();
  {
    const handles = buffer.exportHandles();
    using alias = DeviceBuffer.importVirtual(device, buffer.ipcDescriptor, handles);
    closeAll(handles);
    const again = alias.exportHandles();
    using third = DeviceBuffer.importVirtual(device, alias.ipcDescriptor, again, { stream });
    closeAll(again);
    assertEquals((await third.read({ byteOffset: 3 * MIB - 1, stream }))[0], 4);
    await third.closeAsync();
    await alias.closeAsync();
  }
  assertEquals(countFds(), fds);
});

test("grow keeps the memory, adds to it, and leaves the old buffer an alias", async () => {
  using device = Device.open(0);
  const small = VirtualMemory.allocate(device, MIB, { ipc: true });
  small.fill(1);
  const grown = VirtualMemory.grow(small, 20 * MIB);
  grown.subarray(MIB).fill(2);
  assertEquals(grown.byteLength, 20 * MIB);
  assertEquals(await grown.read({ byteOffset: MIB - 1, byteLength: 2 }), new Uint8Array([1, 2]));
  small.subarray(0, 1).fill(5);
  assertEquals(await grown.read({ byteLength: 2 }), new Uint8Array([5, 1]));
  assertEquals(grown.ipcDescriptor.chunkByteLengths.length, 2);
  await small.closeAsync();
  assertEquals(await grown.read({ byteLength: 2 }), new Uint8Array([5, 1]));
  const again = VirtualMemory.grow(grown, 60 * MIB);
  await grown.closeAsync();
  again.subarray(20 * MIB).fill(3);
  assertEquals(await again.read({ byteOffset: 20 * MIB - 1, byteLength: 2 }), new Uint8Array([2, 3]));
  const handles = again.exportHandles();
  assertEquals(handles.length, again.ipcDescriptor.chunkByteLengths.length);
  closeAll(handles);
  await again.closeAsync();
});

test("the memory goes back when the last range that maps it goes", async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  const { freeBytes } = device.memoryInfo();
  const small = VirtualMemory.allocate(device, 64 * MIB, { stream });
  const grown = VirtualMemory.grow(small, 128 * MIB, { stream });
  assert(device.memoryInfo().freeBytes <= freeBytes - 128 * MIB);
  await small.closeAsync();
  assert(device.memoryInfo().freeBytes <= freeBytes - 128 * MIB);
  await grown.closeAsync();
  assert(device.memoryInfo().freeBytes > freeBytes - 64 * MIB);
});

test("a wrong argument is refused", () => {
  assertThrows(() => new (VirtualMemory as unknown as new () => unknown)(), InvalidArgumentError, "VirtualMemory.allocate()");
  using device = Device.open(0);
  for (const length of [0, -1, 1.5, NaN, "1" as unknown as number]) {
    assertThrows(() => VirtualMemory.allocate(device, length), InvalidArgumentError, "byteLength");
  }
  using buffer = VirtualMemory.allocate(device, 100);
  assertThrows(() => buffer.ipcDescriptor, InvalidArgumentError, "{ ipc: true }");
  assertThrows(() => buffer.exportHandles(), InvalidArgumentError, "{ ipc: true }");
  assertThrows(() => VirtualMemory.grow(buffer, 100), InvalidArgumentError, "byteLength");
  assertThrows(() => VirtualMemory.grow(buffer.subarray(0, 50), 200), InvalidArgumentError, "a whole buffer");
  using stream = device.createStream();
  using pool = MemoryPool.create(device, { ipc: true });
  using pooled = pool.allocate(100, { stream });
  assertThrows(() => VirtualMemory.grow(pooled, 200), InvalidArgumentError, "VirtualMemory");
  assertThrows(() => pooled.exportHandles(), NotSupportedError, "pool");
});

test("an import checks handles and descriptor before the driver sees them", () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using buffer = VirtualMemory.allocate(device, 100, { ipc: true });
  const { ipcDescriptor: descriptor } = buffer;
  const handles = buffer.exportHandles();
  assertThrows(() => DeviceBuffer.importVirtual(device, descriptor, []), InvalidArgumentError, "0 handles");
  assertThrows(() => DeviceBuffer.importVirtual(device, descriptor, [7 as never]), InvalidArgumentError, "AllocationHandle");
  assertThrows(() => DeviceBuffer.importVirtual(device, {} as never, handles), InvalidArgumentError, "BufferDescriptor");
  using socket = AllocationHandle.fromFd(duplicateFd(0));
  assertThrows(() => DeviceBuffer.importVirtual(device, descriptor, [socket]), ProtocolError, "not a handle of the driver");
  if (onGpu) {
    using memory = AllocationHandle.fromFd(createSharedMemory("no handle", 4096));
    assertThrows(() => DeviceBuffer.importVirtual(device, descriptor, [memory]), ProtocolError, "not a handle of the driver");
  }
  const odd = new BufferDescriptor({ ...descriptor, opaque: descriptor.opaque, chunkByteLengths: [1000] });
  assertThrows(() => DeviceBuffer.importVirtual(device, odd, handles), ProtocolError, "multiple");
  const before = device.memoryInfo().freeBytes;
  const [size] = descriptor.chunkByteLengths;
  const longer = new BufferDescriptor({ ...descriptor, opaque: descriptor.opaque, chunkByteLengths: [2 * size] });
  assertThrows(() => DeviceBuffer.importVirtual(device, longer, handles));
  assertEquals(device.memoryInfo().freeBytes, before);
  closeAll(handles);
  assertThrows(() => DeviceBuffer.importVirtual(device, descriptor, handles), ClosedError);
  using pool = MemoryPool.create(device, { ipc: true });
  using pooled = pool.allocate(100, { stream });
  assertThrows(() => DeviceBuffer.importVirtual(device, pooled.ipcDescriptor, []), InvalidArgumentError, "memoryKind");
});

test("a pool's allocation above 4064 MiB is virtual memory that the pool counts", async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  const pool = MemoryPool.create(device, { ipc: true });
  const exact = pool.allocate(LIMIT, { stream });
  assertEquals(exact.kind, "pool");
  exact.free();
  stream.synchronize();
  pool.trim();
  const big = pool.allocate(LIMIT + 1, { stream });
  assertEquals([big.kind, big.byteLength, big.pool], ["virtual", LIMIT + 1, pool]);
  const { usedBytes, usedHighBytes, reservedBytes } = pool.attributes;
  assert(usedBytes > LIMIT && usedHighBytes >= usedBytes && reservedBytes >= usedBytes);
  big.subarray(LIMIT).fill(6, { stream });
  assertEquals(await big.read({ byteOffset: LIMIT, stream }), new Uint8Array([6]));
  assertEquals([big.ipcDescriptor.memoryKind, big.ipcDescriptor.poolId], ["virtual", pool.id]);
  {
    using alias = DeviceBuffer.import(pool, big.ipcDescriptor, { stream });
    assertEquals(await alias.read({ byteOffset: LIMIT, stream }), new Uint8Array([6]));
  }
  await big.closeAsync();
  assertEquals(pool.attributes.usedBytes, 0);
  assert(pool.attributes.usedHighBytes > LIMIT);
  pool.close();
});

test("a pool without ipc has no such limit, and gives its own memory", () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device);
  using big = pool.allocate(LIMIT + 1, { stream });
  assertEquals(big.kind, "pool");
});

test("maxBytes holds for virtual and pool memory together", async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device, { ipc: true, maxBytes: LIMIT + 64 * MIB });
  assertThrows(() => pool.allocate(LIMIT + 65 * MIB, { stream }), Error, "maxBytes");
  const big = pool.allocate(LIMIT + 1, { stream });
  assertThrows(() => pool.allocate(65 * MIB, { stream }), Error, "maxBytes");
  pool.allocate(32 * MIB, { stream }).free();
  await big.closeAsync();
  pool.allocate(65 * MIB, { stream }).free();
});

test("a big buffer keeps its pool; freeing waits for the stream's work", async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  const pool = MemoryPool.create(device, { ipc: true });
  const big = pool.allocate(LIMIT + 1, { stream });
  pool.close();
  big.subarray(LIMIT - 1).fill(1, { stream });
  big.free({ stream });
  await big.closeAsync();
  await stream.finished();
});

for (const runtime of ["deno", "bun"] as const) {
  test(`${currentRuntime} shares virtual memory of several chunks with ${runtime}`, { skip: skipWithout(runtime) }, async () => {
    using device = Device.open(0);
    using stream = device.createStream();
    const before = countFds();
    {
      await using peer = await startPeer(runtime);
      const small = VirtualMemory.allocate(device, 4 * MIB, { ipc: true, stream });
      const buffer = VirtualMemory.grow(small, 30 * MIB, { stream });
      small.free();
      buffer.fill(1, { stream });
      await stream.finished();
      assertEquals(await peer.open("a", buffer.ipcDescriptor, buffer.exportHandles()), {
        kind: "virtual",
        isImported: true,
        byteLength: 30 * MIB,
      });
      assertEquals(await peer.ask({ do: "read", name: "a", byteOffset: 4 * MIB - 1, byteLength: 2 }), [1, 1]);
      await peer.ask({ do: "fill", name: "a", value: 7, byteOffset: 30 * MIB - 3, byteLength: 3 });
      assertEquals(await buffer.read({ byteOffset: 30 * MIB - 4 }), new Uint8Array([1, 7, 7, 7]));
      // A part names its place, and the whole is mapped
      const part = buffer.subarray(30 * MIB - 4, 30 * MIB - 2);
      await peer.open("b", part.ipcDescriptor, buffer.exportHandles());
      assertEquals(await peer.ask({ do: "read", name: "b" }), [1, 7]);
      // The importer's mapping keeps the memory when the exporter has freed it
      await buffer.closeAsync();
      assertEquals(await peer.ask({ do: "read", name: "b" }), [1, 7]);
      await peer.end();
    }
    await assertNoFdLeft(before);
  });

  test(`${runtime} is told how to import a pool's virtual buffer`, { skip: skipWithout(runtime) }, async () => {
    using device = Device.open(0);
    using stream = device.createStream();
    using pool = MemoryPool.create(device, { ipc: true });
    await using peer = await startPeer(runtime);
    using handle = pool.exportHandle();
    await peer.ask({ do: "importPool", name: "p", id: pool.id }, [handle.fd]);
    using big = pool.allocate(LIMIT + 1, { stream });
    big.subarray(LIMIT).fill(8, { stream });
    await stream.finished();
    await peer.open("big", big.ipcDescriptor, big.exportHandles());
    assertEquals(await peer.ask({ do: "read", name: "big", byteOffset: LIMIT, byteLength: 1 }), [8]);
    const forwarded = await peer.ask({ do: "descriptor", name: "big" });
    assertEquals(BufferDescriptor.fromJSON(forwarded).toBytes(), big.ipcDescriptor.toBytes());
    await peer.end();
  });
}

test("importing a virtual buffer through a pool says what to use instead", { skip: skipWithout(currentRuntime) }, async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device, { ipc: true });
  using handle = pool.exportHandle();
  using imported = MemoryPool.import(device, handle);
  using buffer = VirtualMemory.allocate(device, 100, { ipc: true });
  await assertRejects(
    () => Promise.resolve().then(() => DeviceBuffer.import(imported, buffer.ipcDescriptor, { stream })),
    InvalidArgumentError,
    "importVirtual",
  );
});
