import { test } from "node:test";
import { assert, assertEquals, assertMatch, assertThrows } from "@std/assert";
import {
  AllocationHandle,
  BufferDescriptor,
  ClosedError,
  Device,
  DeviceBuffer,
  ImportLimitError,
  InvalidArgumentError,
  MemoryPool,
  NotSupportedError,
  OutOfMemoryError,
  ProtocolError,
  SameProcessError,
  SystemCallError,
} from "../../mod.ts";
import { duplicateFd } from "../../src/os/fd.ts";
import { currentRuntime, skipWithout } from "../helpers/runtimes.ts";
import { startPeer } from "./peer.ts";

const MIB = 1024 * 1024;

test("attributes follow what is allocated, and trim gives back what is not used", () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device);
  assertEquals(pool.attributes, {
    reservedBytes: 0,
    usedBytes: 0,
    reservedHighBytes: 0,
    usedHighBytes: 0,
    releaseThresholdBytes: Infinity,
  });
  const buffer = pool.allocate(40 * MIB, { stream });
  assert(pool.attributes.usedBytes >= 40 * MIB && pool.attributes.reservedBytes >= pool.attributes.usedBytes);
  buffer.free();
  stream.synchronize(); // only this tells the driver that the memory can be given back
  assertEquals(pool.attributes.usedBytes, 0);
  assert(pool.attributes.usedHighBytes >= 40 * MIB);
  assert(pool.attributes.reservedBytes >= 40 * MIB);
  pool.trim();
  assertEquals(pool.attributes.reservedBytes, 0);
});

test("options are kept and checked", () => {
  using device = Device.open(0);
  using pool = MemoryPool.create(device, { ipc: true, releaseThresholdBytes: 12345 });
  assertEquals([pool.isIpcEnabled, pool.isImported, pool.device], [true, false, device]);
  assertEquals(pool.attributes.releaseThresholdBytes, 12345);
  assertMatch(pool.id, /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
  assertThrows(() => MemoryPool.create(device, { maxBytes: 0 }), InvalidArgumentError, "maxBytes");
  assertThrows(() => MemoryPool.create(device, { releaseThresholdBytes: -1 }), InvalidArgumentError, "releaseThresholdBytes");
  assertThrows(() => MemoryPool.create(device, { ipc: "yes" as unknown as boolean }), InvalidArgumentError, "ipc");
  assertThrows(() => MemoryPool.create({} as Device), InvalidArgumentError, "a Device");
});

test("maxBytes ends in OutOfMemoryError, and freed memory can be had again", () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device, { maxBytes: 32 * MIB });
  const buffer = pool.allocate(20 * MIB, { stream });
  assertThrows(() => pool.allocate(20 * MIB, { stream }), OutOfMemoryError, `maxBytes allows ${32 * MIB}`);
  buffer.free();
  pool.allocate(20 * MIB, { stream }).free();
});

test("a wrong length or stream is refused", () => {
  using device = Device.open(0);
  using stream = device.createStream();
  const pool = MemoryPool.create(device);
  for (const length of [0, -1, 0.5, NaN, Infinity, 2 ** 47 + 1, 2 ** 53 - 1, 2 ** 53, "1", 1n, null, undefined]) {
    assertThrows(() => pool.allocate(length as number, { stream }), InvalidArgumentError, "byteLength");
  }
  assertThrows(() => pool.allocate(1, {} as never), InvalidArgumentError, "a CudaStream");
  const copy = new (class CudaStream {})(); // as from another copy of this module
  assertThrows(() => pool.allocate(1, { stream: copy as never }), InvalidArgumentError, "made by another copy of this module");
  assertThrows(() => pool.allocate(1, undefined as never), InvalidArgumentError, "a CudaStream");
  assertThrows(() => pool.trim(-1), InvalidArgumentError, "minBytesToKeep");
  pool.close();
  assertThrows(() => pool.allocate(1, { stream }), ClosedError);
  assertThrows(() => pool.attributes, ClosedError);
  assertThrows(() => pool.trim(), ClosedError);
  assertThrows(() => pool.exportHandle(), ClosedError);
});

