/** Maps every buffer of calls.ts and releases it. */
import process from "node:process";
import { Device, IpcChannel } from "../mod.ts";

const device = Device.open(0);
const stream = device.createStream();
const channel = await IpcChannel.connect(process.argv[2], { device });
for await (const message of channel.messages({ stream })) await message.release({ after: stream });
