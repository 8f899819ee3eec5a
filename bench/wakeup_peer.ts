/** Answers every message of wakeup.ts with the times at which it had it and answered. */
import process from "node:process";
import { IpcChannel } from "../mod.ts";
import { now } from "./measure.ts";

const channel = await IpcChannel.connect(process.argv[2]);
const alive = setInterval(() => {}, 0x7fff_ffff); // while the channel is unref'ed
for await (const { data } of channel) {
  const arrived = now();
  if ((data as { unref?: boolean }).unref === true) channel.unref();
  else channel.ref();
  const { user, system } = process.cpuUsage();
  await channel.send({ data: { arrived, sent: now(), cpu: user + system } });
}
clearInterval(alive);
