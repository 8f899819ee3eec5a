import process from "node:process";
import { test } from "node:test";
import { assert, assertEquals, assertMatch, assertThrows } from "@std/assert";
import {
  AllocationHandle,
  BufferDescriptor,
  ClosedError,
  Device,
  DeviceBuffer,
  HostPool,
  InvalidArgumentError,
  MemoryPool,
  NotSupportedError,
  OutOfMemoryError,
  ProtocolError,
  SameProcessError,
} from "../../mod.ts";
import { duplicateFd } from "../../src/os/fd.ts";
import { currentRuntime, skipWithout } from "../helpers/runtimes.ts";
import { collectGarbage } from "../helpers/garbage.ts";
import { assertNoFdLeft, countFds, onGpu, runTestFile, skipOnGpu, startPeer } from "./peer.ts";

const MIB = 1024 * 1024;
/** The last test runs this file again on a machine without host pools. */
const PROFILE = "no-host-pools";
const isFallback = process.env.CUDA_IPC_SIM_PROFILE === PROFILE;

test("the host and the device see the same bytes, without a copy", async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = HostPool.create(device);
  using buffer = pool.allocate(MIB, { stream });
  assertEquals([buffer.kind, buffer.byteLength, buffer.pool, buffer.device], ["host", MIB, pool, device]);
  assertEquals([buffer.view.byteLength, buffer.view === buffer.view], [MIB, true]);
  buffer.view.fill(7);
  assertEquals((await buffer.read())[MIB - 1], 7);
  buffer.fill(9, { stream });
  await stream.finished();
  assertEquals([buffer.view[0], buffer.view[MIB - 1]], [9, 9]);
});

test("copies go from and to device memory, whole and by rows", async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using hosts = HostPool.create(device);
  using devices = MemoryPool.create(device);
  using host = hosts.allocate(1024, { stream });
  using other = hosts.allocate(1024, { stream });
  using buffer = devices.allocate(1024, { stream });
  host.view.forEach((_, index, view) => view[index] = index);
  buffer.copyFrom(host, { stream });
  other.view.fill(0);
  other.copyFrom(buffer, { stream });
  await stream.finished();
  assertEquals(other.view, host.view);
  other.view.fill(0);
  other.copyFrom(host, { stream });
  await stream.finished();
  assertEquals(other.view, host.view);
  buffer.subarray(100).copyFrom2D(host.subarray(10), { rowBytes: 3, rows: 2, pitchBytes: 50, sourcePitchBytes: 20, stream });
  assertEquals(await buffer.read({ byteOffset: 99, byteLength: 5, stream }), new Uint8Array([99, 10, 11, 12, 103]));
  assertEquals(await buffer.read({ byteOffset: 149, byteLength: 5, stream }), new Uint8Array([149, 30, 31, 32, 153]));
  host.subarray(10).copyFrom2D(buffer.subarray(100), { rowBytes: 3, rows: 2, pitchBytes: 4, sourcePitchBytes: 50, stream });
  await stream.finished();
  assertEquals(host.view.subarray(10, 18), new Uint8Array([10, 11, 12, 13, 30, 31, 32, 17]));
});

test("a view is detached when its buffer, or its part, ends", () => {
  using device = Device.open(0);
  using pool = HostPool.create(device);
  const buffer = pool.allocate(100);
  const part = buffer.subarray(10, 20);
  const other = buffer.subarray(30, 40);
  const views = [buffer.view, part.view, other.view];
  views[1].fill(5);
  assertEquals([views[0][9 + 1], views[0][19]], [5, 5]);
  const ofParts = [part.subarray(1).subarray(1).view, other.subarray(1).subarray(1).view];
  part.close();
  assertEquals([...views, ...ofParts].map(({ length }) => length), [100, 0, 10, 0, 8]);
  buffer.free();
  assertEquals([...views, ...ofParts].map(({ length }) => length), [0, 0, 0, 0, 0]);
  assertThrows(() => buffer.view, ClosedError);
});

