/** Buffers of every size go through a channel, and no size ends a process: around 4064 MiB, and above what kills an importer. */
import { assertEquals } from "@std/assert";
import process from "node:process";
import { test } from "node:test";
import { skipWithout } from "../helpers/runtimes.ts";
import { runTestFile, skipOnGpu } from "../memory/peer.ts";
import { Balance, Pair, toolkit } from "./harness.ts";

const MIB = 2 ** 20;
const GIB = 2 ** 30;
const LADDER: readonly (readonly [string, number])[] = [
  ["1 byte", 1],
  ["4064 MiB", 4064 * MIB],
  ["4064 MiB and a byte", 4064 * MIB + 1],
  ["4.1 GiB", Math.round(4.1 * GIB)],
  ["5.2 GiB", Math.round(5.2 * GIB)],
  ["5.3 GiB", Math.round(5.3 * GIB)],
  ["8 GiB", 8 * GIB],
  ["64 GiB", 64 * GIB],
];
const isLarge = toolkit().device.totalMemoryBytes > 65 * GIB;

for (const [name, byteLength] of LADDER) {
  for (const runtime of ["deno", "bun"] as const) {
    const skip = isLarge ? skipWithout(runtime) : "the device is too small";
    test(`${name} goes to ${runtime} and comes back changed`, { skip }, async () => {
      const t = toolkit();
      const { freeBytes } = t.device.memoryInfo();
      const balance = await Balance.take();
      {
        await using pair = await Pair.start(runtime);
        using stream = t.device.createStream();
        using pool = t.cuda.MemoryPool.create(t.device, { ipc: true });
        using buffer = pool.allocate(byteLength, { stream });
        const places = [...new Set([0, Math.floor(byteLength / 2), byteLength - 1])];
        places.forEach((place, i) => buffer.subarray(place, place + 1).fill(10 + i, { stream }));
        const lease = await pair.channel.send({ data: { places }, buffers: { buffer } }, { after: stream });
        const seen = await pair.peer.run(async (t) => {
          const message = await t.kept.channel.receive({ stream: t.stream });
          const { buffer } = message.buffers;
          const seen: number[] = [];
          for (const place of message.data.places) {
            const byte = buffer.subarray(place, place + 1);
            seen.push((await byte.read({ stream: t.stream }))[0]);
            byte.fill(seen.at(-1)! + 100, { stream: t.stream });
          }
          await message.release({ after: t.stream });
          return [buffer.byteLength, ...seen];
        });
        assertEquals(seen, [byteLength, ...places.map((_, i) => 10 + i)]);
        await lease.released;
        assertEquals(lease.outcome, "released");
        for (const [i, place] of places.entries()) {
          assertEquals(await buffer.read({ byteOffset: place, byteLength: 1, stream }), new Uint8Array([110 + i]));
        }
        await buffer.closeAsync();
      }
      await balance.check();
      // The memory of a large buffer is back; contexts and pools take their time for a little more
      if (byteLength > 4 * GIB) assertEquals(freeBytes - t.device.memoryInfo().freeBytes < byteLength / 2, true);
    });
  }
}

test(
  "the whole ladder on a device that is large enough",
  { skip: skipOnGpu || (isLarge ? "this is that run" : false) },
  async () => {
    const { code, output } = await runTestFile(new URL(import.meta.url), {
      CUDA_IPC_SIM_MEMORY: "128GiB",
      CUDA_IPC_SIM_MACHINE: `channel.ladder.${process.pid}`,
    });
    assertEquals(code, 0, output);
  },
);
