/** Copies of JavaScript arrays to and from the device, beside the pinned copies and the array copies that they are made of. */
import { freemem } from "node:os";
import { Device, HostPool, MemoryPool } from "../mod.ts";
import { isOnGpu, median, now, quick, report, type Row } from "./measure.ts";

const KIB = 1024;
const MIB = 1024 * KIB;
const SIZES = isOnGpu ? [64 * KIB, MIB, 16 * MIB, 256 * MIB, 1024 * MIB] : [64 * KIB, MIB, 16 * MIB];
/** As large as those of the staging (src/memory/staging.ts). Pieces of 1, 2 and 8 MiB were no faster on an H200. */
const PIECE_BYTES = 4 * MIB;

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

/** What the copying of arrays alone allows: one thread, through a piece of pinned memory. */
function copyThroughPieces(array: Uint8Array, piece: Uint8Array, toPiece: boolean): void {
  for (let at = 0; at < array.byteLength; at += piece.byteLength) {
    const part = array.subarray(at, at + piece.byteLength);
    if (toPiece) piece.set(part);
    else part.set(piece.subarray(0, part.byteLength));
  }
}

function sizeName(byteLength: number): string {
  return byteLength < MIB ? `${byteLength / KIB} KiB` : `${byteLength / MIB} MiB`;
}

using device = Device.open(0);
using stream = device.createStream();
using pool = MemoryPool.create(device);
using hosts = HostPool.create(device);
using pieceBuffer = hosts.allocate(PIECE_BYTES);
const piece = pieceBuffer.view;
const rows: Row[] = [];
for (const byteLength of SIZES) {
  // The array and the pinned copy of it, each once
  if (byteLength > device.memoryInfo().freeBytes || 2 * byteLength > freemem()) {
    console.error(`${sizeName(byteLength)} does not fit and is left out`);
    continue;
  }
  using buffer = pool.allocate(byteLength, { stream });
  const array = new Uint8Array(byteLength).fill(1);
  const speed = (body: () => void | Promise<void>) => gigabytesPerSecond(byteLength, body);
  const [there, back]: Row[] = [
    {
      copy: `${sizeName(byteLength)}, to the device`,
      async: await speed(() => buffer.write(array, { stream })),
      sync: await speed(() => buffer.writeSync(array, { stream })),
    },
    {
      copy: `${sizeName(byteLength)}, back`,
      async: await speed(async () => void await buffer.read({ stream, into: array })),
      sync: await speed(() => void buffer.readSync({ stream, into: array })),
    },
  ];
  using pinned = hosts.allocate(byteLength);
  for (const [row, from, to] of [[there, pinned, buffer], [back, buffer, pinned]] as const) {
    row.pinned = await speed(() => {
      from.copyTo(to, { stream });
      stream.synchronize();
    });
  }
  for (const row of [there, back]) row["array alone"] = await speed(() => copyThroughPieces(array, piece, row === there));
  rows.push(there, back);
}
report("GB/s; async: write and read, sync: writeSync and readSync", rows);
