import { test } from "node:test";
import { assertEquals, assertThrows } from "@std/assert";
import { addOffset, addressFromNumber, addressToBigInt, toSize } from "../../ffi/mod.ts";
import { Device, DeviceBuffer, InvalidArgumentError, legacy, MemoryPool, NotSupportedError, VirtualMemory } from "../../mod.ts";
import { contextOf } from "../../src/context.ts";
import {
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
  CU_MEM_ALLOCATION_TYPE_PINNED,
  CU_MEM_LOCATION_TYPE_DEVICE,
} from "../../src/driver/enums.ts";
import { ipcHandleType } from "../../src/memory/os_handle.ts";
import { currentRuntime, skipWithout } from "../helpers/runtimes.ts";
import { startPeer } from "./peer.ts";

test("a wrapped buffer is the same memory, and freeing it frees nothing", async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device);
  using buffer = pool.allocate(1000, { stream });
  buffer.fill(1, { stream });
  await stream.finished();
  const wrapped = DeviceBuffer.wrap(device, buffer.address + 10n, 100, { owner: buffer, stream });
  assertEquals([wrapped.kind, wrapped.byteLength, wrapped.address, wrapped.pool], ["foreign", 100, buffer.address + 10n, null]);
  wrapped.fill(2, { stream });
  assertEquals(await buffer.read({ byteOffset: 9, byteLength: 2, stream }), new Uint8Array([1, 2]));
  await wrapped.closeAsync();
  assertEquals((await buffer.read({ stream }))[10], 2);
});

test("what is no device memory is refused", () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device);
  using buffer = pool.allocate(1000, { stream });
  for (const address of [0n, -1n, 2n ** 60n, 1 as unknown as bigint]) {
    assertThrows(() => DeviceBuffer.wrap(device, address, 10), InvalidArgumentError, "address");
  }
  assertThrows(() => DeviceBuffer.wrap(device, 4096n, 10), InvalidArgumentError, "no device memory at address 0x1000");
  assertThrows(() => DeviceBuffer.wrap(device, buffer.address, 0), InvalidArgumentError, "byteLength");
  assertThrows(() => DeviceBuffer.wrap(device, buffer.address, 2 ** 40), InvalidArgumentError, "pass the end of the memory");
});

test("memory that cannot be shared says so", () => {
  using device = Device.open(0);
  using stream = device.createStream();
  using pool = MemoryPool.create(device);
  using buffer = pool.allocate(1000, { stream });
  using wrapped = DeviceBuffer.wrap(device, buffer.address, 1000);
  assertThrows(() => wrapped.ipcDescriptor, NotSupportedError, "Copy it to a buffer of a pool");
  assertThrows(() => wrapped.exportHandles(), NotSupportedError);
  using virtual = VirtualMemory.allocate(device, 100);
  using other = DeviceBuffer.wrap(device, virtual.address, 100);
  assertThrows(() => other.ipcDescriptor, NotSupportedError);
});

