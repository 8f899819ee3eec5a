/** The importer of sharing_test.ts: takes what comes through the socket, uses it, answers. */
import process from "node:process";
import { AllocationHandle, BufferDescriptor, CudaEvent, Device, DeviceBuffer, EventDescriptor, MemoryPool } from "../../mod.ts";
import { connectSocket } from "../../src/os/socket.ts";
import { closeFd } from "../../src/os/fd.ts";
import { receiveMessage, sendMessage, until } from "./messages.ts";

const socket = await until(() => connectSocket(process.argv[2]));
const { message, fds } = await receiveMessage(socket);

using device = Device.open(message.deviceUuid);
using stream = device.createStream();
using handle = AllocationHandle.fromFd(fds[0]);
using pool = MemoryPool.import(device, handle, { id: message.poolId });
using written = CudaEvent.import(device, EventDescriptor.fromJSON(message.written));
stream.wait(written);

const whole = DeviceBuffer.import(pool, BufferDescriptor.fromJSON(message.whole), { stream });
const again = DeviceBuffer.import(pool, BufferDescriptor.fromJSON(message.whole), { stream });
const part = DeviceBuffer.import(pool, BufferDescriptor.fromJSON(message.part), { stream });

const bytes = await whole.read();
const sameMapping = whole.address === again.address && part.address === whole.address + BigInt(message.partOffset);
// The first free of a doubly imported allocation would unmap it for all
await again.closeAsync();
const afterFirstFree = await whole.read();

part.fill(0xab, { stream });
using done = stream.record({ ipc: true });
const forwarded = part.ipcDescriptor;
sendMessage(socket, {
  sum: bytes.reduce((sum, byte) => sum + byte, 0),
  sumAfterFirstFree: afterFirstFree.reduce((sum, byte) => sum + byte, 0),
  sameMapping,
  isImported: [whole.isImported, pool.isImported, written.isImported],
  forwardedOffset: forwarded.byteOffset,
  done: done.ipcDescriptor,
});
await receiveMessage(socket); // the exporter has seen the fill
await whole.closeAsync();
await part.closeAsync();
closeFd(socket);