test("a buffer whose view was transferred is freed all the same", () => {
  using device = Device.open(0);
  using pool = HostPool.create(device);
  const buffer = pool.allocate(100);
  const part = buffer.subarray(10, 20);
  const views = [buffer.view, part.view, buffer.subarray(30).view];
  for (const { buffer } of views.slice(0, 2)) structuredClone(buffer, { transfer: [buffer] });
  part.close();
  buffer.free();
  assertEquals(views.map(({ length }) => length), [0, 0, 0]);
  assertEquals(pool.attributes.usedBytes, 0);
});

test("a view keeps its buffer's memory when the buffer is lost", async () => {
  using device = Device.open(0);
  using pool = HostPool.create(device);
  const view = (() => pool.allocate(4096).view)();
  view.fill(3);
  for (let i = 0; i < 5; i++) {
    collectGarbage();
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  assert(pool.attributes.usedBytes >= 4096);
  assertEquals(view.every((byte) => byte === 3), true);
});

test("more than 4 GiB is viewed in parts", { skip: skipOnGpu }, () => {
  using device = Device.open(0);
  using pool = HostPool.create(device);
  using buffer = pool.allocate(2 ** 32 + 10);
  assertThrows(() => buffer.view, RangeError, "subarray");
  const end = buffer.subarray(2 ** 32 - 5).view;
  end.fill(1);
  assertEquals([end.byteLength, buffer.subarray(2 ** 32 - 6, 2 ** 32 + 10).view[0]], [15, 0]);
});

test("device memory has no view", () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device);
  using buffer = pool.allocate(100, { stream });
  assertThrows(() => buffer.view, NotSupportedError, "HostPool");
});

test("memory that was freed behind work comes back when the work is done", async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = HostPool.create(device);
  const buffer = pool.allocate(MIB, { stream });
  buffer.fill(1, { stream });
  await buffer.closeAsync();
  assertEquals(pool.attributes.usedBytes, 0);
  using next = pool.allocate(MIB);
  next.view.fill(2);
  assertEquals(next.view[0], 2);
});

test("a wrong argument is refused", () => {
  using device = Device.open(0);
  assertThrows(() => HostPool.create(device, { maxBytes: 0 }), InvalidArgumentError, "maxBytes");
  assertThrows(() => HostPool.create(device, { numaNode: -1 }), InvalidArgumentError, "numaNode");
  if (!isFallback) assertThrows(() => HostPool.create(device, { numaNode: 99 }), InvalidArgumentError, "NUMA node 99");
  assertThrows(() => HostPool.create(device, { ipc: 1 as unknown as boolean }), InvalidArgumentError, "ipc");
  assertThrows(() => HostPool.create({} as Device), InvalidArgumentError, "device");
  using plain = HostPool.create(device);
  for (const length of [0, -1, 2.5]) assertThrows(() => plain.allocate(length), InvalidArgumentError, "byteLength");
  assertThrows(() => plain.exportHandle(), InvalidArgumentError, "{ ipc: true }");
  using buffer = plain.allocate(10);
  assertThrows(() => buffer.ipcDescriptor, InvalidArgumentError, "{ ipc: true }");
  const closed = HostPool.create(device);
  closed.close();
  assertThrows(() => closed.allocate(1), ClosedError);
  assertThrows(() => new (HostPool as unknown as new () => HostPool)(), InvalidArgumentError, "HostPool.create()");
  assertThrows(() => HostPool.import({} as AllocationHandle), InvalidArgumentError, "AllocationHandle");
  using terminal = AllocationHandle.fromFd(duplicateFd(0));
  assertThrows(() => HostPool.import(terminal, { device }), ProtocolError, "not a handle of the driver");
});

test("in its own process an import is an alias", async () => {
  using device = Device.open(0);
  using pool = HostPool.create(device, { ipc: true });
  const buffer = pool.allocate(100);
  buffer.view.fill(4);
  const { ipcDescriptor } = buffer;
  const alias = DeviceBuffer.import(pool, ipcDescriptor);
  buffer.free();
  assertEquals([alias.view[50], alias.isImported], [4, false]);
  await alias.closeAsync();
  assertEquals(pool.attributes.usedBytes, 0);
  assertThrows(() => DeviceBuffer.import(pool, ipcDescriptor), SameProcessError);
});

