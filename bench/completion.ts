/** How soon after the end of GPU work `finished()` resolves, and what the waiting costs. */
import process from "node:process";
import { Device } from "../mod.ts";
import { contextOf } from "../src/context.ts";
import { nativeStream } from "../src/native_stream.ts";
import { endBusy, keepBusy, prepareBusy } from "../tests/parity/work.ts";
import { now, percentile, quick, report } from "./measure.ts";

using device = Device.open(0);
using stream = device.createStream();
const { driver } = contextOf(device, "measure");
const { handle } = nativeStream(stream, "measure");
prepareBusy(driver, handle);
const rows: Record<string, string | number>[] = [];

for (const [ms, count] of [[0, 1000], [1, 300], [10, 100], [100, 50], [500, 12]] as const) {
  for (const what of ["stream", "event"] as const) {
    const late: number[] = [];
    const cpu = process.cpuUsage();
    const begin = now();
    for (let i = 0; i < (quick ? Math.min(count, 5) : count); i++) {
      // The stream is idle, so that the first event's time is the host's at that moment
      const start = now();
      using first = stream.record({ timing: true });
      if (ms > 0) keepBusy(driver, handle, ms);
      using last = stream.record({ timing: true });
      await (what === "stream" ? stream : last).finished();
      const end = now();
      late.push((end - start) / 1e6 - last.elapsedMsSince(first));
    }
    const { user, system } = process.cpuUsage(cpu);
    rows.push({
      work: ms === 0 ? "none" : `about ${ms} ms`,
      awaited: what,
      "p50 ms": percentile(late, 0.5),
      "p99 ms": percentile(late, 0.99),
      "CPU of a core": `${(100_000 * (user + system) / (now() - begin)).toFixed(0)} %`,
    });
  }
}
endBusy(driver);
report("From the end of the work to the end of the wait", rows);
