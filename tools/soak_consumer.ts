/** A consumer of the soak: takes what comes, looks at its stamps again and again, and tells when one is not what it was. */
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { ChannelClosedError, Device, DeviceBuffer, InvalidArgumentError, IpcChannel, type IpcMessage } from "../mod.ts";
import { contextOf } from "../src/context.ts";
import { nativeStream } from "../src/native_stream.ts";
import { keepBusy, prepareBusy } from "../tests/parity/work.ts";
import { createRandom } from "./soak_random.ts";

/** What a message's data says. */
export interface SoakOrder {
  /** Every 32-bit word of the buffer. */
  readonly stamp: number;
  /** Write to the buffer for so long, and say when that has begun: this process will be killed then. */
  readonly busyMs?: number;
}

const [path, seed, plant] = process.argv.slice(2);
const random = createRandom(Number(seed));
const device = Device.open(0);
const { driver } = contextOf(device, "soak");
const streams = [device.createStream(), device.createStream()];
const handleOf = (index: number) => nativeStream(streams[index], "soak").handle;
prepareBusy(driver, handleOf(0));
const channel = await IpcChannel.connect(path, { device });

async function findStale(buffer: DeviceBuffer, stamp: number, stream: number): Promise<string | undefined> {
  const byteLength = Math.min(buffer.byteLength, 4096);
  const byteOffset = 4 * random.below((buffer.byteLength - byteLength) / 4 + 1);
  const bytes = await buffer.read({ stream: streams[stream], byteOffset, byteLength });
  const words = new Uint32Array(bytes.buffer, bytes.byteOffset, byteLength / 4);
  const index = words.findIndex((word) => word !== stamp);
  return index < 0 ? undefined : `word ${byteOffset / 4 + index} is ${words[index]}, expected ${stamp}`;
}

async function consume(message: IpcMessage, stream: number): Promise<void> {
  const { stamp, busyMs } = message.data as SoakOrder;
  const { frame } = message.buffers;
  if (busyMs !== undefined) {
    keepBusy(driver, handleOf(stream), busyMs);
    frame.fill(0xdead, { width: 4, stream: streams[stream] });
    keepBusy(driver, handleOf(stream), busyMs);
    await message.release({ after: streams[stream] });
    await channel.send({ data: { busy: true } });
    return;
  }
  for (let looks = 1 + random.below(3); looks > 0; looks--) {
    const stale = await findStale(frame, stamp, stream);
    if (stale !== undefined) {
      await channel.send({ data: { stale } });
      break;
    }
    if (random.chance(0.3)) await sleep(random.below(8));
    if (random.chance(0.2)) keepBusy(driver, handleOf(stream), 1 + random.below(5));
  }
  if (plant === "use-after-free" && random.chance(0.3)) return await useAfterFree(message, stream);
  if (random.chance(0.5)) frame.free({ stream: streams[stream] });
  await message.release({ after: streams[stream] });
}

/** The planted mistake: a second mapping is used after the release. */
async function useAfterFree(message: IpcMessage, stream: number): Promise<void> {
  const { stamp } = message.data as SoakOrder;
  const { frame } = message.buffers;
  using alias = DeviceBuffer.import(frame.pool!, frame.ipcDescriptor, { stream: streams[stream] });
  await message.release({ after: streams[stream] });
  await sleep(30);
  const stale = await findStale(alias, stamp, stream).catch((error) => String(error)); // it may be told of, too
  if (stale !== undefined) await channel.send({ data: { stale } });
}

try {
  for (;;) {
    const stream = random.below(streams.length);
    const message = await channel.receive(random.chance(0.9) ? { stream: streams[stream] } : {}).catch((error) => {
      if (!(error instanceof InvalidArgumentError)) throw error;
      return String(error); // the module has found out that memory is still in use here
    });
    if (typeof message === "string") {
      await channel.send({ data: { stale: message } });
      continue;
    }
    consume(message, stream).catch((error) => {
      if (channel.isClosed) return;
      channel.send({ data: { error: String(error?.stack ?? error) } }).catch(() => {});
    });
    if (random.chance(0.1)) await sleep(random.below(5));
  }
} catch (error) {
  if (!(error instanceof ChannelClosedError)) throw error;
  process.exit(0);
}