for (const runtime of ["deno", "bun"] as const) {
  for (const withDevice of [true, false]) {
    const how = withDevice ? "with a device" : "without a context";
    test(`${currentRuntime} shares host memory with ${runtime} ${how}`, { skip: skipWithout(runtime) }, async () => {
      using device = Device.open(0);
      using stream = device.createStream();
      const fds = countFds();
      {
        using pool = HostPool.create(device, { ipc: true }); // the driver keeps a descriptor with a pool that was exported
        await using peer = await startPeer(runtime);
        const handle = pool.exportHandle();
        await peer.ask({ do: "importHostPool", name: "p", id: pool.id, withDevice }, [handle.fd]);
        handle.close();
        const buffer = pool.allocate(10_000, { stream });
        buffer.view.fill(1);
        await peer.open("a", buffer.ipcDescriptor, [], "p");
        assertEquals(await peer.ask({ do: "view", name: "a", byteOffset: 9_998, byteLength: 2 }), [1, 1]);
        // A second import is the same mapping; the first to be freed leaves it
        await peer.open("b", buffer.subarray(100, 200).ipcDescriptor, [], "p");
        await peer.ask({ do: "free", name: "a" });
        await peer.ask({ do: "setView", name: "b", value: 6, byteOffset: 0, byteLength: 3 });
        assertEquals(buffer.view.subarray(99, 104), new Uint8Array([1, 6, 6, 6, 1]));
        // What the device writes here, the host sees there
        buffer.subarray(100, 102).fill(8, { stream });
        await stream.finished();
        assertEquals(await peer.ask({ do: "view", name: "b", byteOffset: 0, byteLength: 4 }), [8, 8, 6, 1]);
        if (withDevice) {
          await peer.ask({ do: "fill", name: "b", value: 3, byteOffset: 1, byteLength: 1 });
          assertEquals(buffer.view[101], 3);
        } else {
          const problem = await peer.ask({ do: "read", name: "b" }).then(() => "read", String);
          assertMatch(problem, /NotSupportedError.*imported without one. Use buffer.view/);
        }
        assertEquals(await peer.ask({ do: "hasContext" }), withDevice);
        await peer.ask({ do: "free", name: "b" });
        await peer.open("c", buffer.ipcDescriptor, [], "p");
        assertEquals(await peer.ask({ do: "view", name: "c", byteOffset: 100, byteLength: 1 }), [8]);
        await peer.ask({ do: "free", name: "c" });
        await peer.end();
        await buffer.closeAsync();
      }
      await assertNoFdLeft(fds);
    });
  }
}

test("without a context a place in the pool is imported again, in other lengths", {
  skip: skipWithout(currentRuntime),
}, async () => {
  using device = Device.open(0);
  using pool = HostPool.create(device, { ipc: true });
  await using peer = await startPeer(currentRuntime);
  {
    using handle = pool.exportHandle();
    await peer.ask({ do: "importHostPool", name: "p", id: pool.id, withDevice: false }, [handle.fd]);
  }
  for (const lengths of [[4], [2, 2], [1, 2, 1], [5], [3, 1]]) {
    const buffers = lengths.map((length) => pool.allocate(length * 64 * 1024));
    for (const [index, buffer] of buffers.entries()) {
      buffer.view.fill(5 + index);
      await peer.open(`${index}`, buffer.ipcDescriptor, [], "p");
    }
    for (const [index, { byteLength }] of buffers.entries()) {
      const seen = await peer.ask({ do: "view", name: `${index}`, byteOffset: byteLength - 1, byteLength: 1 });
      assertEquals(seen, [5 + index]);
      await peer.ask({ do: "free", name: `${index}` });
    }
    for (const buffer of buffers) await buffer.closeAsync();
  }
  await peer.end();
});

