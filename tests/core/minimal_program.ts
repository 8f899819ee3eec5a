/** What permissions_test.ts runs: the main objects, once each. */
import { Device, MemoryPool } from "../../mod.ts";
import { ownIdentity } from "../../src/os/process.ts";

using device = Device.open(0);
using stream = device.createStream();
using pool = MemoryPool.create(device, { ipc: true });
using buffer = pool.allocate(100, { stream });
await buffer.write(new Uint8Array(100).fill(7));
using handle = pool.exportHandle();
using event = stream.record({ ipc: true });
await event.finished();
const bytes = await buffer.read();
console.log(bytes[99], handle.fd > 2, buffer.ipcDescriptor.exporter.pid === ownIdentity().pid, event.ipcDescriptor.opaque.length);
