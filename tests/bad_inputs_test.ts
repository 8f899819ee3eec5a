/**
 * Every public function refuses bad input with an error of our tree, in both runtimes. The table's names are compared
 * with mod.ts's exports and their members: a new one without an entry fails.
 */
import { assert, assertEquals } from "@std/assert";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { after, test } from "node:test";
import * as api from "../mod.ts";
import { CudaIpcError } from "../mod.ts";
import { createSharedMemory } from "../src/os/memory.ts";

const {
  AllocationHandle,
  BufferDescriptor,
  CudaEvent,
  CudaStream,
  Device,
  DeviceBuffer,
  EventDescriptor,
  HostPool,
  IpcChannel,
  IpcMessage,
  IpcServer,
  Lease,
  legacy,
  MemoryPool,
  openDriver,
  SharedFence,
  simulatorControl,
  VirtualMemory,
} = api;

// ---- the world in which the calls are made: good objects, closed ones, and those of other classes

const driver = openDriver("simulator");
const simulator = simulatorControl(driver);
const SimulatorControl = Object.getPrototypeOf(simulator) as typeof simulator;
const device = Device.open(0, { driver });
const stream = device.createStream();
const pool = MemoryPool.create(device, { ipc: true });
const plainPool = MemoryPool.create(device);
const buffer = pool.allocate(4096, { stream });
const plainBuffer = plainPool.allocate(4096, { stream });
const event = device.createEvent({ ipc: true });
const timed = device.createEvent({ timing: true });
const descriptor = buffer.ipcDescriptor;
const eventDescriptor = event.ipcDescriptor;
const handle = pool.exportHandle();
const hostPool = HostPool.create(device, { ipc: true });
const plainHostPool = HostPool.create(device);
const hostHandle = hostPool.exportHandle();
const virtualBuffer = VirtualMemory.allocate(device, 1 << 20, { ipc: true });
const virtualDescriptor = virtualBuffer.ipcDescriptor;
const virtualHandles = virtualBuffer.exportHandles();
const legacyBuffer = legacy.allocate(device, 4096);
const legacyHandle = legacy.memHandle(legacyBuffer);
const fence = SharedFence.create(device, { initial: 5n });

const folder = mkdtempSync(`${tmpdir()}/cuda-ipc-`);
const server = IpcServer.listen(`${folder}/socket`, { device });
const channel = await IpcChannel.connect(server.path, { device });
const other = (await server.accept())!;
const lease = await channel.send({ data: 1, buffers: { buffer } }, { after: stream });
const message = await other.receive({ stream });
const closedChannel = await IpcChannel.connect(server.path);
closedChannel.close({ force: true });
after(() => {
  for (const end of [channel, other, server]) end.close();
  rmSync(folder, { recursive: true });
});

function circular(): unknown {
  const value: Record<string, unknown> = {};
  return value.self = value;
}

function closed<T extends { close(): void }>(object: T): T {
  object.close();
  return object;
}
const closedStream = closed(device.createStream());
const closedEvent = closed(device.createEvent());
const closedPool = closed(MemoryPool.create(device));
const closedBuffer = closed(pool.allocate(64, { stream }));
const closedHostPool = closed(HostPool.create(device));
const closedFence = closed(SharedFence.create(device));
const closedHandle = closed(pool.exportHandle());

// ---- bad values, by what is wanted

const NOT_OBJECTS = [null, 5, NaN, "text", 7n, true, Symbol("bad"), [], () => {}] as const;
const WRONG = [undefined, ...NOT_OBJECTS, {}, new Uint8Array(8), new Date()] as const;
const numbersExcept = (...more: unknown[]) => [-1, NaN, 0.5, Infinity, 2 ** 53, "5", 5n, null, {}, [], true, ...more];

const BAD: Record<string, readonly unknown[]> = {
  device: [...WRONG, stream, closedDevice()],
  stream: [...NOT_OBJECTS, {}, device, event, closedStream],
  neededStream: [...WRONG, device, event, closedStream],
  event: [...WRONG, stream, closedEvent],
  pool: [...WRONG, buffer, closedPool],
  buffer: [...WRONG, pool, closedBuffer],
  handle: [...WRONG, pool, 3, closedHandle],
  bufferDescriptor: [...WRONG, eventDescriptor, descriptor.toBytes(), descriptor.toJSON()],
  eventDescriptor: [...WRONG, descriptor, eventDescriptor.toBytes(), eventDescriptor.toJSON()],
  fence: [...WRONG, stream, event, closedFence],
  fenceValue: [5n, 4n, -1n, 2n ** 62n, 2n ** 64n, 6, NaN, "6", null, undefined, {}, []],
  waitValue: [-1n, 2n ** 62n + 1n, 2n ** 64n, 6, NaN, "6", null, undefined, {}, [], true],
  dependency: [...WRONG, device, closedEvent, closedStream],
  driver: [...NOT_OBJECTS, {}, "cuda", { kind: "cuda" }, device],
  options: [null, 5, NaN, "text", 7n, true, Symbol("bad"), [], -1, 2 ** 53, { misspelled: 1 }],
  boolean: [null, 0, 1, NaN, "true", 1n, {}, [], Symbol("bad"), () => true],
  signal: [null, 0, NaN, "abort", 5n, true, {}, [], new Event("abort"), new AbortController()],
  size: [0, ...numbersExcept()],
  offset: numbersExcept(),
  threshold: [-1, NaN, 0.5, 2 ** 53, "5", 5n, null, {}, [], true, -Infinity],
  uuid: [null, 5, "", "text", {}, [], "GPU-1", true, NaN, "01234567-89AB-cdef-0123-456789abcdef"],
  bytes: [...WRONG.filter((value) => !(value instanceof Uint8Array)), new ArrayBuffer(8), new Uint8Array(0), detached(), [
    1,
    2,
    3,
  ]],
};

