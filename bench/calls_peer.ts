/** Shows calls.ts a buffer to import, then maps every buffer that comes and releases it. */
import process from "node:process";
import { Device, IpcChannel, MemoryPool } from "../mod.ts";

const device = Device.open(0);
const stream = device.createStream();
const pool = MemoryPool.create(device, { ipc: true });
const buffer = pool.allocate(1 << 20, { stream });
stream.synchronize();
const channel = await IpcChannel.connect(process.argv[2], { device });
using handle = pool.exportHandle();
await channel.send({ handles: { pool: handle }, data: buffer.ipcDescriptor.toJSON() });
for await (const message of channel.messages({ stream })) await message.release({ after: stream });
