import process from "node:process";
import { test } from "node:test";
import { assert, assertEquals, assertThrows } from "@std/assert";
import {
  Device,
  DeviceBuffer,
  DeviceNotVisibleError,
  InvalidArgumentError,
  MemoryPool,
  NotSupportedError,
  openDriver,
  VirtualMemory,
} from "../../mod.ts";
import { simulatorControl } from "../../src/driver/simulator/mod.ts";
import { currentRuntime, skipWithout } from "../helpers/runtimes.ts";
import { onGpu, runTestFile, skipOnGpu, startPeer } from "./peer.ts";

/** The last test runs this file again on a machine with several devices. */
const count = Device.list().length;
const skipWithFew: string | false = count < 2 ? "needs two devices" : false;
const noPeers = process.env.CUDA_IPC_SIM_PROFILE === "no-peer";
const skipWithoutPeers: string | false = skipWithFew || (noPeers ? "needs peer access" : false);

test("a pool with no other device has no peers", () => {
  using device = Device.open(0);
  using pool = MemoryPool.create(device);
  pool.setPeerAccess([]);
  pool.setPeerAccess([device]);
  assertEquals(pool.peerOrdinals, []);
  assertThrows(() => pool.setPeerAccess(device as unknown as Device[]), InvalidArgumentError, "an array of Devices");
  assertThrows(() => pool.setPeerAccess([{} as Device]), InvalidArgumentError, "a Device");
  assertEquals(device.canAccessPeer(device), false);
});

test("a device that cannot be reached is refused early", { skip: noPeers ? skipWithFew : "the devices reach each other" }, () => {
  using device = Device.open(0);
  using other = Device.open(1);
  using pool = MemoryPool.create(device);
  assertEquals(device.canAccessPeer(other), false);
  assertThrows(() => pool.setPeerAccess([other]), NotSupportedError, "cannot reach");
});

test("peers are set exactly, and read from the driver", { skip: skipWithoutPeers }, () => {
  using device = Device.open(0);
  using pool = MemoryPool.create(device);
  using other = Device.open(1);
  pool.setPeerAccess([other, device]);
  assertEquals(pool.peerOrdinals, [1]);
  pool.setPeerAccess([]);
  assertEquals(pool.peerOrdinals, []);
});

test("a later pool inherits no peers", { skip: skipWithoutPeers }, () => {
  using device = Device.open(0);
  using other = Device.open(1);
  const pool = MemoryPool.create(device);
  pool.setPeerAccess([other]);
  const revocations = () => onGpu ? 0 : simulatorControl(openDriver()).report().calls.cuMemPoolSetAccess;
  const before = revocations();
  pool.close();
  // The driver may give the next pool the same handle, with the peers that it had; the simulator never does
  if (!onGpu) assert(revocations() > before);
  using next = MemoryPool.create(device);
  assertEquals(next.peerOrdinals, []);
});

test("a peer's streams use the memory once they may", { skip: skipWithoutPeers }, async () => {
  using device = Device.open(0);
  using other = Device.open(1);
  using stream = device.createStream();
  using foreign = other.createStream();
  using pool = MemoryPool.create(device, { ipc: true });
  const buffer = pool.allocate(1000, { stream });
  await stream.finished();
  assertThrows(() => buffer.fill(1, { stream: foreign }), InvalidArgumentError, "setPeerAccess");
  pool.setPeerAccess([other]);
  buffer.fill(6, { stream: foreign });
  await foreign.finished();
  assertEquals((await buffer.read({ stream: foreign }))[999], 6);
  buffer.free({ stream: foreign });
  await foreign.finished();
  stream.synchronize();
  assertEquals(pool.attributes.usedBytes, 0);
  if (!onGpu || device.memoryInfo().freeBytes > 2 ** 34) {
    const big = pool.allocate(4064 * 2 ** 20 + 1, { stream });
    big.subarray(0, 10).fill(5, { stream: foreign });
    assertEquals((await big.read({ byteLength: 1, stream: foreign }))[0], 5);
    pool.setPeerAccess([]);
    assertThrows(() => big.fill(1, { stream: foreign }), InvalidArgumentError, "no access");
    await big.closeAsync();
  }
});