function closedDevice(): unknown {
  const other = Device.open(1 % Device.list({ driver }).length, { driver });
  other.close();
  return other === device ? {} : other;
}
function detached(): Uint8Array {
  const bytes = new Uint8Array(8);
  structuredClone(bytes.buffer, { transfer: [bytes.buffer] });
  return bytes;
}
const garbage = (length: number) => new Uint8Array(length).map((_, index) => index * 37 + 11);

// ---- the table: what is called, and each way to call it wrong

type Call = () => unknown;
const bad = (kind: string, call: (value: never) => unknown): Call[] => BAD[kind].map((value) => () => call(value as never));
const each = (values: readonly unknown[], call: (value: never) => unknown): Call[] =>
  values.map((value) => () => call(value as never));
/** A method without arguments: called on closed objects of its class, and on things that are none. */
const onOthers = (method: (this: never) => unknown, ...closedOnes: unknown[]): Call[] =>
  [...closedOnes, ...WRONG.filter((value) => value !== undefined)].map((self) => () => Reflect.apply(method, self, []));

const P = {
  stream: CudaStream.prototype,
  event: CudaEvent.prototype,
  pool: MemoryPool.prototype,
  buffer: DeviceBuffer.prototype,
};

const TABLE: Record<string, Call[]> = {
  openDriver: each(
    ["", "CUDA", "gpu", 0, 1, null, NaN, {}, [], true, 5n, "simulator ", Symbol("bad")],
    (name) => openDriver(name),
  ),
  "Device.constructor": each(WRONG, (token) => Reflect.construct(Device, [token, driver, 0])),
  "Device.list": [...bad("options", (o) => Device.list(o)), ...bad("driver", (d) => Device.list({ driver: d }))],
  "Device.open": [
    ...each(
      [...numbersExcept(999).filter((v) => v !== "5"), undefined, "", "5", "GPU-", "GPU-01234567"],
      (which) => Device.open(which, { driver }),
    ),
    () => Device.open("GPU-01234567-89ab-cdef-0123-456789abcdef", { driver }),
    ...bad("options", (o) => Device.open(0, o)),
    ...bad("driver", (d) => Device.open(0, { driver: d })),
  ],
  "Device.attribute": each(
    ["", "toString", "__proto__", "NOPE", 75, null, undefined, {}, [], 5n, "constructor"],
    (n) => device.attribute(n),
  ),
  "Device.canAccessPeer": bad("device", (d) => device.canAccessPeer(d)),
  "Device.createStream": [
    ...bad("options", (o) => device.createStream(o)),
    ...bad("boolean", (b) => device.createStream({ nonBlocking: b })),
    ...each([1000, -1000, NaN, 0.5, 2 ** 53, "0", 0n, null, {}, []], (p) => device.createStream({ priority: p })),
  ],
  "Device.createEvent": [
    ...bad("options", (o) => device.createEvent(o)),
    ...bad("boolean", (b) => device.createEvent({ ipc: b })),
    ...bad("boolean", (b) => device.createEvent({ timing: b })),
    () => device.createEvent({ ipc: true, timing: true }),
  ],
  "Device.memoryInfo": onOthers(Device.prototype.memoryInfo as never),
  "Device.ipcSupport": onOthers(Device.prototype.ipcSupport as never),
  "CudaStream.constructor": each(WRONG, (token) => Reflect.construct(CudaStream, [token, device, {}])),
  "CudaStream.synchronize": onOthers(P.stream.synchronize as never, closedStream),
  "CudaStream.finished": [
    ...bad("options", (o) => stream.finished(o)),
    ...bad("signal", (s) => stream.finished({ signal: s })),
    () => closedStream.finished(),
  ],
  "CudaStream.wait": bad("dependency", (d) => stream.wait(d)),
  "CudaStream.record": [
    ...bad("options", (o) => stream.record(o)),
    ...bad("boolean", (b) => stream.record({ ipc: b })),
    () => closedStream.record(),
  ],
  "CudaStream.orderBefore": bad("neededStream", (s) => stream.orderBefore(s)),
  "CudaEvent.constructor": each(WRONG, (token) => Reflect.construct(CudaEvent, [token, device, {}, {}])),
  "CudaEvent.import": [
    ...bad("device", (d) => CudaEvent.import(d, eventDescriptor)),
    ...bad("eventDescriptor", (d) => CudaEvent.import(device, d)),
    () => CudaEvent.import(device, eventDescriptor), // our own
  ],
  "CudaEvent.record": [...bad("neededStream", (s) => event.record(s)), () => closedEvent.record(stream)],
  "CudaEvent.synchronize": onOthers(P.event.synchronize as never, closedEvent),
  "CudaEvent.finished": [
    ...bad("options", (o) => event.finished(o)),
    ...bad("signal", (s) => event.finished({ signal: s })),
    () => closedEvent.finished(),
  ],
  "CudaEvent.elapsedMsSince": [
    ...bad("event", (e) => timed.elapsedMsSince(e)),
    () => timed.elapsedMsSince(event),
    () => event.elapsedMsSince(timed),
  ],
  "CudaEvent.orderBefore": bad("neededStream", (s) => event.orderBefore(s)),
  "MemoryPool.constructor": each(WRONG, (token) => Reflect.construct(MemoryPool, [token, device, {}])),
  "MemoryPool.create": [
    ...bad("device", (d) => MemoryPool.create(d)),
    ...bad("options", (o) => MemoryPool.create(device, o)),
    ...bad("boolean", (b) => MemoryPool.create(device, { ipc: b })),
    ...bad("size", (n) => MemoryPool.create(device, { maxBytes: n })),
    ...bad("threshold", (n) => MemoryPool.create(device, { releaseThresholdBytes: n })),
  ],
  "MemoryPool.import": [
    ...bad("device", (d) => MemoryPool.import(d, handle)),
    ...bad("handle", (h) => MemoryPool.import(device, h)),
    ...bad("options", (o) => MemoryPool.import(device, handle, o)),
    ...bad("uuid", (id) => MemoryPool.import(device, handle, { id })),
    () => {
      using memory = AllocationHandle.fromFd(createSharedMemory("not a pool", 4096));
      MemoryPool.import(device, memory);
    },
  ],
  "MemoryPool.allocate": [
    ...bad("size", (n) => pool.allocate(n, { stream })),
    ...bad("options", (o) => pool.allocate(64, o)),
    ...bad("neededStream", (s) => pool.allocate(64, { stream: s })),
    () => closedPool.allocate(64, { stream }),
    () => plainPool.allocate(2 ** 52, { stream }),
  ],
  "MemoryPool.trim": [...bad("offset", (n) => pool.trim(n)), () => closedPool.trim()],
  "MemoryPool.exportHandle": [...onOthers(P.pool.exportHandle as never, closedPool), () => plainPool.exportHandle()],
  "AllocationHandle.constructor": each(WRONG, (token) => Reflect.construct(AllocationHandle, [token, 0, "x"])),
  "AllocationHandle.fromFd": [
    ...bad("offset", (n) => AllocationHandle.fromFd(n)),
    ...each([2 ** 31, 999_999], (n) => AllocationHandle.fromFd(n)),
  ],
  "AllocationHandle.fromProcess": [
    ...each(WRONG, (e) => AllocationHandle.fromProcess(e as never, 4)),
    ...bad("offset", (n) => AllocationHandle.fromProcess({ ...descriptor.exporter, pid: n }, 4)),
    ...bad("offset", (n) => AllocationHandle.fromProcess({ ...descriptor.exporter, startTime: n }, 4)),
    ...bad("offset", (n) => AllocationHandle.fromProcess(descriptor.exporter, n)),
    () => AllocationHandle.fromProcess(descriptor.exporter, 4), // not on Linux
  ],
  "DeviceBuffer.constructor": each(WRONG, (token) => Reflect.construct(DeviceBuffer, [token, {}, device, pool, {}])),
  "DeviceBuffer.import": [
    ...bad("pool", (p) => DeviceBuffer.import(p, descriptor, { stream })),
    ...bad("bufferDescriptor", (d) => DeviceBuffer.import(pool, d, { stream })),
    ...bad("options", (o) => DeviceBuffer.import(pool, descriptor, o)),
    ...bad("stream", (s) => DeviceBuffer.import(pool, descriptor, { stream: s })),
    () => DeviceBuffer.import(plainPool, descriptor, { stream }),
    ...importsOf(pool),
  ],
  "DeviceBuffer.importVirtual": [
    ...bad("device", (d) => DeviceBuffer.importVirtual(d, virtualDescriptor, virtualHandles)),
    ...bad("bufferDescriptor", (d) => DeviceBuffer.importVirtual(device, d, virtualHandles)),
    ...each(WRONG.filter((value) => !Array.isArray(value)), (h) => DeviceBuffer.importVirtual(device, virtualDescriptor, h)),
    ...bad("handle", (h) => DeviceBuffer.importVirtual(device, virtualDescriptor, [h])),
    ...bad("options", (o) => DeviceBuffer.importVirtual(device, virtualDescriptor, virtualHandles, o)),
    ...bad("stream", (s) => DeviceBuffer.importVirtual(device, virtualDescriptor, virtualHandles, { stream: s })),
    () => DeviceBuffer.importVirtual(device, virtualDescriptor, []),
    () => DeviceBuffer.importVirtual(device, virtualDescriptor, [...virtualHandles, ...virtualHandles]),
    () => DeviceBuffer.importVirtual(device, descriptor, virtualHandles),
    () => DeviceBuffer.importVirtual(device, virtualDescriptor, [handle]), // a pool's
  ],
  "DeviceBuffer.wrap": [
    ...bad("device", (d) => DeviceBuffer.wrap(d, buffer.address, 64)),
    ...each([0n, -1n, 2n ** 53n, 2n ** 64n, 1, NaN, "0x1000", null, {}, 4096n], (a) => DeviceBuffer.wrap(device, a, 64)),
    ...bad("size", (n) => DeviceBuffer.wrap(device, buffer.address, n)),
    ...bad("options", (o) => DeviceBuffer.wrap(device, buffer.address, 64, o)),
    ...bad("stream", (s) => DeviceBuffer.wrap(device, buffer.address, 64, { stream: s })),
    () => DeviceBuffer.wrap(device, buffer.address, 4097),
  ],
  "DeviceBuffer.exportHandles": [...onOthers(P.buffer.exportHandles as never, closedBuffer), () => plainBuffer.exportHandles()],
  "DeviceBuffer.subarray": [
    ...bad("offset", (n) => buffer.subarray(n)),
    ...each(numbersExcept(0, 4097), (n) => buffer.subarray(0, n)),
    () => buffer.subarray(4096),
    () => buffer.subarray(10, 5),
    () => closedBuffer.subarray(0),
  ],
  "DeviceBuffer.write": [
    ...bad("bytes", (b) => buffer.write(b)),
    ...bad("options", (o) => buffer.write(new Uint8Array(8), o)),
    ...each(numbersExcept(4096, 4089), (n) => buffer.write(new Uint8Array(8), { byteOffset: n })),
    ...bad("stream", (s) => buffer.write(new Uint8Array(8), { stream: s })),
    ...bad("signal", (s) => buffer.write(new Uint8Array(8), { signal: s })),
    () => buffer.write(new Uint8Array(4097)),
    () => closedBuffer.write(new Uint8Array(8)),
  ],
  "DeviceBuffer.writeSync": [
    ...bad("bytes", (b) => buffer.writeSync(b)),
    ...bad("options", (o) => buffer.writeSync(new Uint8Array(8), o)),
    ...each(numbersExcept(4096, 4089), (n) => buffer.writeSync(new Uint8Array(8), { byteOffset: n })),
    ...bad("stream", (s) => buffer.writeSync(new Uint8Array(8), { stream: s })),
    () => closedBuffer.writeSync(new Uint8Array(8)),
  ],
  "DeviceBuffer.read": [
    ...bad("options", (o) => buffer.read(o)),
    ...each(numbersExcept(4096), (n) => buffer.read({ byteOffset: n })),
    ...each(numbersExcept(0, 4097), (n) => buffer.read({ byteLength: n })),
    ...each(BAD.bytes.filter((value) => value !== undefined), (b) => buffer.read({ into: b })),
    ...bad("stream", (s) => buffer.read({ stream: s })),
    ...bad("signal", (s) => buffer.read({ signal: s })),
    () => buffer.read({ into: new Uint8Array(4), byteLength: 8 }),
    () => closedBuffer.read(),
  ],
  "DeviceBuffer.readSync": [
    ...bad("options", (o) => buffer.readSync(o)),
    ...each(numbersExcept(4096), (n) => buffer.readSync({ byteOffset: n })),
    ...each(numbersExcept(0, 4097), (n) => buffer.readSync({ byteLength: n })),
    ...bad("stream", (s) => buffer.readSync({ stream: s })),
    () => closedBuffer.readSync(),
  ],
  "DeviceBuffer.chunks": [
    ...bad("options", (o) => buffer.chunks(o).next()),
    ...bad("size", (n) => buffer.chunks({ chunkBytes: n }).next()),
    ...bad("stream", (s) => buffer.chunks({ stream: s }).next()),
    ...bad("signal", (s) => buffer.chunks({ signal: s }).next()),
    () => closedBuffer.chunks().next(),
  ],
  "DeviceBuffer.copyFrom": [
    ...bad("buffer", (b) => buffer.copyFrom(b)),
    ...bad("options", (o) => buffer.copyFrom(plainBuffer, o)),
    ...bad("stream", (s) => buffer.copyFrom(plainBuffer, { stream: s })),
    () => buffer.copyFrom(plainBuffer.subarray(1)),
    () => closedBuffer.copyFrom(buffer),
  ],
  "DeviceBuffer.copyTo": [
    ...bad("buffer", (b) => buffer.copyTo(b)),
    ...bad("stream", (s) => buffer.copyTo(plainBuffer, { stream: s })),
    () => closedBuffer.copyTo(buffer),
  ],
  "DeviceBuffer.fill": [
    ...each(numbersExcept(256), (v) => buffer.fill(v)),
    ...each([0, 3, 8, -1, NaN, "1", null, {}, 1n, true], (w) => buffer.fill(0, { width: w })),
    ...bad("options", (o) => buffer.fill(0, o)),
    ...bad("stream", (s) => buffer.fill(0, { stream: s })),
    () => buffer.fill(65536, { width: 2 }),
    () => buffer.subarray(1).fill(1, { width: 4 }),
    () => closedBuffer.fill(0),
  ],
  "DeviceBuffer.copyFrom2D": [
    ...bad("buffer", (b) => buffer.copyFrom2D(b, { rowBytes: 8, rows: 2 })),
    ...bad("options", (o) => buffer.copyFrom2D(plainBuffer, o)),
    ...bad("size", (n) => buffer.copyFrom2D(plainBuffer, { rowBytes: n, rows: 2 })),
    ...bad("size", (n) => buffer.copyFrom2D(plainBuffer, { rowBytes: 8, rows: n })),
    ...bad("size", (n) => buffer.copyFrom2D(plainBuffer, { rowBytes: 8, rows: 2, pitchBytes: n })),
    ...bad("size", (n) => buffer.copyFrom2D(plainBuffer, { rowBytes: 8, rows: 2, sourcePitchBytes: n })),
    ...bad("stream", (s) => buffer.copyFrom2D(plainBuffer, { rowBytes: 8, rows: 2, stream: s })),
    () => buffer.copyFrom2D(plainBuffer, { rowBytes: 64, rows: 65 }),
    () => buffer.copyFrom2D(plainBuffer, { rowBytes: 64, rows: 2, pitchBytes: 63 }),
    () => buffer.copyFrom2D(plainBuffer, { rowBytes: 64, rows: 3, sourcePitchBytes: 2048 }),
  ],
  "DeviceBuffer.fill2D": [
    ...each(numbersExcept(256), (v) => buffer.fill2D(v, { rowBytes: 8, rows: 2 })),
    ...bad("options", (o) => buffer.fill2D(0, o)),
    ...bad("size", (n) => buffer.fill2D(0, { rowBytes: n, rows: 2 })),
    ...bad("size", (n) => buffer.fill2D(0, { rowBytes: 8, rows: n })),
    ...bad("size", (n) => buffer.fill2D(0, { rowBytes: 8, rows: 2, pitchBytes: n })),
    ...bad("stream", (s) => buffer.fill2D(0, { rowBytes: 8, rows: 2, stream: s })),
    () => buffer.fill2D(0, { rowBytes: 64, rows: 65 }),
    () => buffer.fill2D(0, { rowBytes: 6, rows: 2, width: 4 }),
    () => buffer.fill2D(0, { rowBytes: 8, rows: 2, pitchBytes: 10, width: 4 }),
  ],
  "DeviceBuffer.free": [...bad("options", (o) => buffer.free(o)), ...bad("stream", (s) => buffer.free({ stream: s }))],
  "MemoryPool.setPeerAccess": [
    ...each(WRONG.filter((value) => !Array.isArray(value)), (d) => pool.setPeerAccess(d)),
    ...bad("device", (d) => pool.setPeerAccess([d])),
    () => closedPool.setPeerAccess([]),
  ],
  "HostPool.constructor": each(WRONG, (token) => Reflect.construct(HostPool, [token, device, {}])),
  "HostPool.create": [
    ...bad("device", (d) => HostPool.create(d)),
    ...bad("options", (o) => HostPool.create(device, o)),
    ...bad("boolean", (b) => HostPool.create(device, { ipc: b })),
    ...bad("size", (n) => HostPool.create(device, { maxBytes: n })),
    ...each(numbersExcept(1000), (n) => HostPool.create(device, { numaNode: n })),
  ],
  "HostPool.import": [
    ...bad("handle", (h) => HostPool.import(h, { device })),
    ...bad("options", (o) => HostPool.import(hostHandle, o)),
    ...each(BAD.device.filter((value) => value !== undefined), (d) => HostPool.import(hostHandle, { device: d })),
    ...bad("driver", (d) => HostPool.import(hostHandle, { driver: d })),
    ...bad("uuid", (id) => HostPool.import(hostHandle, { device, id })),
  ],
  "HostPool.allocate": [
    ...bad("size", (n) => hostPool.allocate(n)),
    ...bad("options", (o) => hostPool.allocate(64, o)),
    ...bad("stream", (s) => hostPool.allocate(64, { stream: s })),
    () => closedHostPool.allocate(64),
  ],
  "HostPool.exportHandle": [
    ...onOthers(HostPool.prototype.exportHandle as never, closedHostPool),
    () => plainHostPool.exportHandle(),
  ],
  "VirtualMemory.allocate": [
    ...bad("device", (d) => VirtualMemory.allocate(d, 64)),
    ...bad("size", (n) => VirtualMemory.allocate(device, n)),
    ...bad("options", (o) => VirtualMemory.allocate(device, 64, o)),
    ...bad("boolean", (b) => VirtualMemory.allocate(device, 64, { ipc: b })),
    ...bad("boolean", (b) => VirtualMemory.allocate(device, 64, { fabric: b })),
    ...bad("stream", (s) => VirtualMemory.allocate(device, 64, { stream: s })),
    () => VirtualMemory.allocate(device, 2 ** 52),
  ],
  "VirtualMemory.grow": [
    ...bad("buffer", (b) => VirtualMemory.grow(b, 8192)),
    ...bad("size", (n) => VirtualMemory.grow(virtualBuffer, n)),
    ...bad("options", (o) => VirtualMemory.grow(virtualBuffer, 2 ** 22, o)),
    ...bad("stream", (s) => VirtualMemory.grow(virtualBuffer, 2 ** 22, { stream: s })),
    () => VirtualMemory.grow(virtualBuffer, virtualBuffer.byteLength),
    () => VirtualMemory.grow(buffer, 8192),
    () => VirtualMemory.grow(virtualBuffer.subarray(1), 2 ** 22),
  ],
  "VirtualMemory.exportFabricHandles": [
    ...bad("buffer", (b) => VirtualMemory.exportFabricHandles(b)),
    () => VirtualMemory.exportFabricHandles(buffer),
  ],
  "legacy.allocate": [
    ...bad("device", (d) => legacy.allocate(d, 64)),
    ...bad("size", (n) => legacy.allocate(device, n)),
    ...bad("options", (o) => legacy.allocate(device, 64, o)),
    ...bad("stream", (s) => legacy.allocate(device, 64, { stream: s })),
  ],
  "legacy.memHandle": [
    ...bad("buffer", (b) => legacy.memHandle(b)),
    () => legacy.memHandle(buffer),
    () => legacy.memHandle(virtualBuffer),
  ],
  "legacy.openMemHandle": [
    ...bad("device", (d) => legacy.openMemHandle(d, legacyHandle, { byteOffset: 0, byteLength: 64 })),
    ...each([...WRONG, descriptor], (h) => legacy.openMemHandle(device, h, { byteOffset: 0, byteLength: 64 })),
    ...[0, 1, 63, 65, 67].map((length) => () => legacy.openMemHandle(device, garbage(length), { byteOffset: 0, byteLength: 64 })),
    () => legacy.openMemHandle(device, garbage(64), { byteOffset: 0, byteLength: 64 }),
    () => legacy.openMemHandle(device, garbage(66), { byteOffset: 0, byteLength: 64 }),
    () => legacy.openMemHandle(device, legacyHandle, { byteOffset: 0, byteLength: 64 }), // our own
    ...bad("options", (o) => legacy.openMemHandle(device, legacyHandle, o)),
    ...bad("offset", (n) => legacy.openMemHandle(device, legacyHandle, { byteOffset: n, byteLength: 64 })),
    ...bad("size", (n) => legacy.openMemHandle(device, legacyHandle, { byteOffset: 0, byteLength: n })),
    ...bad("stream", (s) => legacy.openMemHandle(device, legacyHandle, { byteOffset: 0, byteLength: 64, stream: s })),
  ],
  "CudaStream.signal": [
    ...bad("fence", (f) => stream.signal(f, 1n)),
    ...bad("fenceValue", (v) => stream.signal(fence, v)),
    () => closedStream.signal(fence, 9n),
  ],
  "CudaStream.waitFor": [
    ...bad("fence", (f) => stream.waitFor(f, 1n)),
    ...bad("waitValue", (v) => stream.waitFor(fence, v)),
    () => closedStream.waitFor(fence, 1n),
  ],
  "SharedFence.constructor": each(WRONG, (token) => Reflect.construct(SharedFence, [token, device, {}])),
  "SharedFence.create": [
    ...bad("device", (d) => SharedFence.create(d)),
    ...bad("options", (o) => SharedFence.create(device, o)),
    ...each([-1n, 2n ** 62n, 2n ** 64n, 1, NaN, "1", null, {}, [], true], (i) => SharedFence.create(device, { initial: i })),
  ],
  "SharedFence.signal": [...bad("fenceValue", (v) => fence.signal(v)), () => closedFence.signal(1n)],
  "SharedFence.reached": [
    ...bad("waitValue", (v) => fence.reached(v)),
    ...bad("options", (o) => fence.reached(1n, o)),
    ...bad("signal", (s) => fence.reached(1n, { signal: s })),
    () => closedFence.reached(1n),
  ],
  "SharedFence.signalAfter": [
    ...bad("neededStream", (s) => fence.signalAfter(s, 9n)),
    ...bad("fenceValue", (v) => fence.signalAfter(stream, v)),
  ],
  "SharedFence.waitBefore": [
    ...bad("neededStream", (s) => fence.waitBefore(s, 1n)),
    ...bad("waitValue", (v) => fence.waitBefore(stream, v)),
  ],
  "IpcServer.constructor": each(WRONG, (token) => Reflect.construct(IpcServer, [token, {}, [], {}])),
  "IpcServer.listen": [
    ...each(
      [undefined, null, 5, {}, [], true, NaN, "", "x".repeat(108), "\0abstract", `${folder}/no/such/folder`],
      (path) => IpcServer.listen(path),
    ),
    ...bad("options", (o) => IpcServer.listen(`${folder}/a`, o)),
    ...each(BAD.device.filter((value) => value !== undefined), (d) => IpcServer.listen(`${folder}/a`, { device: d })),
    ...each([null, 5, {}, "text", [5], [{}], [stream]], (d) => IpcServer.listen(`${folder}/a`, { devices: d })),
    ...each(
      [null, 5, {}, "0", [-1], [0.5], ["0"], [2 ** 32], [NaN]],
      (uids) => IpcServer.listen(`${folder}/a`, { allowUids: uids }),
    ),
    ...each([null, 5, {}, "text", true, []], (authorize) => IpcServer.listen(`${folder}/a`, { authorize })),
    ...bad("signal", (signal) => IpcServer.listen(`${folder}/a`, { signal })),
    () => IpcServer.listen(server.path), // somebody listens there
  ],
  "IpcServer.accept": [
    ...bad("options", (options) => server.accept(options)),
    ...bad("signal", (signal) => server.accept({ signal })),
  ],
  "IpcServer.ref": onOthers(IpcServer.prototype.ref as never),
  "IpcServer.unref": onOthers(IpcServer.prototype.unref as never),
  "IpcChannel.constructor": each(WRONG, (token) => Reflect.construct(IpcChannel, [token, {}, {}, []])),
  "IpcChannel.connect": [
    ...each(
      [undefined, null, 5, {}, [], true, NaN, "", "x".repeat(108), `${folder}/nobody`, folder],
      (path) => IpcChannel.connect(path),
    ),
    ...bad("options", (o) => IpcChannel.connect(server.path, o)),
    ...each(BAD.device.filter((value) => value !== undefined), (d) => IpcChannel.connect(server.path, { device: d })),
    ...bad("signal", (signal) => IpcChannel.connect(server.path, { signal })),
  ],
  "IpcChannel.send": [
    ...each(NOT_OBJECTS, (parts) => channel.send(parts)),
    ...bad("options", (o) => channel.send({}, o)),
    ...bad("stream", (s) => channel.send({}, { after: s })),
    ...bad("signal", (signal) => channel.send({}, { signal })),
    ...each([5n, Symbol("bad"), () => {}, circular()], (data) => channel.send({ data })),
    ...["buffers", "events", "fences", "handles"].flatMap((part) =>
      each(NOT_OBJECTS.slice(0, 6), (record) => channel.send({ [part]: record }))
    ),
    ...bad("buffer", (b) => channel.send({ buffers: { b } })),
    ...bad("event", (e) => channel.send({ events: { e } })),
    ...bad("fence", (f) => channel.send({ fences: { f } })),
    ...bad("handle", (h) => channel.send({ handles: { h } })),
    () => channel.send({ buffers: { plainBuffer } }),
    () => channel.send({ data: "x".repeat(2 ** 25) }),
    () => closedChannel.send({}),
  ],
  "IpcChannel.receive": [
    ...bad("options", (o) => channel.receive(o)),
    ...bad("stream", (s) => channel.receive({ stream: s })),
    ...bad("signal", (signal) => channel.receive({ signal })),
    () => closedChannel.receive(),
  ],
  "IpcChannel.messages": [
    ...bad("options", (o) => channel.messages(o).next()),
    ...bad("stream", (s) => channel.messages({ stream: s }).next()),
    ...bad("signal", (signal) => channel.messages({ signal }).next()),
  ],
  "IpcChannel.stats": onOthers(IpcChannel.prototype.stats as never),
  "IpcChannel.ref": onOthers(IpcChannel.prototype.ref as never),
  "IpcChannel.unref": onOthers(IpcChannel.prototype.unref as never),
  "IpcMessage.constructor": each(WRONG, (token) => Reflect.construct(IpcMessage, [token, {}, () => {}])),
  "IpcMessage.release": [...bad("options", (o) => message.release(o)), ...bad("stream", (s) => message.release({ after: s }))],
  "Lease.constructor": each(WRONG, (token) => Reflect.construct(Lease, [token, 0, []])),
  "Lease.orderBefore": bad("neededStream", (s) => lease.orderBefore(s)),
  simulatorControl: [...bad("driver", (d) => simulatorControl(d)), () => simulatorControl(undefined as never)],
  "SimulatorControl.injectFault": [
    ...each([...WRONG, simulator], (f) => simulator.injectFault(f)),
    ...each(["", "cuNothing", "memAlloc", ...NOT_OBJECTS], (call) => simulator.injectFault({ call, code: 2 })),
    ...bad("offset", (code) => simulator.injectFault({ call: "*", code })),
    ...each([false, 1, "true", null, {}], (kill) => simulator.injectFault({ call: "*", kill })),
    ...each([-1, NaN, "5", 5n, null, {}, true], (workMs) => simulator.injectFault({ call: "*", workMs })),
    ...bad("size", (at) => simulator.injectFault({ call: "*", code: 2, at })),
    ...each(BAD.size.filter((n) => n !== Infinity), (count) => simulator.injectFault({ call: "*", code: 2, count })),
    () => simulator.injectFault({ call: "*", code: 2, workMs: 1 }),
  ],
  "SimulatorControl.occupyDevice": [
    ...each(numbersExcept(999, "length"), (ordinal) => simulator.occupyDevice(ordinal, 0)),
    ...each([-1, NaN, "5", 5n, null, undefined, {}, true], (ms) => simulator.occupyDevice(0, ms)),
  ],
  "SimulatorControl.loseContext": [
    ...each(numbersExcept(999, "length"), (ordinal) => simulator.loseContext(ordinal)),
    ...bad("size", (code) => simulator.loseContext(0, code)),
  ],
  "SimulatorControl.clearFaults": onOthers(SimulatorControl.clearFaults as never),
  "SimulatorControl.dropWork": onOthers(SimulatorControl.dropWork as never),
  "SimulatorControl.report": onOthers(SimulatorControl.report as never),
  "SimulatorControl.reset": onOthers(SimulatorControl.reset as never),
  ...descriptorCases("BufferDescriptor", BufferDescriptor, descriptor),
  ...descriptorCases("EventDescriptor", EventDescriptor, eventDescriptor),
};

