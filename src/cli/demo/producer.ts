/**
 * The demo's producer: loads a file into device memory, shares the memory with the consumer that connects, and checks what
 * the consumer made of it.
 *
 *   deno run -A src/cli/demo/producer.ts --socket PATH --file PATH [--corrupt]
 *
 * @module
 */
import { createHash } from "node:crypto";
import { parseArgs } from "node:util";
import type { IpcChannel } from "../../channel/channel.ts";
import { IpcServer } from "../../channel/server.ts";
import { Device } from "../../device.ts";
import { InvalidArgumentError, OutOfMemoryError, PeerGoneError } from "../../errors.ts";
import type { BufferKind } from "../../memory/allocation.ts";
import type { DeviceBuffer } from "../../memory/buffer.ts";
import { MemoryPool } from "../../memory/pool.ts";
import type { CudaStream } from "../../stream.ts";
import { InputFile } from "./input.ts";
import type { Mark, Offer, Result, Verdict } from "./offer.ts";
import { withPeer } from "./peer.ts";
import { formatBytes, hex, type Report, runSide, Stopwatch } from "./report.ts";

const MAX_MARK_BYTES = 1024 * 1024;
/** Above 4064 MiB the pool gives virtual memory. */
const HOW_SHARED: Partial<Record<BufferKind, string>> = {
  pool: "the pool's handle (a file descriptor) and the buffer's descriptor",
  virtual: "the handles of virtual memory (file descriptors) and the buffer's descriptor",
};

interface Options {
  readonly socket: string;
  readonly file: string;
  /** Damages the device memory, which the digests must show. */
  readonly corrupt: boolean;
}

async function produce({ socket, file, corrupt }: Options, report: Report): Promise<boolean> {
  await using input = await InputFile.open(file);
  using device = Device.open(0);
  report.introduce(device);
  await using channel = await acceptOne(socket, device);
  const agreed = await withPeer("consumer", channel, (gone) => share(input, channel, device, gone, corrupt, report));
  await channel.closeAsync();
  const { sentBytes, receivedBytes } = channel.stats();
  report.line(`${sentBytes + receivedBytes} bytes crossed the socket: ${sentBytes} sent, ${receivedBytes} received`);
  return agreed;
}

async function acceptOne(socket: string, device: Device): Promise<IpcChannel> {
  await using server = IpcServer.listen(socket, { device });
  return (await server.accept())!; // null only for a closed server
}

async function share(
  input: InputFile,
  channel: IpcChannel,
  device: Device,
  gone: AbortSignal,
  corrupt: boolean,
  report: Report,
): Promise<boolean> {
  using stream = device.createStream();
  using pool = MemoryPool.create(device, { ipc: true });
  using buffer = allocate(pool, input, stream);

  const digest = await load(input, buffer, gone, report);
  if (corrupt) await flipByte(buffer, Math.floor(input.byteLength / 2), report);
  const mark = await chooseMark(buffer);

  const sharing = new Stopwatch();
  const lease = await channel.send({ data: { mark } satisfies Offer, buffers: { file: buffer } }, { after: stream });
  report.line(`shared the buffer in ${sharing}: ${HOW_SHARED[buffer.kind]}`);

  const result = await channel.receive();
  await lease.released; // the consumer's GPU work is done, or its process has gone
  if (lease.outcome === "peer-gone") throw new PeerGoneError("Cannot check the marked range: the consumer has not released it");
  const { digest: theirs } = result.data as Result;
  report.line(theirs === digest ? "the digests agree" : `the digests differ: ours ${digest}, the consumer's ${theirs}`);
  const markAgrees = await checkMark(buffer, mark, gone, report);
  const agreed = theirs === digest && markAgrees;
  await channel.send({ data: { agreed } satisfies Verdict });
  return agreed;
}

function allocate(pool: MemoryPool, input: InputFile, stream: CudaStream): DeviceBuffer {
  try {
    return pool.allocate(input.byteLength, { stream });
  } catch (cause) {
    if (!(cause instanceof OutOfMemoryError)) throw cause;
    const { freeBytes, totalBytes } = pool.device.memoryInfo();
    throw new InvalidArgumentError(
      `Cannot share ${input.path}: its ${formatBytes(input.byteLength)} do not fit on ${pool.device.name}, where ` +
        `${formatBytes(freeBytes)} of ${formatBytes(totalBytes)} are free. Name a smaller file with --file`,
      { cause },
    );
  }
}

/** Gives the digest of the file's bytes, as they were read from the file. */
async function load(input: InputFile, buffer: DeviceBuffer, signal: AbortSignal, report: Report): Promise<string> {
  report.line(`loads ${formatBytes(input.byteLength)} of ${input.path} into device memory at ${hex(buffer.address)}`);
  const loading = new Stopwatch();
  const progress = report.progress("loaded", input.byteLength);
  const hash = createHash("sha256");
  let byteOffset = 0;
  let chunks = 0;
  for await (const chunk of input.chunks()) {
    hash.update(chunk);
    await buffer.write(chunk, { byteOffset, signal });
    byteOffset += chunk.byteLength;
    chunks++;
    progress(chunk.byteLength);
  }
  report.line(`loaded ${chunks} chunks of at most ${input.chunkBytes} bytes in ${loading}`);
  const digest = hash.digest("hex");
  report.line(`SHA-256 ${digest}`);
  return digest;
}

async function flipByte(buffer: DeviceBuffer, byteOffset: number, report: Report): Promise<void> {
  const [byte] = await buffer.read({ byteOffset, byteLength: 1 });
  await buffer.write(Uint8Array.of(byte ^ 0xff), { byteOffset });
  report.line(`flipped byte ${byteOffset} in device memory from ${hex(byte)} to ${hex(byte ^ 0xff)}, as --corrupt asks`);
}

/** The range that the consumer shall fill, with a value that its first byte does not have. */
async function chooseMark(buffer: DeviceBuffer): Promise<Mark> {
  const byteOffset = Math.floor(buffer.byteLength / 3);
  const byteLength = Math.min(MAX_MARK_BYTES, Math.ceil(buffer.byteLength / 3));
  const [first] = await buffer.read({ byteOffset, byteLength: 1 });
  return { byteOffset, byteLength, value: first ^ 0xff };
}

async function checkMark(buffer: DeviceBuffer, mark: Mark, signal: AbortSignal, report: Report): Promise<boolean> {
  const reading = new Stopwatch();
  const { byteOffset, byteLength, value } = mark;
  const bytes = await buffer.read({ byteOffset, byteLength, signal });
  const wrong = bytes.findIndex((byte) => byte !== value);
  const range = `the marked range, ${byteLength} bytes from byte ${byteOffset} on`;
  report.line(
    wrong < 0
      ? `read back ${range}: every byte is ${hex(value)} (${reading})`
      : `read back ${range}: byte ${byteOffset + wrong} is ${hex(bytes[wrong])}, expected ${hex(value)}`,
  );
  return wrong < 0;
}

await runSide("producer", (report) => {
  const { values } = parseArgs({
    options: { socket: { type: "string" }, file: { type: "string" }, corrupt: { type: "boolean", default: false } },
  });
  const { socket, file, corrupt } = values;
  if (socket === undefined || file === undefined) {
    throw new InvalidArgumentError("Cannot start the producer: it needs --socket PATH and --file PATH");
  }
  return produce({ socket, file, corrupt }, report);
});
