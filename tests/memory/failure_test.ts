/** What is left when a driver call fails half way: nothing. Needs the simulator, which can make any call fail. */
import { test } from "node:test";
import { assertEquals, assertMatch, assertThrows } from "@std/assert";
import {
  CudaDriverError,
  Device,
  DeviceBuffer,
  HostPool,
  legacy,
  MemoryPool,
  openDriver,
  OutOfMemoryError,
  VirtualMemory,
} from "../../mod.ts";
import { simulatorControl } from "../../src/driver/simulator/mod.ts";
import { CUDA_ERROR_UNKNOWN } from "../../src/driver/results.ts";
import { currentRuntime, runRuntime } from "../helpers/runtimes.ts";
import { countFds, onGpu, skipOnGpu } from "./peer.ts";

const MIB = 2 ** 20;
const GIB = 2 ** 30;
const control = onGpu ? undefined! : simulatorControl(openDriver());

/** What the process has of the driver and of the system. */
function inventory(device: Device): unknown {
  return { objects: control.report().liveObjects, freeBytes: device.memoryInfo().freeBytes, fds: countFds() };
}

/** `action` fails with each of the calls in turn, leaves nothing behind, and works afterwards. */
function checkUnwinding(device: Device, calls: Record<string, number>, action: () => { close(): void }): void {
  action().close(); // what is made once stays
  const before = inventory(device);
  for (const [call, times] of Object.entries(calls)) {
    for (let at = 1; at <= times; at++) {
      control.injectFault({ call, code: CUDA_ERROR_UNKNOWN, at, count: 1 });
      const error = assertThrows(action, CudaDriverError);
      assertMatch(error.message, new RegExp(`${call}.*\\(999\\)`));
      control.clearFaults();
      assertEquals(inventory(device), before, `after ${call} number ${at} failed`);
    }
  }
  action().close();
  assertEquals(inventory(device), before);
}

test("a failed allocation of virtual memory leaves nothing", { skip: skipOnGpu }, () => {
  using device = Device.open(0);
  using stream = device.createStream();
  const calls = { cuMemGetAllocationGranularity: 1, cuMemCreate: 1, cuMemAddressReserve: 1, cuMemMap: 1, cuMemSetAccess: 1 };
  checkUnwinding(device, calls, () => VirtualMemory.allocate(device, 3 * MIB, { ipc: true, stream }));
  checkUnwinding(device, { ...calls, cuStreamCreateWithPriority: 1 }, () => VirtualMemory.allocate(device, 3 * MIB));
});

test("a failed growth leaves the buffer as it was", { skip: skipOnGpu }, async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using small = VirtualMemory.allocate(device, 3 * MIB, { stream });
  using buffer = VirtualMemory.grow(small, 9 * MIB, { stream });
  buffer.fill(4, { stream });
  const calls = { cuMemCreate: 1, cuMemAddressReserve: 1, cuMemMap: 3, cuMemSetAccess: 3 };
  checkUnwinding(device, calls, () => VirtualMemory.grow(buffer, 30 * MIB, { stream }));
  assertEquals((await buffer.read({ byteOffset: 9 * MIB - 1, stream }))[0], 4);
});

test("a failed import of virtual memory leaves nothing, and the handles", { skip: skipOnGpu }, () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using small = VirtualMemory.allocate(device, 3 * MIB, { ipc: true, stream });
  using buffer = VirtualMemory.grow(small, 9 * MIB, { stream });
  const handles = buffer.exportHandles();
  const calls = { cuMemImportFromShareableHandle: 2, cuMemAddressReserve: 1, cuMemMap: 2, cuMemSetAccess: 2 };
  checkUnwinding(device, calls, () => DeviceBuffer.importVirtual(device, buffer.ipcDescriptor, handles, { stream }));
  for (const handle of handles) handle.close();
});

test("a failed export of handles closes those that were made", { skip: skipOnGpu }, () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using small = VirtualMemory.allocate(device, 3 * MIB, { ipc: true, stream });
  using buffer = VirtualMemory.grow(small, 9 * MIB, { stream });
  checkUnwinding(device, { cuMemExportToShareableHandle: 2 }, () => {
    const handles = buffer.exportHandles();
    return { close: () => handles.forEach((handle) => handle.close()) };
  });
});

test("a failed allocation of pool, host and legacy memory leaves nothing", { skip: skipOnGpu }, () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device, { ipc: true });
  using hosts = HostPool.create(device, { ipc: true });
  checkUnwinding(device, { cuMemAllocFromPoolAsync: 1 }, () => pool.allocate(100, { stream }));
  checkUnwinding(device, { cuMemAllocFromPoolAsync: 1 }, () => hosts.allocate(100, { stream }));
  checkUnwinding(device, { cuMemAlloc: 1 }, () => legacy.allocate(device, 100, { stream }));
  checkUnwinding(device, { cuMemPoolCreate: 1, cuMemPoolSetAttribute: 1 }, () => MemoryPool.create(device, { ipc: true }));
  checkUnwinding(
    device,
    { cuMemPoolCreate: 1, cuMemPoolSetAccess: 1, cuStreamCreateWithPriority: 1 },
    () => HostPool.create(device),
  );
});

test("memory whose work is done by now is had again before an allocation fails", { skip: skipOnGpu }, async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  const { freeBytes } = device.memoryInfo();
  const buffer = VirtualMemory.allocate(device, freeBytes - 64 * MIB, { stream });
  control.injectFault({ call: "cuMemsetD8Async", workMs: 100, at: 1, count: 1 });
  buffer.subarray(0, 1).fill(1, { stream });
  buffer.free();
  assertThrows(() => VirtualMemory.allocate(device, freeBytes - 64 * MIB, { stream }), OutOfMemoryError);
  stream.synchronize(); // no timer has run since
  const again = VirtualMemory.allocate(device, freeBytes - 64 * MIB, { stream });
  await again.closeAsync();
});

test("a big allocation takes what its pool keeps for later ones", { skip: skipOnGpu }, async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device, { ipc: true });
  pool.allocate(2 * GIB, { stream }).free();
  stream.synchronize();
  const reserved = pool.attributes.reservedBytes;
  assertEquals(reserved >= 2 * GIB, true);
  const big = pool.allocate(device.memoryInfo().freeBytes + reserved - 64 * MIB, { stream });
  assertEquals(big.kind, "virtual");
  await big.closeAsync();
});

test("what a lost context has taken along can be closed without an error", { skip: skipOnGpu }, async () => {
  const { code, stdout, stderr } = await runRuntime(currentRuntime, new URL("lost_context_program.ts", import.meta.url));
  assertEquals([code, stdout.trim(), stderr], [0, "CudaDriverError 719 true; all closed", ""]);
});

test("nothing blocks the thread while other work is queued", { skip: skipOnGpu }, async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using busy = device.createStream();
  using pool = MemoryPool.create(device, { ipc: true });
  using hosts = HostPool.create(device);
  using work = pool.allocate(100, { stream: busy });
  const buffers = [
    pool.allocate(100, { stream }),
    VirtualMemory.allocate(device, 100, { stream }),
    hosts.allocate(100, { stream }),
    legacy.allocate(device, 100, { stream }),
  ];
  await stream.finished();
  const blocked = () => JSON.stringify(control.report().blockedCalls);
  const before = blocked();
  control.injectFault({ call: "cuMemsetD8Async", workMs: 200, at: 1, count: 1 });
  work.fill(1, { stream: busy });
  for (const buffer of buffers) buffer.free();
  assertEquals(blocked(), before);
  await Promise.all(buffers.map((buffer) => buffer.closeAsync()));
  assertEquals(blocked(), before);
});