test("a closed pool's buffers live on", async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  const pool = MemoryPool.create(device);
  using buffer = pool.allocate(100, { stream });
  pool.close();
  buffer.fill(3);
  assertEquals((await buffer.read())[99], 3);
});

test("nothing of a pool without ipc can be exported", () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device);
  using buffer = pool.allocate(100, { stream });
  assertThrows(() => pool.exportHandle(), InvalidArgumentError, "{ ipc: true }");
  assertThrows(() => buffer.ipcDescriptor, InvalidArgumentError, "{ ipc: true }");
});

test("in its own process a descriptor gives an alias, until the original and it are freed", async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device, { ipc: true });
  const buffer = pool.allocate(1000, { stream });
  buffer.fill(5);
  const { ipcDescriptor } = buffer.subarray(100, 200);
  const alias = DeviceBuffer.import(pool, BufferDescriptor.fromBytes(ipcDescriptor.toBytes()), { stream });
  assertEquals([alias.address, alias.byteLength, alias.isImported], [buffer.address + 100n, 100, false]);
  buffer.free();
  assertEquals((await alias.read())[0], 5);
  assert(pool.attributes.usedBytes > 0);
  alias.free();
  stream.synchronize();
  assertEquals(pool.attributes.usedBytes, 0);
  assertThrows(() => DeviceBuffer.import(pool, ipcDescriptor, { stream }), SameProcessError, "freed");
});

test("the same descriptor is given each time, and two allocations differ in their generation", () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device, { ipc: true });
  const first = pool.allocate(1000, { stream });
  assertEquals(first.ipcDescriptor, first.ipcDescriptor);
  const { generation } = first.ipcDescriptor;
  const { address } = first;
  first.free();
  using second = pool.allocate(1000, { stream });
  assertEquals(second.address, address); // the test would show nothing otherwise
  assert(second.ipcDescriptor.generation > generation);
});

test("handles are fresh each time, and belong to whoever asked", () => {
  using device = Device.open(0);
  using pool = MemoryPool.create(device, { ipc: true });
  const first = pool.exportHandle();
  const second = pool.exportHandle();
  assert(first.fd !== second.fd);
  assertEquals([first.poolId, second.poolId], [pool.id, pool.id]);
  first.close();
  first.close();
  assertThrows(() => first.fd, ClosedError);
  second.close();
  assertThrows(() => AllocationHandle.fromFd(-1), InvalidArgumentError, "fd");
  assertThrows(() => AllocationHandle.fromFd(1_000_000), SystemCallError, "EBADF");
});

test("importing what is no pool's handle is refused", () => {
  using device = Device.open(0);
  assertThrows(() => MemoryPool.import(device, 3 as unknown as AllocationHandle), InvalidArgumentError, "an AllocationHandle");
  using terminal = AllocationHandle.fromFd(duplicateFd(0));
  assertThrows(() => MemoryPool.import(device, terminal), ProtocolError, "not a handle of the driver");
  using pool = MemoryPool.create(device, { ipc: true });
  using handle = pool.exportHandle();
  assertThrows(() => MemoryPool.import(device, handle, { id: "x" }), InvalidArgumentError, "id");
});

test("an imported pool gives nothing of its own", () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device, { ipc: true });
  using handle = pool.exportHandle();
  using imported = MemoryPool.import(device, handle);
  assertEquals([imported.isImported, imported.isIpcEnabled, imported.id], [true, true, pool.id]);
  assertThrows(() => imported.allocate(1, { stream }), NotSupportedError, "only the process that made it");
  assertThrows(() => imported.attributes, NotSupportedError);
  assertThrows(() => imported.trim(), NotSupportedError);
  assertThrows(() => imported.exportHandle(), NotSupportedError);
});

