/** Memory by Win32 handles between real processes, through the public API, over the driver of driver.c. */
import process from "node:process";
import { test } from "node:test";
import { assertEquals, assertRejects, assertThrows } from "@std/assert";
import {
  AllocationHandle,
  BufferDescriptor,
  CudaDriverError,
  CudaEvent,
  Device,
  DeviceBuffer,
  EventDescriptor,
  HostPool,
  InvalidArgumentError,
  MemoryPool,
  PeerGoneError,
} from "../../mod.ts";
import { currentRuntime, otherRuntime, spawnRuntime } from "../helpers/runtimes.ts";
import { buildWindowsDriver } from "./driver.ts";
import { createEvent, isInherited, skipElsewhere as skip } from "./kernel32.ts";
import { listen } from "./pipe.ts";

const exporter = new URL("./exporter_program.ts", import.meta.url);
if (!skip) Object.assign(process.env, { CUDA_IPC_DRIVER: "cuda", CUDA_IPC_LIBCUDA: buildWindowsDriver() });

const text = (bytes: Uint8Array) => new TextDecoder().decode(bytes);

test("a pool that can be shared needs maxBytes", { skip }, () => {
  using device = Device.open(0);
  assertThrows(() => MemoryPool.create(device, { ipc: true }), InvalidArgumentError, "maxBytes is missing");
  assertThrows(() => HostPool.create(device, { ipc: true }), InvalidArgumentError, "maxBytes is missing");
  MemoryPool.create(device).close();
});

test("a handle that is no memory: the driver's refusal", { skip }, () => {
  using device = Device.open(0);
  using handle = AllocationHandle.fromFd(createEvent());
  assertThrows(() => MemoryPool.import(device, handle), CudaDriverError, "cuMemPoolImportFromShareableHandle");
});

for (const runtime of [currentRuntime, otherRuntime]) {
  test(`pools, virtual memory and events of a ${runtime} process, by a named pipe`, { skip, timeout: 60_000 }, async () => {
    const { name, accept } = await listen();
    await using program = spawnRuntime(runtime, exporter, [name]);
    const peer = await accept(program);
    const sent = await peer.receive();
    assertEquals(sent.inherited, [false, false]);

    using device = Device.open(0);
    using stream = device.createStream();
    const descriptor = BufferDescriptor.fromJSON(sent.buffer);
    using handle = AllocationHandle.fromProcess(descriptor.exporter, sent.pool);
    assertEquals(isInherited(handle.fd), false);
    using pool = MemoryPool.import(device, handle);
    using buffer = DeviceBuffer.import(pool, descriptor, { stream });
    assertEquals(text(await buffer.read({ byteLength: 11 })), "from a pool");
    buffer.subarray(0, 4).fill("*".charCodeAt(0), { stream });

    const virtualDescriptor = BufferDescriptor.fromJSON(sent.virtual);
    using chunk = AllocationHandle.fromProcess(virtualDescriptor.exporter, sent.chunk);
    using virtual = DeviceBuffer.importVirtual(device, virtualDescriptor, [chunk], { stream });
    const tail = virtual.subarray(virtual.byteLength - 7);
    assertEquals(text(await tail.read()), "virtual");
    tail.subarray(0, 2).fill("#".charCodeAt(0), { stream });

    peer.send({});
    assertEquals(await peer.receive(), { pool: "**** a pool", virtual: "##rtual" });

    using event = CudaEvent.import(device, EventDescriptor.fromJSON(sent.event));
    const finished = event.finished();
    program.kill();
    await assertRejects(() => finished, PeerGoneError);
    assertEquals(text(await buffer.read({ byteLength: 4 })), "****", "mapped memory stays");
    peer.close();
  });
}