test(
  "wrapped memory of a shareable pool, of cuMemAlloc and of cuMemCreate goes to a peer",
  { skip: skipWithout(currentRuntime) },
  async () => {
    using device = Device.open(0);
    using stream = device.createStream();
    using pool = MemoryPool.create(device, { ipc: true });
    using pooled = pool.allocate(1000, { stream });
    using plain = legacy.allocate(device, 1000, { stream });
    pooled.fill(1, { stream });
    plain.fill(2, { stream });
    await stream.finished();
    await using peer = await startPeer(currentRuntime);
    {
      using wrapped = DeviceBuffer.wrap(device, pooled.address + 100n, 50);
      const [handle] = wrapped.exportHandles();
      await peer.ask({ do: "importPool", name: "p", id: handle.poolId }, [handle.fd]);
      handle.close();
      await peer.open("a", wrapped.ipcDescriptor, [], "p");
      await peer.ask({ do: "fill", name: "a", value: 9, byteOffset: 0, byteLength: 1 });
      assertEquals(await pooled.read({ byteOffset: 99, byteLength: 3 }), new Uint8Array([1, 9, 1]));
      await peer.ask({ do: "free", name: "a" });
    }
    {
      using wrapped = DeviceBuffer.wrap(device, plain.address + 100n, 50);
      assertEquals(wrapped.ipcDescriptor.memoryKind, "legacy");
      assertEquals(legacy.memHandle(wrapped), legacy.memHandle(plain));
      await peer.open("b", wrapped.ipcDescriptor);
      await peer.ask({ do: "fill", name: "b", value: 9, byteOffset: 0, byteLength: 1 });
      assertEquals(await plain.read({ byteOffset: 99, byteLength: 3 }), new Uint8Array([2, 9, 2]));
      await peer.ask({ do: "free", name: "b" });
    }
    const { freeBytes } = device.memoryInfo();
    {
      using small = VirtualMemory.allocate(device, 3_000_000, { ipc: true, stream });
      using virtual = VirtualMemory.grow(small, 9_000_000, { stream });
      virtual.fill(3, { stream });
      await stream.finished();
      using wrapped = DeviceBuffer.wrap(device, virtual.address + 100n, 8_000_000);
      assertEquals(wrapped.ipcDescriptor.chunkByteLengths, virtual.ipcDescriptor.chunkByteLengths);
      await peer.open("c", wrapped.ipcDescriptor, wrapped.exportHandles());
      await peer.ask({ do: "fill", name: "c", value: 9, byteOffset: 7_999_999, byteLength: 1 });
      assertEquals(await virtual.read({ byteOffset: 8_000_098, byteLength: 3 }), new Uint8Array([3, 9, 3]));
      await peer.ask({ do: "free", name: "c" });
    }
    await stream.finished();
    assertEquals(device.memoryInfo().freeBytes, freeBytes); // nothing here holds its chunks
    await peer.end();
  },
);

test("memory that is mapped behind a hole in its reservation is shared without the hole", async () => {
  using device = Device.open(0);
  using stream = device.createStream();
  const { driver, ordinal } = contextOf(device, "test");
  const length = 2 ** 21;
  const location = { locationType: CU_MEM_LOCATION_TYPE_DEVICE, locationId: ordinal };
  const props = { type: CU_MEM_ALLOCATION_TYPE_PINNED, requestedHandleTypes: ipcHandleType(), ...location };
  assertEquals(driver.memAddressReserve(toSize(3 * length), toSize(0), addressFromNumber(0)), 0);
  const reserved = driver.out.readAddress(0);
  const mapped = addOffset(reserved, length);
  assertEquals(driver.memCreate(toSize(length), props), 0);
  const chunk = driver.out.readAddress(0);
  assertEquals(driver.memMap(mapped, toSize(length), toSize(0), chunk), 0);
  assertEquals(driver.memSetAccess(mapped, toSize(length), [{ ...location, flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE }]), 0);
  {
    const wrapped = DeviceBuffer.wrap(device, addressToBigInt(mapped) + 10n, 100, { stream });
    wrapped.fill(6, { stream });
    assertEquals(wrapped.ipcDescriptor.chunkByteLengths, [length]);
    assertEquals(wrapped.ipcDescriptor.byteOffset, 10);
    const handles = wrapped.exportHandles();
    const alias = DeviceBuffer.importVirtual(device, wrapped.ipcDescriptor, handles, { stream });
    for (const handle of handles) handle.close();
    assertEquals(await alias.read({ stream }), new Uint8Array(100).fill(6));
    await alias.closeAsync();
    wrapped.free();
    const bytes = 2 * length - 10;
    const what = `pass the end of the memory, which has ${length - 10}`;
    assertThrows(() => DeviceBuffer.wrap(device, addressToBigInt(mapped) + 10n, bytes), InvalidArgumentError, what);
    assertThrows(() => DeviceBuffer.wrap(device, addressToBigInt(reserved), 1), InvalidArgumentError);
  }
  await stream.finished();
  assertEquals(driver.memUnmap(mapped, toSize(length)), 0);
  assertEquals(driver.memRelease(chunk), 0);
  assertEquals(driver.memAddressFree(reserved, toSize(3 * length)), 0);
});
