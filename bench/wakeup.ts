/**
 * How fast a message is in the other process's hands, and what a connected pair costs while nothing happens. With the path of
 * the compiled wakeup.c as an argument, that runs first and its figures stand above.
 */
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { type IpcChannel, IpcServer } from "../mod.ts";
import { currentRuntime, skipWithout, spawnRuntime } from "../tests/helpers/runtimes.ts";
import { argument, now, percentile, quick, report, type Row } from "./measure.ts";

/** What the peer answers with. */
export interface Echo {
  /** When it had the message, and when it answered. */
  readonly arrived: number;
  readonly sent: number;
  /** Its CPU time so far, in microseconds. */
  readonly cpu: number;
}

const IDLE_MS = quick ? 1000 : 10_000;
const cpuOf = ({ user, system }: NodeJS.CpuUsage) => user + system;
const latencies: Row[] = [];
const idle: Row[] = [];
const folder = mkdtempSync(join(tmpdir(), "cuda-ipc-bench-"));

async function roundTrip(channel: IpcChannel, data: unknown): Promise<Echo & { start: number; end: number }> {
  const start = now();
  await channel.send({ data });
  const message = await channel.receive();
  const end = now();
  return { ...message.data as Echo, start, end };
}

async function measureLatency(channel: IpcChannel, peer: string, silenceMs: number, count: number): Promise<void> {
  const [there, back]: number[][] = [[], []];
  for (let i = -20; i < count; i++) {
    if (silenceMs > 0) await sleep(silenceMs);
    const { start, arrived, sent, end } = await roundTrip(channel, {});
    if (i < 0) continue; // warms up
    there.push((arrived - start) / 1000);
    back.push((end - sent) / 1000);
  }
  const silence = silenceMs === 0 ? "none" : `${silenceMs} ms`;
  for (const [way, values] of [[`${currentRuntime} to ${peer}`, there], [`${peer} to ${currentRuntime}`, back]] as const) {
    latencies.push({ way, silence, "p50 us": percentile(values, 0.5), "p99 us": percentile(values, 0.99), messages: count });
  }
}

async function measureIdle(channel: IpcChannel, peer: string, isRef: boolean): Promise<void> {
  if (!isRef) channel.unref();
  const { cpu } = await roundTrip(channel, { unref: !isRef });
  const own = process.cpuUsage();
  await sleep(IDLE_MS);
  const ours = cpuOf(process.cpuUsage(own));
  channel.ref();
  const theirs = (await roundTrip(channel, { unref: false })).cpu - cpu;
  const share = (us: number) => `${(us / IDLE_MS / 10).toFixed(2)} %`;
  const state = isRef ? "ref" : "unref";
  idle.push({ pair: `${currentRuntime} and ${peer}, ${state}`, here: share(ours), there: share(theirs) });
}

if (argument !== undefined) {
  for (const line of execFileSync(argument, { encoding: "utf8" }).trim().split("\n")) {
    const [way, silence, p50, p99, messages] = line.split("\t");
    const shown = silence === "0 ms" ? "none" : silence;
    latencies.push({ way, silence: shown, "p50 us": Number(p50), "p99 us": Number(p99), messages: Number(messages) });
  }
}
for (const runtime of ["deno", "bun"] as const) {
  if (skipWithout(runtime)) continue;
  const server = IpcServer.listen(join(folder, runtime));
  const peer = spawnRuntime(runtime, new URL("wakeup_peer.ts", import.meta.url), [server.path], { timeoutMs: 120_000 });
  const channel = (await server.accept())!;
  await measureLatency(channel, runtime, 0, quick ? 200 : 5000);
  await measureLatency(channel, runtime, 10, quick ? 20 : 300);
  await measureLatency(channel, runtime, 100, quick ? 5 : 40);
  await measureIdle(channel, runtime, true);
  await measureIdle(channel, runtime, false);
  await channel.closeAsync();
  server.close();
  const { code, stderr } = await peer.exited;
  if (code !== 0) throw new Error(`the peer ended with ${code}: ${stderr}`);
}
rmSync(folder, { recursive: true });
report("From send() to the message in the other process's hands", latencies);
report(`CPU time of a connected pair, of one core, over ${IDLE_MS / 1000} s without a message`, idle);
