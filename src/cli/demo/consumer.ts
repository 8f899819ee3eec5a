/**
 * The demo's consumer: maps the producer's device memory, hashes it, fills a part of it on the GPU and releases it. It is told
 * a socket's path and nothing else; the file it never sees.
 *
 *   bun src/cli/demo/consumer.ts --socket PATH
 *
 * @module
 */
import { createHash } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { type ConnectOptions, IpcChannel } from "../../channel/channel.ts";
import { Device } from "../../device.ts";
import { InvalidArgumentError, ProtocolError, SystemCallError } from "../../errors.ts";
import type { DeviceBuffer } from "../../memory/buffer.ts";
import { ECONNREFUSED, ENOENT } from "../../os/errno.ts";
import { chunkBytesFor } from "./input.ts";
import { readMark, type Result, type Verdict } from "./offer.ts";
import { withPeer } from "./peer.ts";
import { formatBytes, hex, type Report, runSide, Stopwatch } from "./report.ts";

/** The two sides may be started in any order, within this time. */
const CONNECT_MS = 10_000;
const RETRY_MS = 20;

async function consume(socket: string, report: Report): Promise<boolean> {
  using device = Device.open(0);
  report.introduce(device);
  await using channel = await connectSoon(socket, { device });
  return await withPeer("producer", channel, (gone) => work(channel, device, gone, report));
}

/** Connects to the producer that listens there, or will soon. */
async function connectSoon(socket: string, options: ConnectOptions): Promise<IpcChannel> {
  for (const end = performance.now() + CONNECT_MS;;) {
    try {
      return await IpcChannel.connect(socket, options);
    } catch (error) {
      const isEarly = error instanceof SystemCallError && (error.errno === ENOENT || error.errno === ECONNREFUSED);
      if (!isEarly || performance.now() > end) throw error;
      await sleep(RETRY_MS);
    }
  }
}

async function work(channel: IpcChannel, device: Device, gone: AbortSignal, report: Report): Promise<boolean> {
  using stream = device.createStream();
  await using offer = await channel.receive({ stream }); // what the stream does from now on is behind the producer's work
  const { file } = offer.buffers;
  if (file === undefined) throw new ProtocolError('Cannot read the producer\'s offer: it has no buffer named "file"');
  const { byteOffset, byteLength, value } = readMark(offer.data);
  report.line(`mapped the same memory at ${hex(file.address)}: nothing was copied`);

  const digest = await hashBuffer(file, gone, report);
  const filling = new Stopwatch();
  file.subarray(byteOffset, byteOffset + byteLength).fill(value, { stream });
  await channel.send({ data: { digest } satisfies Result });
  await offer.release({ after: stream }); // the producer may have the memory back when the fill is done
  await stream.finished({ signal: gone });
  report.line(`filled ${byteLength} bytes from byte ${byteOffset} on with ${hex(value)} on ${device.name} (${filling})`);

  const verdict = await channel.receive();
  const { agreed } = verdict.data as Verdict;
  report.line(`gave the memory back; the producer ${agreed === true ? "agrees" : "does not agree"}`);
  return agreed === true;
}

/** The hash is the CPU's, so the bytes are copied from device to host for it: the only time that they are. */
async function hashBuffer(buffer: DeviceBuffer, signal: AbortSignal, report: Report): Promise<string> {
  const hashing = new Stopwatch();
  const progress = report.progress("hashed", buffer.byteLength);
  const hash = createHash("sha256");
  for await (const bytes of buffer.chunks({ chunkBytes: chunkBytesFor(buffer.byteLength), signal })) {
    hash.update(bytes);
    progress(bytes.byteLength);
  }
  const digest = hash.digest("hex");
  report.line(`SHA-256 ${digest}`);
  report.line(`copied ${formatBytes(buffer.byteLength)} from device to host for the digest, which the CPU makes: ${hashing}`);
  return digest;
}

await runSide("consumer", (report) => {
  const { socket } = parseArgs({ options: { socket: { type: "string" } } }).values;
  if (socket === undefined) throw new InvalidArgumentError("Cannot start the consumer: it needs --socket PATH");
  return consume(socket, report);
});
