import process from "node:process";
import { test } from "node:test";
import { assertEquals, assertThrows } from "@std/assert";
import { CudaDriverError, Device, DeviceBuffer, InvalidArgumentError, MemoryPool, VirtualMemory } from "../../mod.ts";
import { currentRuntime, otherRuntime, skipWithout } from "../helpers/runtimes.ts";
import { runTestFile, skipOnGpu, startPeer } from "./peer.ts";

/** The last test runs this file again on a machine with an IMEX channel. */
const PROFILE = "imex";
const isThatRun = process.env.CUDA_IPC_SIM_PROFILE === PROFILE;

function hasFabric(): boolean {
  using device = Device.open(0);
  return device.ipcSupport().fabric.isSupported;
}
const skipWithFabric = hasFabric() ? "fabric handles are permitted here" : false;
const skipWithoutFabric = hasFabric() ? false : "fabric handles are not permitted here";

test("without an IMEX channel the error says what is missing", { skip: skipWithFabric }, () => {
  using device = Device.open(0);
  const error = assertThrows(() => VirtualMemory.allocate(device, 100, { fabric: true }), CudaDriverError, "IMEX channel");
  assertEquals(error.code, 800);
});

test("only memory that was made for it has fabric handles", () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device);
  using buffer = pool.allocate(100, { stream });
  assertThrows(() => VirtualMemory.exportFabricHandles(buffer), InvalidArgumentError, "VirtualMemory.allocate()");
  using plain = VirtualMemory.allocate(device, 100, { ipc: true });
  assertThrows(() => VirtualMemory.exportFabricHandles(plain), InvalidArgumentError, "{ fabric: true }");
  assertThrows(() => VirtualMemory.allocate(device, 100, { fabric: 1 as unknown as boolean }), InvalidArgumentError, "fabric");
});

for (const runtime of [currentRuntime, otherRuntime]) {
  test(`${runtime} opens memory by fabric handles`, { skip: skipWithoutFabric || skipWithout(runtime) }, async () => {
    using device = Device.open(0);
    using small = VirtualMemory.allocate(device, 3_000_000, { fabric: true });
    using buffer = VirtualMemory.grow(small, 9_000_000);
    buffer.fill(5);
    await buffer.read({ byteLength: 1 });
    const handles = VirtualMemory.exportFabricHandles(buffer);
    assertEquals(handles.map(({ byteLength }) => byteLength), [64, 64]);
    await using peer = await startPeer(runtime);
    await peer.ask({
      do: "openFabric",
      name: "a",
      descriptor: buffer.ipcDescriptor,
      handles: handles.map((handle) => [...handle]),
    });
    assertEquals(await peer.ask({ do: "read", name: "a", byteOffset: 8_999_999, byteLength: 1 }), [5]);
    await peer.ask({ do: "fill", name: "a", value: 6, byteOffset: 8_999_999, byteLength: 1 });
    assertEquals(await buffer.read({ byteOffset: 8_999_998 }), new Uint8Array([5, 6]));
    await peer.end();
    assertThrows(
      () => DeviceBuffer.importVirtual(device, buffer.ipcDescriptor, [new Uint8Array(63), handles[1]]),
      InvalidArgumentError,
      "63",
    );
  });
}

test("all of it with an IMEX channel", { skip: skipOnGpu || (isThatRun ? "this is that run" : false) }, async () => {
  const { code, output } = await runTestFile(new URL(import.meta.url), { CUDA_IPC_SIM_PROFILE: PROFILE });
  assertEquals(code, 0, output);
});