for (const runtime of ["deno", "bun"] as const) {
  test(`${currentRuntime} shares more host memory than a driver's pool can with ${runtime}`, {
    skip: skipWithout(runtime),
  }, async () => {
    const LARGE = 4064 * MIB + 1;
    using device = Device.open(0);
    using stream = device.createStream();
    using pool = HostPool.create(device, { ipc: true, maxBytes: 6000 * MIB });
    const buffer = pool.allocate(LARGE, { stream });
    assert(pool.attributes.usedBytes >= LARGE);
    for (const length of [LARGE, 1950 * MIB]) assertThrows(() => pool.allocate(length), OutOfMemoryError, "maxBytes");
    pool.allocate(MIB).free();
    const last = buffer.subarray(LARGE - 3);
    buffer.subarray(0, 1).view[0] = 21;
    last.view.set([22, 23, 24]);
    last.subarray(1, 2).fill(25, { stream });
    await stream.finished();

    await using peer = await startPeer(runtime);
    {
      using handle = buffer.pool!.exportHandle();
      await peer.ask({ do: "importHostPool", name: "p", id: buffer.pool!.id, withDevice: true }, [handle.fd]);
    }
    await peer.open("a", buffer.ipcDescriptor, [], "p");
    assertEquals(await peer.ask({ do: "read", name: "a", byteOffset: 0, byteLength: 1 }), [21]);
    assertEquals(await peer.ask({ do: "read", name: "a", byteOffset: LARGE - 3, byteLength: 3 }), [22, 25, 24]);
    await peer.ask({ do: "fill", name: "a", value: 26, byteOffset: LARGE - 1, byteLength: 1 });
    assertEquals(last.view, new Uint8Array([22, 25, 26]));
    await peer.ask({ do: "free", name: "a" });
    await peer.end();
    await buffer.closeAsync();
    assertEquals(pool.attributes.usedBytes, 0);
  });
}

test("a descriptor that was tampered with is refused", { skip: skipWithout(currentRuntime) }, async () => {
  using device = Device.open(0);
  using pool = HostPool.create(device, { ipc: true });
  using other = HostPool.create(device, { ipc: true });
  using buffer = pool.allocate(100);
  await using peer = await startPeer(currentRuntime);
  using handle = pool.exportHandle();
  await peer.ask({ do: "importHostPool", name: "p", id: pool.id, withDevice: false }, [handle.fd]);
  const { ipcDescriptor: good } = buffer;
  const refuse = async (change: object, error: RegExp) => {
    const opaque = "opaque" in change ? change.opaque as Uint8Array : good.opaque;
    const descriptor = new BufferDescriptor({ ...good, ...change, opaque });
    const problem = await peer.open("bad", descriptor, [], "p").then(() => "accepted", (error) => String(error));
    assertMatch(problem, error);
  };
  // Shared memory has no end of its own to check against, and nothing that a wrong length could break
  if (!isFallback) await refuse({ allocationByteLength: 1_000_000, byteLength: 1_000_000 }, /ProtocolError/);
  await refuse({ opaque: good.opaque.map((byte, index) => index >= 24 && index < 32 ? 0x7f : byte) }, /ProtocolError/);
  await refuse({ poolId: other.id }, /InvalidArgumentError.*poolId/);
  await refuse({ memoryKind: "pool" }, /InvalidArgumentError.*memoryKind/);
  await peer.open("good", good, [], "p");
  await peer.end();
});

// ---- machines whose driver has no host pools

test("where the driver has no host pools, shared memory does the same", { skip: skipOnGpu || isFallback }, async () => {
  const { code, output } = await runTestFile(new URL(import.meta.url), { CUDA_IPC_SIM_PROFILE: PROFILE });
  assertEquals(code, 0, output);
});

test("this run is on shared memory", { skip: isFallback ? false : "the driver has host pools" }, () => {
  using device = Device.open(0);
  using pool = HostPool.create(device, { ipc: true });
  using handle = pool.exportHandle();
  using buffer = pool.allocate(100);
  assertEquals(device.ipcSupport().host.isSupported, false);
  assert(!onGpu && handle.fd >= 0);
  assertEquals(new TextDecoder().decode(buffer.ipcDescriptor.opaque.subarray(0, 8)), "cuda-ipc");
});