test("a descriptor that does not fit is refused before the driver sees it", { skip: skipWithout(currentRuntime) }, async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device, { ipc: true });
  using other = MemoryPool.create(device, { ipc: true });
  using buffer = pool.allocate(1000, { stream });
  const { ipcDescriptor: good } = buffer;
  await using peer = await startPeer(currentRuntime);
  {
    using handle = pool.exportHandle();
    await peer.ask({ do: "importPool", name: "p", id: pool.id }, [handle.fd]);
  }
  const refused = async (change: object): Promise<string> => {
    const descriptor = new BufferDescriptor({ ...good, opaque: good.opaque, ...change });
    return await peer.open("bad", descriptor, [], "p").then(() => "accepted", String);
  };
  assertMatch(await refused({ poolId: other.id }), /InvalidArgumentError.*poolId/);
  assertMatch(await refused({ memoryKind: "legacy", poolId: null }), /Error/);
  assertMatch(await refused({ deviceUuid: "GPU-00000000-0000-0000-0000-000000000000" }), /DeviceNotVisibleError/);
  const huge = 4064 * MIB + 1;
  assertMatch(await refused({ allocationByteLength: huge, byteLength: huge }), /ImportLimitError.*4064 MiB/);
  assertMatch(await refused({ allocationByteLength: 2000, byteLength: 2000 }), /ProtocolError.*1000 bytes, its descriptor 2000/);
  const far = good.opaque.map((byte, index) => index >= 24 && index < 31 ? 0x7f : byte);
  assertMatch(await refused({ opaque: far }), /ProtocolError.*beyond the device/);
  const long = good.opaque.map((byte, index) => index >= 32 && index < 39 ? 0x7f : byte);
  assertMatch(await refused({ opaque: long }), /ProtocolError/);
  await peer.open("good", good, [], "p");
  assertThrows(() => DeviceBuffer.import(other, good, { stream }), InvalidArgumentError, "poolId");
  assertThrows(
    () =>
      DeviceBuffer.import(pool, new BufferDescriptor({ ...good, opaque: good.opaque, exporter: { ...good.exporter, pid: 1 } }), {
        stream,
      }),
    InvalidArgumentError,
    "comes from process 1",
  );
  assertThrows(() => DeviceBuffer.import(pool, {} as BufferDescriptor, { stream }), InvalidArgumentError, "a BufferDescriptor");
  await peer.end();
});

test("an import whose memory was freed and allocated anew says so", { skip: skipWithout(currentRuntime) }, async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device, { ipc: true });
  await using peer = await startPeer(currentRuntime);
  {
    using handle = pool.exportHandle();
    await peer.ask({ do: "importPool", name: "p", id: pool.id }, [handle.fd]);
  }
  const first = pool.allocate(1000, { stream });
  const { address } = first;
  await peer.open("old", first.ipcDescriptor, [], "p");
  first.free();
  using second = pool.allocate(1000, { stream });
  assertEquals(second.address, address);
  second.fill(7);
  await stream.finished();
  await peer.open("new", second.ipcDescriptor, [], "p");
  assertEquals(await peer.ask({ do: "read", name: "new", byteOffset: 0, byteLength: 1 }), [7]);
  const problem = await peer.ask({ do: "read", name: "old", byteOffset: 0, byteLength: 1 }).then(() => "read", String);
  assertMatch(problem, /ClosedError.*allocated it anew/);
  // The older object's end leaves the newer one's mapping
  await peer.ask({ do: "free", name: "old" });
  assertEquals(await peer.ask({ do: "read", name: "new", byteOffset: 0, byteLength: 1 }), [7]);
  await peer.end();
});

test("4064 MiB exactly is an ordinary allocation", () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device, { ipc: true });
  using buffer = pool.allocate(4064 * MIB, { stream });
  assertEquals(buffer.kind, "pool");
  assertEquals(buffer.ipcDescriptor.memoryKind, "pool");
  assert(ImportLimitError.prototype instanceof Error);
});
