/** A consumer whose GPU work never ends: it answers, releases the buffer behind that work, and waits for its own death. */
import process from "node:process";
import { Device, IpcChannel, SharedFence } from "../../mod.ts";
import { waitForFile } from "./helpers.ts";

const path = process.argv[3];
await waitForFile(path);
using device = Device.open(0);
using stream = device.createStream();
await using channel = await IpcChannel.connect(path, { device });
const offer = await channel.receive({ stream });
using never = SharedFence.create(device);
stream.waitFor(never, 1n);
offer.buffers.file.fill(0, { stream });
await channel.send({ data: { digest: "" } });
await offer.release({ after: stream });
console.log("stuck");
await channel.receive();
