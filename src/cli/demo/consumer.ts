/**
 * The demo's consumer: maps the producer's device memory, hashes it, fills a part of it on the GPU and says so. It is told a
 * socket's path and nothing else; the file it never sees.
 *
 *   bun src/cli/demo/consumer.ts --socket PATH
 *
 * @module
 */
import { createHash } from "node:crypto";
import { setImmediate } from "node:timers/promises";
import { parseArgs } from "node:util";
import { Device } from "../../device.ts";
import { InvalidArgumentError } from "../../errors.ts";
import { CudaEvent } from "../../event.ts";
import { AllocationHandle } from "../../memory/allocation_handle.ts";
import { DeviceBuffer } from "../../memory/buffer.ts";
import { MemoryPool } from "../../memory/pool.ts";
import { BufferDescriptor, EventDescriptor } from "../../wire/descriptor.ts";
import { chunkBytesFor } from "./input.ts";
import { Peer } from "./peer.ts";
import { formatBytes, hex, type Report, runSide, Stopwatch } from "./report.ts";
import { type Message, readMark, Wire } from "./wire.ts";

async function consume(socket: string, report: Report): Promise<boolean> {
  using wire = await Wire.connect(socket);
  using peer = new Peer("producer", wire.socket);
  const agreed = await peer.workWith(async () => {
    const offer = await wire.receive("offer", peer, 1);
    const agreed = await work(offer, wire, peer, report);
    await wire.send("released");
    return agreed;
  });
  report.line(agreed ? "gave the memory back; the producer agrees" : "gave the memory back; the producer does not agree");
  return agreed;
}

/** When it returns, nothing of the producer's is mapped any more. */
async function work({ fields, fds }: Message, wire: Wire, peer: Peer, report: Report): Promise<boolean> {
  using handle = AllocationHandle.fromFd(fds[0]);
  const descriptor = BufferDescriptor.fromJSON(fields.buffer);
  using device = Device.open(descriptor.deviceUuid);
  report.introduce(device);
  using stream = device.createStream();

  const mapping = new Stopwatch();
  using pool = MemoryPool.import(device, handle, { id: descriptor.poolId ?? undefined });
  await using buffer = DeviceBuffer.import(pool, descriptor, { stream });
  using loaded = CudaEvent.import(device, EventDescriptor.fromJSON(fields.loaded));
  report.line(`mapped the same memory at ${hex(buffer.address)} and opened the event in ${mapping}: nothing was copied`);
  await loaded.finished({ signal: peer.exit });

  const digest = await hashBuffer(buffer, peer.exit, report);
  const { byteOffset, byteLength, value } = readMark(fields.mark);
  const filling = new Stopwatch();
  buffer.subarray(byteOffset, byteOffset + byteLength).fill(value, { stream });
  using filled = stream.record({ ipc: true });
  await wire.send("result", { digest, filled: filled.ipcDescriptor });
  await filled.finished({ signal: peer.exit });
  report.line(`filled ${byteLength} bytes from byte ${byteOffset} on with ${hex(value)} on ${device.name} (${filling})`);

  const verdict = await wire.receive("verdict", peer);
  return verdict.fields.agreed === true;
}

/** The hash is the CPU's, so the bytes are copied from device to host for it: the only time that they are. */
async function hashBuffer(buffer: DeviceBuffer, signal: AbortSignal, report: Report): Promise<string> {
  const hashing = new Stopwatch();
  const progress = report.progress("hashed", buffer.byteLength);
  const hash = createHash("sha256");
  for await (const bytes of buffer.chunks({ chunkBytes: chunkBytesFor(buffer.byteLength), signal })) {
    hash.update(bytes);
    progress(bytes.byteLength);
    await setImmediate(); // where the copies are quick, nothing else would get its turn, the peer's death neither
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
