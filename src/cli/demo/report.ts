/** What one side of the demo tells its reader. */
import process from "node:process";
import type { Device } from "../../device.ts";
import { CudaIpcError } from "../../errors.ts";
import { currentRuntime, runtimeTitle, runtimeVersion } from "../../os/runtime.ts";

const PROGRESS_MS = 1000;
const UNITS = ["bytes", "KiB", "MiB", "GiB"];

export type Side = "producer" | "consumer";

/** Writes lines that begin with the name of the side. */
export class Report {
  readonly #side: Side;

  constructor(side: Side) {
    this.#side = side;
  }

  line(text: string): void {
    console.log(`  ${this.#side}  ${text}`);
  }

  /** Who works here, and on what. */
  introduce(device: Device): void {
    const runtime = `${runtimeTitle(currentRuntime())} ${runtimeVersion()}`;
    this.line(`${runtime}, process ${process.pid}, on ${deviceText(device)}`);
  }

  /** Says what went wrong. */
  failure(error: unknown): void {
    console.error(`  ${this.#side}  ${errorText(error)}`);
  }

  /** Tells how far a longer job is: at most one line a second, and none for a job that takes less. */
  progress(done: string, totalBytes: number): (bytes: number) => void {
    let bytes = 0;
    let next = performance.now() + PROGRESS_MS;
    return (more) => {
      bytes += more;
      const now = performance.now();
      if (now < next || bytes === totalBytes) return;
      next = now + PROGRESS_MS;
      const percent = Math.floor(100 * bytes / totalBytes);
      this.line(`${done} ${shortBytes(bytes)} of ${shortBytes(totalBytes)} (${percent} %)`);
    };
  }
}

/** Class and message of an error that is told to users; the stack of one that is a defect of this program. */
export function errorText(error: unknown): string {
  if (error instanceof CudaIpcError) return `${error.name}: ${error.message}`;
  if (!(error instanceof Error)) return String(error);
  const isUsage = String((error as NodeJS.ErrnoException).code).startsWith("ERR_PARSE_ARGS");
  return isUsage ? error.message : error.stack ?? error.message;
}

export function deviceText(device: Device): string {
  return `${device.name} (${device.isSimulated ? "simulator" : "CUDA driver"})`;
}

/** `232053 bytes`, and for large ones the same in short. */
export function formatBytes(bytes: number): string {
  return bytes < 1024 ? `${bytes} bytes` : `${bytes} bytes (${shortBytes(bytes)})`;
}

function shortBytes(bytes: number): string {
  const unit = Math.min(UNITS.length - 1, Math.floor(Math.log2(Math.max(1, bytes)) / 10));
  return `${unit === 0 ? bytes : (bytes / 1024 ** unit).toFixed(1)} ${UNITS[unit]}`;
}

/** A byte or an address. */
export function hex(value: number | bigint): string {
  return `0x${value.toString(16).padStart(2, "0")}`;
}

/** Measures from its making. */
export class Stopwatch {
  readonly #start = performance.now();

  toString(): string {
    const ms = performance.now() - this.#start;
    return ms < 1000 ? `${ms.toFixed(1)} ms` : `${(ms / 1000).toFixed(2)} s`;
  }
}

/** Runs one side as this process's only job. It ends with exit code 0 only when `body` resolves with true. */
export async function runSide(side: Side, body: (report: Report) => Promise<boolean>): Promise<void> {
  const report = new Report(side);
  let succeeded = false;
  try {
    succeeded = await body(report);
  } catch (error) {
    report.failure(error);
  }
  process.exit(succeeded ? 0 : 1);
}
