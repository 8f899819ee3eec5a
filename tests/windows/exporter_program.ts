/** What share_test.ts starts: shares a pool, a buffer of it, virtual memory and an event with whoever serves the pipe. */
import process from "node:process";
import { Device, MemoryPool, VirtualMemory } from "../../mod.ts";
import { isInherited } from "./kernel32.ts";
import { connectTo } from "./pipe.ts";

const text = (bytes: Uint8Array) => new TextDecoder().decode(bytes);

using device = Device.open(0);
using stream = device.createStream();
using pool = MemoryPool.create(device, { ipc: true, maxBytes: 1 << 20 });
using first = pool.allocate(100, { stream });
using buffer = pool.allocate(4096, { stream });
await first.write(new Uint8Array(100).fill(1));
await buffer.write(new TextEncoder().encode("from a pool"));
using poolHandle = pool.exportHandle();

using virtual = VirtualMemory.allocate(device, 5 << 20, { ipc: true, stream });
await virtual.write(new TextEncoder().encode("virtual"), { byteOffset: (5 << 20) - 7 });
const [chunk] = virtual.exportHandles();
using event = stream.record({ ipc: true });

const peer = await connectTo(process.argv[2]);
peer.send({
  buffer: buffer.ipcDescriptor,
  pool: poolHandle.fd,
  virtual: virtual.ipcDescriptor,
  chunk: chunk.fd,
  event: event.ipcDescriptor,
  inherited: [poolHandle.fd, chunk.fd].map(isInherited),
});
await peer.receive();
poolHandle.close(); // whoever has copied them needs them no longer
chunk.close();
peer.send({
  pool: text(await buffer.read({ byteLength: 11 })),
  virtual: text(await virtual.read({ byteOffset: (5 << 20) - 7, byteLength: 7 })),
});
await peer.receive(); // never comes: this process is killed
