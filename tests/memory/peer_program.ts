/** Another process that opens and uses buffers as it is told: the other side of `peer.ts`. */
import { readdirSync, readlinkSync } from "node:fs";
import process from "node:process";
import {
  AllocationHandle,
  BufferDescriptor,
  type CudaStream,
  Device,
  DeviceBuffer,
  HostPool,
  legacy,
  MemoryPool,
} from "../../mod.ts";
import { closeFd, duplicateFd } from "../../src/os/fd.ts";
import { connectSocket } from "../../src/os/socket.ts";
import { type Allocators, openAllocators } from "./allocators.ts";
import { measureMemory } from "./measure_memory.ts";
import { receiveMessage, sendMessage, until } from "../core/messages.ts";

const socket = await until(() => connectSocket(process.argv[2]));
const pools = new Map<string, MemoryPool | HostPool>();
const buffers = new Map<string, DeviceBuffer>();
let opened: { device: Device; stream: CudaStream } | undefined;
let allocators: Allocators | undefined;

function here(): { device: Device; stream: CudaStream } {
  if (opened === undefined) {
    const device = Device.open(0);
    opened = { device, stream: device.createStream() };
  }
  return opened;
}

/** What each descriptor is, so that a leak can be named. */
function openFds(): string[] {
  return readdirSync("/proc/self/fd").flatMap((fd) => {
    try {
      return [readlinkSync(`/proc/self/fd/${fd}`).replace(/\d{2,}/g, "#")];
    } catch {
      return []; // the one that the listing itself had open
    }
  }).sort();
}

/** Takes what came beside the message over. */
function handlesOf(fds: readonly number[]): AllocationHandle[] {
  return fds.map((fd) => AllocationHandle.fromFd(fd));
}

function open(name: string, pool: string | undefined, descriptor: BufferDescriptor, fds: readonly number[]): DeviceBuffer {
  switch (descriptor.memoryKind) {
    case "pool":
      return DeviceBuffer.import(pools.get(pool!)!, descriptor, { stream: here().stream });
    case "host":
      return DeviceBuffer.import(pools.get(pool!)!, descriptor);
    case "legacy":
      return legacy.openMemHandle(here().device, descriptor);
    case "virtual": {
      const handles = handlesOf(fds);
      try {
        return DeviceBuffer.importVirtual(here().device, descriptor, handles);
      } finally {
        for (const handle of handles) handle.close();
      }
    }
  }
  throw new Error(`${name} is of no kind`);
}

// deno-lint-ignore no-explicit-any
async function act(message: any, fds: readonly number[]): Promise<unknown> {
  const buffer = buffers.get(message.name)!;
  switch (message.do) {
    case "importPool": {
      const [handle] = handlesOf(fds);
      pools.set(message.name, MemoryPool.import(here().device, handle, { id: message.id }));
      handle.close();
      return null;
    }
    case "importHostPool": {
      const [handle] = handlesOf(fds);
      const device = message.withDevice ? here().device : undefined;
      pools.set(message.name, HostPool.import(handle, { id: message.id, device }));
      handle.close();
      return null;
    }
    case "open": {
      const made = open(message.name, message.pool, BufferDescriptor.fromJSON(message.descriptor), fds);
      buffers.set(message.name, made);
      return { kind: made.kind, isImported: made.isImported, byteLength: made.byteLength };
    }
    case "openHandle": {
      const made = legacy.openMemHandle(here().device, Uint8Array.from(message.handle), message.options);
      buffers.set(message.name, made);
      return { byteLength: made.byteLength };
    }
    case "openFabric": {
      const handles = message.handles.map((bytes: number[]) => Uint8Array.from(bytes));
      buffers.set(
        message.name,
        DeviceBuffer.importVirtual(here().device, BufferDescriptor.fromJSON(message.descriptor), handles),
      );
      return null;
    }
    case "read":
      return [...await buffer.read({ byteOffset: message.byteOffset, byteLength: message.byteLength })];
    case "fill":
      buffer.subarray(message.byteOffset, message.byteOffset + message.byteLength).fill(message.value);
      await here().stream.finished();
      return null;
    case "view":
      return [...buffer.view.subarray(message.byteOffset, message.byteOffset + message.byteLength)];
    case "setView":
      buffer.view.fill(message.value, message.byteOffset, message.byteOffset + message.byteLength);
      return null;
    case "free":
      await buffer.closeAsync();
      buffers.delete(message.name);
      return null;
    case "closePool":
      await pools.get(message.name)!.closeAsync();
      pools.delete(message.name);
      return null;
    case "hasContext":
      return opened !== undefined;
    case "descriptor":
      return buffer.ipcDescriptor;
    case "fds":
      // Deno opens two sockets of its own some time after its start
      while (performance.now() < 1500) await new Promise((resolve) => setTimeout(resolve, 100));
      return openFds();
    case "openAndFree": { // many at once; a handle for each that is virtual
      for (const [index, json] of message.descriptors.entries()) {
        open("cycle", message.pool, BufferDescriptor.fromJSON(json), fds.slice(index, index + 1)).close();
      }
      return null;
    }
    case "repeatExport": { // the exporter's half of the same
      allocators ??= openAllocators(); // once: the driver's own memory grows with every context that is made anew
      for (let i = 0; i < message.count; i++) {
        const made = allocators.allocate(message.kind, message.byteLength);
        void made.ipcDescriptor;
        if (message.kind === "virtual") { for (const handle of made.exportHandles()) handle.close(); }
        await made.closeAsync();
      }
      return null;
    }
    case "repeat": { // one after the other, without messages in between
      const descriptor = BufferDescriptor.fromJSON(message.descriptor);
      for (let i = 0; i < message.count; i++) {
        await open("cycle", message.pool, descriptor, fds.map((fd) => duplicateFd(fd))).closeAsync();
      }
      fds.forEach(closeFd);
      return null;
    }
    case "memory":
      return await measureMemory();
  }
  throw new Error(`cannot ${message.do}`);
}

for (;;) {
  const { message, fds } = await receiveMessage(socket);
  if (message.do === "end") break;
  try {
    sendMessage(socket, { answer: await act(message, fds) ?? null });
  } catch (error) {
    const { name, message: text } = error as Error;
    sendMessage(socket, { error: { name, text } });
  }
}
for (const buffer of buffers.values()) await buffer.closeAsync();
for (const pool of pools.values()) pool.close();
allocators?.[Symbol.dispose]();
if (opened !== undefined) {
  opened.stream.close();
  opened.device.close();
}
closeFd(socket);