/** A descriptor with one field changed, each well formed and each wrong for this pool. */
function importsOf(target: typeof pool): Call[] {
  const { memoryKind, deviceUuid, exporter, poolId, generation, byteOffset, byteLength, allocationByteLength, opaque } =
    descriptor;
  const fields = { memoryKind, deviceUuid, exporter, poolId, generation, byteOffset, byteLength, allocationByteLength, opaque };
  const limit = 4064 * 1024 * 1024;
  const changes: Partial<ConstructorParameters<typeof BufferDescriptor>[0]>[] = [
    { memoryKind: "legacy" },
    { deviceUuid: "GPU-00000000-0000-0000-0000-000000000000" },
    { poolId: "00000000-0000-0000-0000-000000000000" },
    { exporter: { ...exporter, pid: exporter.pid === 1 ? 2 : 1 } },
    { generation: 123_456 },
    { allocationByteLength: limit + 1 },
  ];
  return changes.map((change) => () =>
    DeviceBuffer.import(target, new BufferDescriptor({ ...fields, chunkByteLengths: [], ...change }), { stream })
  );
}

type DescriptorClass = { fromBytes(bytes: never): unknown; fromJSON(value: never): unknown; new (init: never): unknown };

function descriptorCases(
  name: string,
  Class: DescriptorClass,
  good: { toBytes(): Uint8Array; toJSON(): object },
): Record<string, Call[]> {
  const bytes = good.toBytes();
  const json = good.toJSON() as Record<string, unknown>;
  const changed = (at: number) => bytes.map((byte, index) => index === at ? byte ^ 1 : byte);
  return {
    [`${name}.constructor`]: [
      ...each(WRONG, (init) => new Class(init)),
      ...Object.keys(json).filter((key) => !["type", "version", "checksum"].includes(key)).map((key) => () =>
        new Class({ ...good, ...json, opaque: new Uint8Array(64), [key]: Symbol("bad") } as never)
      ),
    ],
    [`${name}.fromBytes`]: [
      ...each(WRONG.filter((value) => !(value instanceof Uint8Array)), (value) => Class.fromBytes(value)),
      ...[0, 1, 8, bytes.length - 1].map((length) => () => Class.fromBytes(bytes.slice(0, length) as never)),
      ...bytes.keys().map((at) => () => Class.fromBytes(changed(at) as never)),
      ...[0, 1, 64, 1000].map((length) => () => Class.fromBytes(garbage(length) as never)),
    ],
    [`${name}.fromJSON`]: [
      ...each(WRONG, (value) => Class.fromJSON(value)),
      ...Object.keys(json).map((key) => () => Class.fromJSON({ ...json, [key]: undefined } as never)),
      ...Object.keys(json).map((key) => () => Class.fromJSON({ ...json, [key]: { toString: 1 } } as never)),
    ],
  };
}

