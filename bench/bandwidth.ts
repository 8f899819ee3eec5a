/** Copies of JavaScript arrays to and from the device, beside the pinned copies and the array copies that they are made of. */
import { Device, type DeviceBuffer, HostPool, MemoryPool } from "../mod.ts";
import { isOnGpu, median, now, quick, report } from "./measure.ts";

const KIB = 1024;
const MIB = 1024 * KIB;
const SIZES = isOnGpu ? [64 * KIB, MIB, 16 * MIB, 256 * MIB, 1024 * MIB] : [64 * KIB, MIB, 16 * MIB];
const PIECE_BYTES = 4 * MIB;

using device = Device.open(0);
using stream = device.createStream();
using pool = MemoryPool.create(device);
using hosts = HostPool.create(device);
pool.allocate(MIB, { stream }).free();

async function gigabytesPerSecond(byteLength: number, body: () => void | Promise<void>): Promise<number> {
  const times: number[] = [];
  const rounds = quick ? 2 : byteLength > 100 * MIB ? 5 : 20;
  for (let round = -1; round < rounds; round++) {
    const start = now();
    await body();
    if (round >= 0) times.push(now() - start);
  }
  return byteLength / median(times);
}

/** What the copying of arrays alone allows: one thread, through pieces of pinned memory. */
function copyThroughPieces(array: Uint8Array, piece: Uint8Array, toPiece: boolean): void {
  for (let at = 0; at < array.byteLength; at += piece.byteLength) {
    const part = array.subarray(at, at + piece.byteLength);
    if (toPiece) piece.set(part);
    else part.set(piece.subarray(0, part.byteLength));
  }
}

const rows: Record<string, string | number>[] = [];
using pieceBuffer = hosts.allocate(PIECE_BYTES);
const piece = pieceBuffer.view;
for (const byteLength of SIZES) {
  using buffer: DeviceBuffer = pool.allocate(byteLength, { stream });
  using pinned = hosts.allocate(byteLength);
  const array = new Uint8Array(byteLength).fill(1);
  const copy = (from: DeviceBuffer, to: DeviceBuffer) =>
    gigabytesPerSecond(byteLength, () => {
      from.copyTo(to, { stream });
      stream.synchronize();
    });
  const size = byteLength < MIB ? `${byteLength / KIB} KiB` : `${byteLength / MIB} MiB`;
  rows.push({
    "to the device": size,
    write: await gigabytesPerSecond(byteLength, () => buffer.write(array, { stream })),
    writeSync: await gigabytesPerSecond(byteLength, () => buffer.writeSync(array, { stream })),
    pinned: await copy(pinned, buffer),
    "array alone": await gigabytesPerSecond(byteLength, () => copyThroughPieces(array, piece, true)),
  }, {
    "to the device": `${size}, back`,
    write: await gigabytesPerSecond(byteLength, async () => void await buffer.read({ stream, into: array })),
    writeSync: await gigabytesPerSecond(byteLength, () => void buffer.readSync({ stream, into: array })),
    pinned: await copy(buffer, pinned),
    "array alone": await gigabytesPerSecond(byteLength, () => copyThroughPieces(array, piece, false)),
  });
}
report("GB/s; back: read and readSync", rows);
