/** How large shared memory may be. Rows LIMIT-… of docs/driver-behaviour.md: what kills does so in another process. */
import { test } from "node:test";
import { assertEquals } from "@std/assert";
import { currentRuntime } from "../helpers/runtimes.ts";
import { MiB, passFd, Result, type Session, shareAllocation, startPeer } from "./harness.ts";

/** A process of its own: the test's own one may have a smaller simulated device. */
const startExporter = () => startPeer({ runtime: currentRuntime });

/** The first and the last byte, written by one process and read by the other. */
async function assertEndsAreShared(exporter: Session, address: bigint, importer: Session, alias: bigint, byteLength: number) {
  const last = BigInt(byteLength - 1);
  await exporter.fill(address, 3, 1);
  await exporter.fill(address + last, 4, 1);
  assertEquals([await importer.byteAt(alias), await importer.byteAt(alias + last)], [3, 4], `${byteLength / MiB} MiB`);
}

test("LIMIT-01 a pool's allocation of up to 5216 MiB can be imported", async () => {
  for (const mib of [1024, 4064, 4096, 4128, 5216]) {
    await using exporter = await startExporter();
    await using importer = await startPeer();
    const { address, imported } = await shareAllocation(exporter, importer, { byteLength: mib * MiB });
    await assertEndsAreShared(exporter, address, importer, imported.address, mib * MiB);
  }
});

test("LIMIT-02 importing a larger one kills the importer", async () => {
  for (const mib of [5280, 6144, 8192, 32768]) {
    await using exporter = await startExporter();
    await using importer = await startPeer();
    const pool = await exporter.createPool();
    const fd = await passFd(exporter, await exporter.exportPool(pool), importer);
    const data = await exporter.exportPointer(await exporter.allocate(pool, mib * MiB));
    const fate = await importer.fate("memPoolImportPointer", await importer.importPool(fd), data);
    assertEquals(fate instanceof Result ? fate.code : fate.signal, "SIGSEGV", `${mib} MiB`);
  }
});

test("LIMIT-04 physical memory of 8 and 64 GiB can be shared", async () => {
  for (const gib of [8, 64]) {
    const byteLength = gib * 1024 * MiB;
    await using exporter = await startExporter();
    await using importer = await startPeer();
    const physical = await exporter.createVirtual(byteLength);
    const address = await exporter.mapVirtual([physical], byteLength);
    const fd = await passFd(exporter, await exporter.exportVirtual(physical), importer);
    const alias = await importer.mapVirtual([await importer.importVirtual(fd)], byteLength);
    await assertEndsAreShared(exporter, address, importer, alias, byteLength);
    assertEquals(await importer.code("memUnmap", alias, byteLength), 0);
  }
});
