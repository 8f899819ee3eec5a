/** What the benchmarks have in common: the clock, percentiles, and tables of figures. */
import process from "node:process";
import { parseArgs } from "node:util";
import { libcCandidates, NativeBlock, openLibrary } from "../ffi/mod.ts";
import { currentRuntime } from "../tests/helpers/runtimes.ts";

// Without a GPU the figures are the simulator's, and only prove that the benchmark runs
process.env.CUDA_IPC_DRIVER ??= "simulator";
export const isOnGpu: boolean = process.env.CUDA_IPC_DRIVER === "cuda";

const { values, positionals } = parseArgs({
  options: { quick: { type: "boolean", default: !isOnGpu }, json: { type: "boolean", default: false } },
  allowPositionals: true,
  allowNegative: true,
});
/** `--quick` does little of each, `--no-quick` all also without a GPU; `--json` prints one object for each table. */
export const { quick, json } = values;
/** What else the command line says. */
export const argument: string | undefined = positionals[0];

/** One row of a table: figures and words by the names of their columns, the same in all rows. */
export type Row = Record<string, string | number>;

const CLOCK_MONOTONIC = 1;
const { clock_gettime: readClock } = openLibrary("the C library", libcCandidates(), {
  clock_gettime: {
    prototype: "int clock_gettime(clockid_t clock, struct timespec *time)",
    args: ["i32", "address"],
    result: "i32",
  },
});
const time = new NativeBlock(16);
const timeAddress = time.addressAt(0);

/** Nanoseconds by the one clock of all processes of a machine, which `process.hrtime` is not. */
export function now(): number {
  readClock(CLOCK_MONOTONIC, timeAddress);
  return time.readNumber(0) * 1e9 + time.readNumber(8);
}

/** The value that `share` (0 to 1) of the values do not exceed. */
export function percentile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}

export function median(values: readonly number[]): number {
  return percentile(values, 0.5);
}

/** Nanoseconds for one call: the median of several rounds of many calls. */
export function timeCalls(call: () => void, calls: number, afterRound: () => void = () => {}): number {
  const rounds = quick ? 3 : 41;
  const warmUps = quick ? 2 : 60; // the optimizing compilers come after some ten thousand calls
  const times: number[] = [];
  for (let round = -warmUps; round < rounds; round++) {
    const start = now();
    for (let i = 0; i < calls; i++) call();
    const time = (now() - start) / calls;
    afterRound();
    if (round >= 0) times.push(time);
  }
  return median(times);
}

/** A table, or its rows as JSON. */
export function report(title: string, rows: readonly Row[]): void {
  if (json) return console.log(JSON.stringify({ title, runtime: currentRuntime, driver: process.env.CUDA_IPC_DRIVER, rows }));
  console.log(`\n${title} (${currentRuntime}, ${process.env.CUDA_IPC_DRIVER})`);
  const names = Object.keys(rows[0]);
  const cells = [names, ...rows.map((row) => names.map((name) => format(row[name])))];
  const widths = names.map((_, column) => Math.max(...cells.map((row) => row[column].length)));
  for (const row of cells) {
    console.log("  " + row.map((cell, i) => i === 0 ? cell.padEnd(widths[i]) : cell.padStart(widths[i])).join("  "));
  }
}

function format(value: string | number): string {
  if (typeof value === "string") return value;
  if (Number.isInteger(value)) return String(value);
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}