test("copies go from device to device, with and without peer access", { skip: skipWithFew }, async () => {
  using device = Device.open(0);
  using other = Device.open(1);
  using stream = device.createStream();
  using foreign = other.createStream();
  using pool = MemoryPool.create(device);
  using distant = MemoryPool.create(other);
  using from = pool.allocate(1000, { stream });
  using to = distant.allocate(1000, { stream: foreign });
  from.fill(9, { stream });
  stream.wait(foreign);
  to.copyFrom(from, { stream });
  foreign.wait(stream);
  assertEquals((await to.read())[999], 9);
  using third = Device.open(Math.min(2, count - 1));
  using unrelated = third.createStream();
  if (count > 2) assertThrows(() => to.copyFrom(from, { stream: unrelated }), InvalidArgumentError, "the stream belongs to");
  assertThrows(
    () => to.copyFrom2D(from, { rowBytes: 10, rows: 10, stream }),
    NotSupportedError,
    "no access",
  );
});

test("a pool is imported, and used on another device", { skip: skipWithoutPeers }, async () => {
  using device = Device.open(0);
  using other = Device.open(1);
  using stream = device.createStream();
  using foreign = other.createStream();
  using pool = MemoryPool.create(device, { ipc: true });
  using buffer = pool.allocate(1000, { stream });
  buffer.fill(7, { stream });
  await stream.finished();
  using handle = pool.exportHandle();
  using imported = MemoryPool.import(device, handle);
  // Access is each process's own, and not inherited
  assertThrows(
    () => DeviceBuffer.import(imported, buffer.ipcDescriptor, { stream: foreign }),
    InvalidArgumentError,
    "setPeerAccess",
  );
  imported.setPeerAccess([other]);
  assertEquals([imported.peerOrdinals, pool.peerOrdinals], [[1], []]);
  using mapped = DeviceBuffer.import(imported, buffer.ipcDescriptor, { stream: foreign });
  assertEquals((await mapped.read())[999], 7);
  imported.setPeerAccess([]);
});

test("virtual memory is imported on another device", { skip: skipWithoutPeers }, async () => {
  using device = Device.open(0);
  using other = Device.open(1);
  using buffer = VirtualMemory.allocate(device, 1000, { ipc: true });
  buffer.fill(7);
  await buffer.read({ byteLength: 1 });
  const handles = buffer.exportHandles();
  using alias = DeviceBuffer.importVirtual(other, buffer.ipcDescriptor, handles);
  assertEquals([alias.device, (await alias.read())[999]], [other, 7]);
  for (const handle of handles) handle.close();
});

test("peers of different CUDA_VISIBLE_DEVICES agree by UUID", { skip: skipWithFew || skipWithout(currentRuntime) }, async () => {
  using device = Device.open(1);
  using stream = device.createStream();
  using pool = MemoryPool.create(device, { ipc: true });
  using buffer = pool.allocate(1000, { stream });
  using virtual = VirtualMemory.allocate(device, 1000, { ipc: true, stream });
  buffer.fill(3, { stream });
  virtual.fill(4, { stream });
  await stream.finished();
  {
    await using peer = await startPeer(currentRuntime, { CUDA_VISIBLE_DEVICES: "1" });
    using handle = pool.exportHandle();
    await peer.ask({ do: "importPool", name: "p", id: pool.id }, [handle.fd]);
    await peer.open("a", buffer.ipcDescriptor, [], "p");
    assertEquals(await peer.ask({ do: "read", name: "a", byteOffset: 999, byteLength: 1 }), [3]);
    await peer.open("b", virtual.ipcDescriptor, virtual.exportHandles());
    assertEquals(await peer.ask({ do: "read", name: "b", byteOffset: 999, byteLength: 1 }), [4]);
    await peer.end();
  }
  {
    await using peer = await startPeer(currentRuntime, { CUDA_VISIBLE_DEVICES: "0" });
    const problem = await peer.open("b", virtual.ipcDescriptor, virtual.exportHandles()).then(() => "opened", String);
    assert(problem.includes("DeviceNotVisibleError") && problem.includes("CUDA_VISIBLE_DEVICES"), problem);
    assert(DeviceNotVisibleError.prototype instanceof Error);
    await peer.end();
  }
});

for (const profile of ["", "no-peer"]) {
  const how = profile === "" ? "that reach each other" : "that do not reach each other";
  test(`all of it with three devices ${how}`, { skip: skipOnGpu || (count > 1 ? "this is that run" : false) }, async () => {
    const { code, output } = await runTestFile(new URL(import.meta.url), {
      CUDA_IPC_SIM_DEVICES: "3",
      CUDA_IPC_SIM_PROFILE: profile,
      CUDA_IPC_SIM_MACHINE: `peers.${process.pid}`,
    });
    assertEquals(code, 0, output);
  });
}
