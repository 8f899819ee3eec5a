/** Handles of plain device memory. Rows LEGACY-… of docs/driver-behaviour.md. */
import { test } from "node:test";
import { assert, assertEquals, assertNotEquals } from "@std/assert";
import { CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS } from "../../src/driver/enums.ts";
import { MiB, startLocal, startPeer } from "./harness.ts";

const FLAGS = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;

test("LEGACY-01 the handle of a pointer names the whole allocation", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const address = await exporter.allocatePlain(2 * MiB);
  await exporter.fill(address, 21);
  await exporter.fill(address + 4096n, 22);
  const inner = await exporter.memHandle(address + 4096n);
  assertEquals(inner, await exporter.memHandle(address));
  const opened = await importer.openMemHandle(inner);
  assertEquals([await importer.byteAt(opened), await importer.byteAt(opened + 4096n)], [21, 22]);
});

test("LEGACY-02 pool memory has no such handle", async () => {
  await using exporter = await startLocal();
  const address = await exporter.allocate(await exporter.createPool());
  assertEquals(await exporter.code("ipcGetMemHandle", address), 1);
});

test("LEGACY-03 the process that made the memory cannot open its handle", async () => {
  await using exporter = await startLocal();
  const handle = await exporter.memHandle(await exporter.allocatePlain());
  assertEquals(await exporter.code("ipcOpenMemHandle", handle, FLAGS), 201);
});

test("LEGACY-04 a handle that is opened twice is mapped once, and counted", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const address = await exporter.allocatePlain();
  await exporter.fill(address, 23);
  const handle = await exporter.memHandle(address);
  const opened = await importer.openMemHandle(handle);
  assertEquals(await importer.openMemHandle(handle), opened);
  assertEquals(await importer.code("ipcCloseMemHandle", opened), 0);
  assertEquals(await importer.byteAt(opened), 23);
  assertEquals(await importer.code("ipcCloseMemHandle", opened), 0);
  assertEquals(await importer.code("ipcCloseMemHandle", opened), 1);
});

test("LEGACY-05 garbage is no handle", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const handle = await exporter.memHandle(await exporter.allocatePlain());
  for (const garbage of [new Uint8Array(64), new Uint8Array(64).fill(0xa5)]) {
    assertNotEquals(garbage, handle);
    assertEquals(await importer.code("ipcOpenMemHandle", garbage, FLAGS), 1);
  }
});

test("LEGACY-06 a mapping survives the exporter's SIGKILL, and can be opened again while it lasts", async () => {
  await using exporter = await startPeer();
  await using importer = await startPeer();
  const address = await exporter.allocatePlain();
  await exporter.fill(address, 24);
  const handle = await exporter.memHandle(address);
  const opened = await importer.openMemHandle(handle);
  await exporter.kill();
  assertEquals(await importer.byteAt(opened), 24);
  assertEquals(await importer.openMemHandle(handle), opened);
});

test("LEGACY-07 opening and closing again and again works", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const handle = await exporter.memHandle(await exporter.allocatePlain());
  for (let round = 0; round < 100; round++) {
    const opened = await importer.openMemHandle(handle);
    assert(opened !== 0n);
    assertEquals(await importer.code("ipcCloseMemHandle", opened), 0);
  }
});
