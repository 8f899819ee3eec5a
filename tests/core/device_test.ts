import { assert, assertEquals, assertStrictEquals, assertThrows } from "@std/assert";
import { test } from "node:test";
import { ClosedError, Device, DeviceNotVisibleError, InvalidArgumentError, MemoryPool, openDriver } from "../../mod.ts";

test("openDriver() gives one driver in a thread", () => {
  assertStrictEquals(openDriver(), openDriver(openDriver().kind));
});

test("Device.list() lists what Device.open() opens", () => {
  const devices = Device.list();
  assert(devices.length > 0);
  for (const listed of devices) {
    using byOrdinal = Device.open(listed.ordinal);
    using byUuid = Device.open(listed.uuid);
    assertStrictEquals(byOrdinal, listed);
    assertStrictEquals(byUuid, listed);
  }
});

test("a device describes itself", () => {
  using device = Device.open(0);
  assert(device.name.length > 0);
  assert(/^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(device.uuid), device.uuid);
  assert(device.computeCapability.major >= 5);
  assertEquals(device.attribute("COMPUTE_CAPABILITY_MAJOR"), device.computeCapability.major);
  const { freeBytes, totalBytes } = device.memoryInfo();
  assert(freeBytes > 0 && freeBytes <= totalBytes && totalBytes <= device.totalMemoryBytes * 1.01);
  assertEquals(device.isSimulated, openDriver().kind === "simulator");
  assertEquals(device.canAccessPeer(device), false);
});

test("a device closes with the last of its openings", () => {
  const first = Device.open(0);
  const second = Device.open(0);
  assertStrictEquals(first, second);
  first.close();
  assertEquals(second.isClosed, false);
  second.memoryInfo();
  second.close();
  assertEquals(second.isClosed, true);
  second.close();
  assertThrows(() => second.createStream(), ClosedError, "is closed");
  using again = Device.open(0);
  assert(again !== first);
});

test("what was made on a device keeps it alive", async () => {
  const device = Device.open(0);
  const stream = device.createStream();
  const pool = MemoryPool.create(device);
  const buffer = pool.allocate(4096, { stream });
  device.close();
  pool.close();
  await buffer.write(new Uint8Array(4096).fill(5));
  stream.close();
  assertEquals((await buffer.read())[4095], 5);
  await buffer.closeAsync();
});

test("an unknown device is refused by name", () => {
  assertThrows(() => Device.open("GPU-01234567-89ab-cdef-0123-456789abcdef"), DeviceNotVisibleError, "CUDA_VISIBLE_DEVICES");
  assertThrows(() => Device.open(64), InvalidArgumentError, "this process sees 0: GPU-");
});