/** No argument can be wrong, and they are allowed on closed objects: closing twice is fine. */
const WITHOUT_INPUT = ["close", "toString", "toBytes", "toJSON"];
/** Of every Closable; tested once below. */
const CLOSE_ASYNC = "closeAsync";

function publicFunctions(): string[] {
  const names: string[] = [];
  const legacyFunctions = Object.entries(api.legacy).map(([name, value]) => [`legacy.${name}`, value] as const);
  for (const [name, value] of [...Object.entries(api), ...legacyFunctions]) {
    if (typeof value !== "function") continue;
    if (value === CudaIpcError || value.prototype instanceof CudaIpcError) continue; // made by us, for users to catch
    if (value.prototype === undefined || Object.getOwnPropertyDescriptor(value, "prototype")!.writable) {
      names.push(name); // a plain function
      continue;
    }
    if (value !== api.Closable && value !== api.VirtualMemory) names.push(`${name}.constructor`);
    for (const owner of [value, value.prototype]) {
      for (const [member, property] of Object.entries(Object.getOwnPropertyDescriptors(owner))) {
        if (member === "constructor" || typeof property.value !== "function" || member === "prototype") continue;
        if (["onClose", "settled", "protect", "checkOpen"].includes(member)) continue; // protected
        if (!WITHOUT_INPUT.includes(member) && member !== CLOSE_ASYNC) names.push(`${name}.${member}`);
      }
    }
  }
  for (const member of Object.getOwnPropertyNames(SimulatorControl)) {
    if (!["constructor", "occupyStream"].includes(member)) names.push(`SimulatorControl.${member}`); // occupyStream is internal
  }
  return names.sort();
}

