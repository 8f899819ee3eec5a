/** A pool, its buffers and events shared with a process of either runtime: run in both, these are all four pairings. */
import { assert, assertEquals } from "@std/assert";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { CudaEvent, Device, EventDescriptor, MemoryPool } from "../../mod.ts";
import { closeFd } from "../../src/os/fd.ts";
import { Listener } from "../../src/os/socket.ts";
import { currentRuntime, type Runtime, skipWithout, spawnRuntime } from "../helpers/runtimes.ts";
import { receiveMessage, sendMessage, until } from "./messages.ts";

const IMPORTER = fileURLToPath(new URL("importer_program.ts", import.meta.url));
const LENGTH = 1_000_003;
const PART_OFFSET = 700_001;
const PART_LENGTH = 1000;

function countFds(): number {
  return readdirSync("/proc/self/fd").length;
}

/** The runtime closes the pipes of a child some time after its exit. */
async function checkFds(before: number): Promise<void> {
  for (let i = 0; i < 300 && countFds() > before; i++) await new Promise((resolve) => setTimeout(resolve, 10));
  assert(countFds() <= before, `${countFds() - before} file descriptors were leaked`); // fewer: the runtime's own
}

async function share(runtime: Runtime): Promise<void> {
  const folder = mkdtempSync(`${tmpdir()}/cuda-ipc-`);
  const listener = Listener.open(`${folder}/socket`);
  const device = Device.open(0);
  await using importer = spawnRuntime(runtime, IMPORTER, [listener.path]);
  const socket = await until(() => listener.accept());

  const stream = device.createStream();
  const pool = MemoryPool.create(device, { ipc: true });
  const buffer = pool.allocate(LENGTH, { stream });
  const data = new Uint8Array(LENGTH).map((_, index) => index * 31 + (index >> 8));
  await buffer.write(data);
  const part = buffer.subarray(PART_OFFSET, PART_OFFSET + PART_LENGTH);
  const written = stream.record({ ipc: true });
  const handle = pool.exportHandle();
  sendMessage(socket, {
    deviceUuid: device.uuid,
    poolId: pool.id,
    whole: buffer.ipcDescriptor,
    part: part.ipcDescriptor,
    partOffset: PART_OFFSET,
    written: written.ipcDescriptor,
  }, [handle.fd]);
  handle.close();

  const { message: answer } = await receiveMessage(socket);
  const sum = data.reduce((total, byte) => total + byte, 0);
  assertEquals(answer.sum, sum);
  assertEquals(answer.sumAfterFirstFree, sum);
  assertEquals(answer.sameMapping, true);
  assertEquals(answer.isImported, [true, true, true]);
  assertEquals(answer.forwardedOffset, PART_OFFSET);

  const done = CudaEvent.import(device, EventDescriptor.fromJSON(answer.done));
  await done.finished();
  const expected = data.slice();
  expected.fill(0xab, PART_OFFSET, PART_OFFSET + PART_LENGTH);
  assertEquals(await buffer.read(), expected);

  sendMessage(socket, "seen");
  const exit = await importer.exited;
  assertEquals([exit.code, exit.stderr, exit.timedOut], [0, "", false]);
  done.close();
  written.close();
  await buffer.closeAsync();
  pool.close();
  stream.close();
  closeFd(socket);
  device.close();
  listener.close();
  rmSync(folder, { recursive: true });
}

for (const runtime of ["deno", "bun"] as const) {
  test(`${currentRuntime} shares a pool, buffers and events with ${runtime}`, { skip: skipWithout(runtime) }, async () => {
    await share(runtime); // what the driver opens once and keeps is not a leak
    const before = countFds();
    await share(runtime);
    await checkFds(before);
  });
}
