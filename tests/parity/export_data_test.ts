/** The 64 bytes that name a pointer. Rows DATA-… of docs/driver-behaviour.md. */
import { test } from "node:test";
import { assert, assertEquals } from "@std/assert";
import { MiB, passFd, Result, startLocal, startPeer } from "./harness.ts";

test("DATA-01 the export data of an allocation stays the same", async () => {
  await using exporter = await startLocal();
  const pool = await exporter.createPool();
  await exporter.exportPool(pool);
  const address = await exporter.allocate(pool);
  const first = await exporter.exportPointer(address);
  await exporter.fill(address, 1);
  assertEquals(await exporter.exportPointer(address), first);
});

test("DATA-02 its fields: the offset in the pool at 24, the size as asked for at 32", async () => {
  await using exporter = await startLocal();
  const pool = await exporter.createPool();
  await exporter.exportPool(pool);
  const base = await exporter.allocate(pool, 4096);
  const second = await exporter.allocate(pool, 10_001);
  const read = async (address: bigint) => {
    const view = new DataView((await exporter.exportPointer(address)).buffer);
    return { generation: view.getBigUint64(16, true), offset: view.getBigUint64(24, true), size: view.getBigUint64(32, true) };
  };
  const [one, two] = [await read(base), await read(second)];
  assertEquals([one.size, two.size], [4096n, 10_001n]);
  assertEquals(two.offset - one.offset, second - base);
});

/** A bit of each kind. What dies takes its process along, so these are few. */
const REFUSED_BITS = [0, 17, 35, 66, 90, 120, 130, 150, 191];
const OFFSET = 192;
const SIZE = 256;

test("DATA-03 one flipped bit is refused, or maps something else, or kills the importer", async () => {
  await using exporter = await startLocal();
  const pool = await exporter.createPool();
  const poolFd = await exporter.exportPool(pool);
  await exporter.allocate(pool);
  const data = await exporter.exportPointer(await exporter.allocate(pool, MiB));

  let importer = await startPeer();
  try {
    const start = async () => await importer.importPool(await passFd(exporter, poolFd, importer));
    let imported = await start();
    const flip = async (bit: number) => {
      const forged = data.slice();
      forged[bit >> 3] ^= 1 << (bit & 7);
      const fate = await importer.fate("memPoolImportPointer", imported, forged);
      if (fate instanceof Result) {
        if (fate.code === 0) await importer.free(fate.address);
        return fate.code === 0 ? "accepted" : `refused with ${fate.code}`;
      }
      await importer[Symbol.asyncDispose]();
      importer = await startPeer();
      imported = await start();
      return `killed by ${fate.signal}`;
    };
    const fates = async (bits: number[]) => {
      const result: Record<number, string> = {};
      for (const bit of bits) result[bit] = await flip(bit);
      return result;
    };

    const elsewhere = await fates(REFUSED_BITS);
    assertEquals(elsewhere, Object.fromEntries(REFUSED_BITS.map((bit) => [bit, "refused with 1"])));
    const small = await fates([OFFSET + 21, OFFSET + 22, SIZE + 12, SIZE + 21]);
    assert(Object.values(small).includes("accepted"), `small changes of offset and size: ${JSON.stringify(small)}`);
    const large = await fates([OFFSET + 40, OFFSET + 46, SIZE + 36, SIZE + 42]);
    assert(Object.values(large).includes("killed by SIGSEGV"), `large changes of offset and size: ${JSON.stringify(large)}`);
    const known = /^(accepted|refused with 1|killed by SIGSEGV)$/;
    for (const fate of Object.values({ ...small, ...large })) assert(known.test(fate), fate);
  } finally {
    await importer[Symbol.asyncDispose]();
  }
});
