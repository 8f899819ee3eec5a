import { test } from "node:test";
import { assert, assertEquals, assertRejects, assertThrows } from "@std/assert";
import {
  BufferDescriptor,
  ClosedError,
  CudaDriverError,
  Device,
  type DeviceBuffer,
  HostPool,
  InvalidArgumentError,
  legacy,
  MemoryPool,
  NotSupportedError,
  SameProcessError,
  VirtualMemory,
} from "../../mod.ts";
import { currentRuntime, skipWithout } from "../helpers/runtimes.ts";
import { PeerError, startPeer } from "./peer.ts";

test("legacy memory is a buffer like any other", async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using buffer = legacy.allocate(device, 1000, { stream });
  assertEquals([buffer.kind, buffer.byteLength, buffer.isImported], ["legacy", 1000, false]);
  buffer.fill(7, { stream });
  assertEquals((await buffer.read())[999], 7);
});

test("a handle names the whole allocation, and is the same for each part", () => {
  using device = Device.open(0);
  using buffer = legacy.allocate(device, 1000);
  const handle = legacy.memHandle(buffer);
  assertEquals(handle.byteLength, 64);
  assertEquals(legacy.memHandle(buffer.subarray(100, 200)), handle);
  assertEquals(buffer.subarray(100, 200).ipcDescriptor.byteOffset, 100);
});

test("other kinds of memory have no handle, and the error says what to do", () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device, { ipc: true });
  using hosts = HostPool.create(device);
  using pooled = pool.allocate(100, { stream });
  using virtual = VirtualMemory.allocate(device, 100, { ipc: true });
  using host = hosts.allocate(100);
  assertThrows(() => legacy.memHandle(pooled), NotSupportedError, 'kind "pool" has none. Share it by buffer.ipcDescriptor');
  assertThrows(() => legacy.memHandle(virtual), NotSupportedError, "exportHandles");
  assertThrows(() => legacy.memHandle(host), NotSupportedError, 'kind "host"');
  assertThrows(() => legacy.memHandle({} as DeviceBuffer), InvalidArgumentError, "a DeviceBuffer");
  const freed = legacy.allocate(device, 100);
  freed.free();
  assertThrows(() => legacy.memHandle(freed), ClosedError);
});

test("a process cannot open its own handle", () => {
  using device = Device.open(0);
  using buffer = legacy.allocate(device, 100);
  assertThrows(() => legacy.openMemHandle(device, legacy.memHandle(buffer)), SameProcessError);
  assertThrows(() => legacy.openMemHandle(device, buffer.ipcDescriptor), SameProcessError);
});

test("what is no handle is refused", () => {
  using device = Device.open(0);
  assertThrows(() => legacy.openMemHandle(device, new Uint8Array(63)), InvalidArgumentError, "63, expected 64, or 66");
  assertThrows(() => legacy.openMemHandle(device, new Uint8Array(66)), InvalidArgumentError, "66");
  assertThrows(() => legacy.openMemHandle(device, "x" as unknown as Uint8Array), InvalidArgumentError, "handle");
  assertThrows(
    () => legacy.openMemHandle(device, new Uint8Array([2, 0x65, ...new Array(28).fill(1)])),
    NotSupportedError,
    "expand",
  );
  assertThrows(() => legacy.openMemHandle(device, new Uint8Array(64).fill(0xee)), CudaDriverError, "cuIpcOpenMemHandle");
  assertThrows(() => legacy.openMemHandle(device, new Uint8Array(64), { byteOffset: -1 }), InvalidArgumentError, "byteOffset");
  assertThrows(() => legacy.openMemHandle(device, new Uint8Array(64), { byteLength: 0 }), InvalidArgumentError, "byteLength");
  assertThrows(() => legacy.allocate(device, 0), InvalidArgumentError, "byteLength");
});

test("freeing waits for work of any stream, and does not block the loop", async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using other = device.createStream();
  using pool = MemoryPool.create(device);
  using work = pool.allocate(256 * 1024 * 1024, { stream: other });
  const buffer = legacy.allocate(device, 1000, { stream });
  for (let i = 0; i < 20; i++) work.fill(i, { stream: other });
  const begin = performance.now();
  buffer.free();
  const blockedMs = performance.now() - begin;
  assert(blockedMs < 1000, `free() took ${blockedMs} ms`);
  await buffer.closeAsync();
  assertEquals(other.isIdle, true);
});

for (const runtime of ["deno", "bun"] as const) {
  test(`${currentRuntime} shares legacy memory with ${runtime}`, { skip: skipWithout(runtime) }, async () => {
    using device = Device.open(0);
    await using peer = await startPeer(runtime);
    const buffer = legacy.allocate(device, 5000);
    buffer.fill(1);
    await buffer.read({ byteLength: 1 });
    await peer.open("a", buffer.ipcDescriptor);
    await peer.open("b", buffer.subarray(1000, 2000).ipcDescriptor);
    assertEquals(await peer.ask({ do: "read", name: "a", byteOffset: 4999, byteLength: 1 }), [1]);
    await peer.ask({ do: "fill", name: "b", value: 5, byteOffset: 0, byteLength: 2 });
    assertEquals(await buffer.read({ byteOffset: 999, byteLength: 4 }), new Uint8Array([1, 5, 5, 1]));
    // The driver counts: one close leaves the other's mapping
    await peer.ask({ do: "free", name: "a" });
    assertEquals(await peer.ask({ do: "read", name: "b", byteOffset: 0, byteLength: 1 }), [5]);
    const forwarded = BufferDescriptor.fromJSON(await peer.ask({ do: "descriptor", name: "b" }));
    assertEquals(forwarded.toBytes(), buffer.subarray(1000, 2000).ipcDescriptor.toBytes());
    await peer.ask({ do: "free", name: "b" });
    await peer.end();
    await buffer.closeAsync();
  });

  test(`${runtime} opens a bare handle, and PyTorch's`, { skip: skipWithout(runtime) }, async () => {
    using device = Device.open(0);
    await using peer = await startPeer(runtime);
    using buffer = legacy.allocate(device, 4096);
    buffer.fill(3);
    buffer.subarray(100, 110).fill(4);
    await buffer.read({ byteLength: 1 });
    const bare = legacy.memHandle(buffer);
    const open = (name: string, handle: number[], options: object) => peer.ask({ do: "openHandle", name, handle, options });
    assertEquals(await open("a", [...bare], { byteOffset: 100, byteLength: 10 }), { byteLength: 10 });
    assertEquals(await peer.ask({ do: "read", name: "a" }), new Array(10).fill(4));
    assertEquals(await open("b", [2, 0x63, ...bare], { byteOffset: 98, byteLength: 4 }), { byteLength: 4 });
    assertEquals(await peer.ask({ do: "read", name: "b" }), [3, 3, 4, 4]);
    const error = await assertRejects(() => open("c", [...bare], { byteOffset: 2 ** 40 }), PeerError, "do not lie within");
    assertEquals(error.errorName, "InvalidArgumentError");
    await peer.ask({ do: "free", name: "a" });
    await peer.ask({ do: "free", name: "b" });
    await peer.end();
  });
}