test("each public function has an entry in the table", () => {
  assertEquals(Object.keys(TABLE).sort(), publicFunctions());
});

for (const [name, calls] of Object.entries(TABLE)) {
  test(`${name} refuses bad input`, async () => {
    assert(calls.length >= 10, `${calls.length} cases, expected at least 10`);
    for (const [index, call] of calls.entries()) {
      let outcome: unknown = "no error";
      try {
        outcome = await call();
      } catch (error) {
        // A method torn from its object meets the language's own brand check
        if (
          error instanceof CudaIpcError ||
          (error instanceof TypeError && index < calls.length && call.toString().includes("Reflect.apply"))
        ) continue;
        throw new Error(`case ${index} of ${name} threw ${error}, expected a CudaIpcError`, { cause: error });
      }
      throw new Error(`case ${index} of ${name} gave ${String(outcome).slice(0, 80)}, expected a CudaIpcError: ${call}`);
    }
  });
}

test("closeAsync refuses bad input, and closes nothing then", async () => {
  for (const value of [...BAD.options.map((o) => o), ...BAD.signal.map((signal) => ({ signal }))]) {
    let error: unknown;
    await stream.closeAsync(value as never).catch((thrown) => error = thrown);
    assert(error instanceof CudaIpcError, `${String(error)}`);
  }
  assertEquals(stream.isClosed, false);
});

test("closed objects refuse every getter that asks the driver", () => {
  const getters: [object, string][] = [
    [closedStream, "isIdle"],
    [closedEvent, "isDone"],
    [closedEvent, "ipcDescriptor"],
    [closedPool, "attributes"],
    [closedBuffer, "address"],
    [closedBuffer, "ipcDescriptor"],
    [closedHandle, "fd"],
  ];
  for (const [object, getter] of getters) {
    let error: unknown;
    try {
      Reflect.get(object, getter);
    } catch (thrown) {
      error = thrown;
    }
    assert(error instanceof api.ClosedError, `${object}.${getter}: ${String(error)}`);
  }
});
