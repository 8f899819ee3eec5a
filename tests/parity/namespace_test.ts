/** Importers in namespaces of their own, as containers are. Rows NS-… of docs/driver-behaviour.md. */
import { spawnSync } from "node:child_process";
import { test } from "node:test";
import { assertEquals, assertRejects } from "@std/assert";
import { isOnGpu, MiB, passFd, type Peer, type Session, shareAllocation, startLocal, startPeer } from "./harness.ts";
import { skipWithoutReadSearch } from "../helpers/capabilities.ts";

const OWN_MOUNTS = "unshare --mount";
const OWN_IPC = "unshare --ipc";
const OWN_PIDS = "unshare --pid --fork --kill-child --mount-proc";
const OWN_PIDS_OTHER_PROC = "unshare --pid --fork --kill-child";
const OWN_SHM = `unshare --mount sh -c 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$0" "$@"'`;

const skip = spawnSync("unshare", ["--mount", "--pid", "--fork", "true"]).status !== 0 &&
  "needs root, and unshare(1), for namespaces";

interface Seen {
  readonly poolByte: number;
  readonly virtualByte: number;
  readonly legacyByte: number;
  /** Opening the event, asking it, letting a stream wait for it. */
  readonly eventCodes: readonly number[];
}

async function shareAll(exporter: Session, importer: Peer): Promise<Seen> {
  const { imported } = await shareAllocation(exporter, importer, { value: 7 });
  const physical = await exporter.createVirtual(2 * MiB);
  await exporter.fill(await exporter.mapVirtual([physical], 2 * MiB), 8);
  const fd = await passFd(exporter, await exporter.exportVirtual(physical), importer);
  const mapped = await importer.mapVirtual([await importer.importVirtual(fd)], 2 * MiB);
  const plain = await exporter.allocatePlain();
  await exporter.fill(plain, 9);
  const opened = await importer.openMemHandle(await exporter.memHandle(plain));

  const event = await exporter.createIpcEvent();
  await exporter.do("eventRecord", event, exporter.stream);
  const open = await importer.call("ipcOpenEventHandle", await exporter.eventHandle(event));
  const eventCodes = open.code === 0
    ? [
      0,
      await importer.code("eventQuery", open.address),
      await importer.code("streamWaitEvent", importer.stream, open.address, 0),
    ]
    : [open.code];
  return {
    poolByte: await importer.byteAt(imported.address),
    virtualByte: await importer.byteAt(mapped),
    legacyByte: await importer.byteAt(opened),
    eventCodes,
  };
}

const ALL = { poolByte: 7, virtualByte: 8, legacyByte: 9, eventCodes: [0, 0, 0] };

async function seenFrom(wrapper: string): Promise<Seen> {
  await using exporter = await startLocal();
  await using importer = await startPeer({ wrapper });
  return await shareAll(exporter, importer);
}

test("NS-01 a mount namespace changes nothing", { skip }, async () => {
  assertEquals(await seenFrom(OWN_MOUNTS), ALL);
});

/** The simulator finds other processes in /proc, and otherwise asks the kernel for their memory. */
const skipOwnPids = !isOnGpu && skipWithoutReadSearch();

test("NS-02 a pid namespace with its own /proc changes nothing", { skip: skip || skipOwnPids }, async () => {
  assertEquals(await seenFrom(OWN_PIDS), ALL);
});

test("NS-03 an ipc namespace changes nothing", { skip }, async () => {
  assertEquals(await seenFrom(OWN_IPC), ALL);
});

test("NS-04 with a /dev/shm of its own an importer gets all memory and no event", { skip }, async () => {
  assertEquals(await seenFrom(OWN_SHM), { ...ALL, eventCodes: [205] });
});

test("NS-05 in a pid namespace whose /proc is another's, the driver does not start", { skip }, async () => {
  await using importer = await startPeer({ wrapper: OWN_PIDS_OTHER_PROC, context: false });
  await assertRejects(() => importer.call("init", 0), Error, "(304)");
});
