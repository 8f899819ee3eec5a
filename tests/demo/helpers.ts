/** What the demo's tests have in common: starting it and its two sides, and files to share. */
import { existsSync, mkdtempSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import {
  currentRuntime,
  type Exit,
  runRuntime,
  type Runtime,
  runtimePath,
  type RuntimeProcess,
  spawnRuntime,
} from "../helpers/runtimes.ts";

const TIME_LIMIT_MS = 40_000;
/** Gigabytes take their time on a busy machine without a GPU. */
const SIDE_LIMIT_MS = 100_000;

export const DEMO = new URL("../../src/cli/demo.ts", import.meta.url);
export const PRODUCER = new URL("../../src/cli/demo/producer.ts", import.meta.url);
export const CONSUMER = new URL("../../src/cli/demo/consumer.ts", import.meta.url);
export const SAMPLE = new URL("../../src/cli/demo/sample.csv", import.meta.url);

export type Environment = Readonly<Record<string, string | undefined>>;

/** The driver that the suite was started with, and the runtimes that it uses, also where there is no node_modules. */
export const ENVIRONMENT: Environment = {
  CUDA_IPC_DRIVER: process.env.CUDA_IPC_DRIVER ?? "simulator",
  CUDA_IPC_DENO: runtimePath("deno"),
  CUDA_IPC_BUN: runtimePath("bun"),
};

/** Runs the whole demo in this runtime. */
export function runDemo(args: readonly string[], env: Environment = {}): Promise<Exit> {
  return runRuntime(currentRuntime, DEMO, args, { timeoutMs: TIME_LIMIT_MS, env: { ...ENVIRONMENT, ...env } });
}

/** Starts the whole demo in this runtime. */
export function startDemo(args: readonly string[]): RuntimeProcess {
  return spawnRuntime(currentRuntime, DEMO, args, { timeoutMs: TIME_LIMIT_MS, env: ENVIRONMENT });
}

/** A folder that goes with everything in it. */
export class TemporaryFolder implements Disposable {
  readonly path: string = mkdtempSync(join(tmpdir(), "cuda-ipc-test-"));

  /** A file with these bytes. */
  file(name: string, bytes: Uint8Array | string): string {
    const path = join(this.path, name);
    writeFileSync(path, bytes);
    return path;
  }

  /** A file of zeros, which takes no room on the disk. */
  sparseFile(name: string, byteLength: number): string {
    const path = this.file(name, "");
    truncateSync(path, byteLength);
    return path;
  }

  [Symbol.dispose](): void {
    rmSync(this.path, { recursive: true, force: true });
  }
}

/** One direction of the demo, without the program that starts both sides. */
export class Sides implements AsyncDisposable {
  readonly producer: RuntimeProcess;
  readonly consumer: RuntimeProcess;

  constructor(producerRuntime: Runtime, socket: string, file: string, consumer: URL = CONSUMER) {
    const consumerRuntime = producerRuntime === "deno" ? "bun" : "deno";
    const options = { env: ENVIRONMENT, timeoutMs: SIDE_LIMIT_MS };
    this.producer = spawnRuntime(producerRuntime, PRODUCER, ["--socket", socket, "--file", file], options);
    this.consumer = spawnRuntime(consumerRuntime, consumer, ["--socket", socket], options);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.producer[Symbol.asyncDispose]();
    await this.consumer[Symbol.asyncDispose]();
  }
}

/** Reads the program's output up to the first line that contains `text`, and gives it. */
export async function waitForLine(program: RuntimeProcess, text: string): Promise<string> {
  for (;;) {
    const line = await program.nextLine();
    if (line === null) throw new Error(`The program has ended without the line "${text}": ${(await program.exited).stderr}`);
    if (line.includes(text)) return line;
  }
}

/** A socket file is there as soon as somebody listens at it. */
export async function waitForFile(path: string): Promise<void> {
  for (const end = performance.now() + TIME_LIMIT_MS; !existsSync(path);) {
    if (performance.now() > end) throw new Error(`${path} has not appeared`);
    await sleep(5);
  }
}
