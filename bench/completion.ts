/** How soon after the end of GPU work `finished()` resolves, and what the waiting costs. */
import process from "node:process";
import { Device } from "../mod.ts";
import { contextOf } from "../src/context.ts";
import { nativeStream } from "../src/native_stream.ts";
import { endBusy, keepBusy, prepareBusy } from "../tests/parity/work.ts";
import { now, percentile, quick, report, type Row } from "./measure.ts";

using device = Device.open(0);
using stream = device.createStream();
const { driver } = contextOf(device, "measure");
const { handle } = nativeStream(stream, "measure");
prepareBusy(driver, handle);
const late: Row[] = [];
const done: Row[] = [];

for (const [ms, count] of [[0, 1000], [1, 300], [10, 100], [100, 50], [500, 12]] as const) {
  for (const awaited of ["stream", "event"] as const) {
    const times: number[] = [];
    const waits = quick ? Math.min(count, 5) : count;
    const cpu = process.cpuUsage();
    const begin = now();
    for (let i = 0; i < waits; i++) {
      // The stream is idle, so the first event's time is the host's, or a launch later: no figure is too small
      const start = now();
      using first = stream.record({ timing: true });
      if (ms > 0) keepBusy(driver, handle, ms);
      using last = stream.record({ timing: true });
      await (awaited === "stream" ? stream : last).finished();
      const end = now();
      times.push((end - start) / 1e6 - last.elapsedMsSince(first));
    }
    const { user, system } = process.cpuUsage(cpu);
    late.push({
      work: ms === 0 ? "none" : `about ${ms} ms`,
      awaited,
      waits,
      "p50 ms": percentile(times, 0.5),
      "p99 ms": percentile(times, 0.99),
      "CPU of a core": `${(100_000 * (user + system) / (now() - begin)).toFixed(0)} %`,
    });
  }
}
endBusy(driver);

using event = stream.record();
stream.synchronize();
for (const [awaited, subject] of [["stream", stream], ["event", event]] as const) {
  const times: number[] = [];
  const waits = quick ? 200 : 10_000;
  for (let i = -100; i < waits; i++) { // the first ones warm up
    const start = now();
    await subject.finished();
    if (i >= 0) times.push((now() - start) / 1000);
  }
  done.push({ awaited, waits, "p50 us": percentile(times, 0.5), "p99 us": percentile(times, 0.99) });
}
report("From the end of the work to the end of the wait", late);
report("The wait for what is done already", done);
