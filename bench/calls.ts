/** What the public calls cost, to be held beside calls.c in one run. Nanoseconds, medians. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Device, IpcServer, MemoryPool } from "../mod.ts";
import { currentRuntime, skipWithout, spawnRuntime } from "../tests/helpers/runtimes.ts";
import { median, now, quick, report, timeCalls } from "./measure.ts";

const CALLS = quick ? 50 : 500; // fewer than the driver's queue holds
using device = Device.open(0);
using stream = device.createStream();
using pool = MemoryPool.create(device, { ipc: true, releaseThresholdBytes: Infinity });
using a = pool.allocate(1 << 20, { stream });
using b = pool.allocate(1 << 20, { stream });
const rows: Record<string, string | number>[] = [];
const drain = () => stream.synchronize();

function measure(call: string, body: () => void, calls = CALLS): void {
  rows.push({ call, [currentRuntime]: timeCalls(body, calls, drain) });
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
for (const runtime of ["deno", "bun"] as const) {
  if (skipWithout(runtime)) continue;
  using server = IpcServer.listen(join(folder, runtime), { device });
  const peer = spawnRuntime(runtime, new URL("calls_peer.ts", import.meta.url), [server.path], { timeoutMs: 60_000 });
  const channel = (await server.accept())!;
  const times: number[] = [];
  for (let i = -50; i < (quick ? 20 : 1000); i++) {
    const start = now();
    using buffer = pool.allocate(1 << 20, { stream });
    const lease = await channel.send({ buffers: { buffer } }, { after: stream });
    await lease.released;
    if (i >= 0) times.push(now() - start);
  }
  rows.push({ call: `a new buffer to ${runtime}, mapped there and released`, [currentRuntime]: median(times) });
  await channel.closeAsync();
  await peer.exited;
}
rmSync(folder, { recursive: true });
report("Nanoseconds", rows);
