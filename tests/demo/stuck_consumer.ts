/** A consumer whose GPU work never ends: it tells the producer of an event behind it, and waits for its own death. */
import process from "node:process";
import { AllocationHandle, BufferDescriptor, Device, DeviceBuffer, MemoryPool } from "../../mod.ts";
import { Peer } from "../../src/cli/demo/peer.ts";
import { Wire } from "../../src/cli/demo/wire.ts";
import { SharedFence } from "../../src/share/fence.ts";

using wire = await Wire.connect(process.argv[3]);
using peer = new Peer("producer", wire.socket);
const { fields, fds } = await wire.receive("offer", peer, 1);
using handle = AllocationHandle.fromFd(fds[0]);
const descriptor = BufferDescriptor.fromJSON(fields.buffer);
using device = Device.open(descriptor.deviceUuid);
using stream = device.createStream();
using pool = MemoryPool.import(device, handle);
using buffer = DeviceBuffer.import(pool, descriptor, { stream });
using never = SharedFence.create(device);
stream.waitFor(never, 1n);
buffer.fill(0, { stream });
using filled = stream.record({ ipc: true });
await wire.send("result", { digest: "", filled: filled.ipcDescriptor });
console.log("stuck");
await wire.receive("verdict", peer);
