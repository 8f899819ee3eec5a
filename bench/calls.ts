/**
 * What the public calls cost. Nanoseconds, medians. With the path of the compiled calls.c as an argument, that runs first
 * and its figures stand beside.
 */
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { BufferDescriptor, Device, DeviceBuffer, IpcServer, MemoryPool } from "../mod.ts";
import { currentRuntime, skipWithout, spawnRuntime } from "../tests/helpers/runtimes.ts";
import { argument, median, now, quick, report, type Row, timeCalls } from "./measure.ts";

const CALLS = quick ? 50 : 500; // fewer than the driver's queue holds
const inC = new Map<string, number>();
if (argument !== undefined) {
  for (const line of execFileSync(argument, { encoding: "utf8" }).trim().split("\n")) {
    const [name, time] = line.split("\t");
    inC.set(name, Number(time));
  }
}
const rows: Row[] = [];

function add(call: string, time: number, nameInC = call): void {
  if (argument === undefined) return void rows.push({ call, [currentRuntime]: time });
  const c = inC.get(nameInC);
  if (c === undefined) throw new Error(`calls.c does not measure "${nameInC}"`);
  rows.push({ call, C: c, [currentRuntime]: time, [`${currentRuntime} / C`]: time / c });
}

using device = Device.open(0);
using stream = device.createStream();
using pool = MemoryPool.create(device, { ipc: true, releaseThresholdBytes: Infinity });
using a = pool.allocate(1 << 20, { stream });
using b = pool.allocate(1 << 20, { stream });

function measure(call: string, body: () => void): void {
  add(call, timeCalls(body, CALLS, () => stream.synchronize()));
}

measure("allocate 1 MiB and free", () => pool.allocate(1 << 20, { stream }).free({ stream }));
using event = device.createEvent();
measure("event record", () => event.record(stream));
event.synchronize();
measure("event query", () => void event.isDone);
using ipcEvent = device.createEvent({ ipc: true });
measure("interprocess event record", () => ipcEvent.record(stream));
const [from, to] = [a.subarray(0, 4096), b.subarray(0, 4096)];
measure("fill 4 KiB", () => to.fill(1, { stream }));
measure("copy 4 KiB", () => from.copyTo(to, { stream }));
measure("stream synchronize, idle", () => stream.synchronize());
measure("stream query, idle", () => void stream.isIdle);

const folder = mkdtempSync(join(tmpdir(), "cuda-ipc-bench-"));
let isImportMeasured = false;
for (const runtime of ["deno", "bun"] as const) {
  if (skipWithout(runtime)) continue;
  using server = IpcServer.listen(join(folder, runtime), { device });
  const peer = spawnRuntime(runtime, new URL("calls_peer.ts", import.meta.url), [server.path], { timeoutMs: 60_000 });
  const channel = (await server.accept())!;
  const { handles, data } = await channel.receive();
  using handle = handles.pool;
  if (!isImportMeasured) {
    using imported = MemoryPool.import(device, handle);
    const descriptor = BufferDescriptor.fromJSON(data);
    // The stream is idle, so that each free unmaps at once
    measure("import and free", () => DeviceBuffer.import(imported, descriptor, { stream }).free({ stream }));
    isImportMeasured = true;
  }
  const times: number[] = [];
  for (let i = -50; i < (quick ? 20 : 1000); i++) { // the first ones warm up
    const start = now();
    using buffer = pool.allocate(1 << 20, { stream });
    const lease = await channel.send({ buffers: { buffer } }, { after: stream });
    await lease.released;
    if (i >= 0) times.push(now() - start);
  }
  add(
    `a new buffer to ${runtime}, mapped there and released`,
    median(times),
    "a new buffer to a process, mapped there and released",
  );
  await channel.closeAsync();
  const { code, stderr } = await peer.exited;
  if (code !== 0) throw new Error(`the peer ended with ${code}: ${stderr}`);
}
rmSync(folder, { recursive: true });
report("Nanoseconds", rows);
