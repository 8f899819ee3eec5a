/** What the tests of channels use in their own process and in the processes that they start. */
import { closeSync, openSync, readdirSync, readlinkSync } from "node:fs";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import * as cuda from "../../mod.ts";
import { contextOf } from "../../src/context.ts";
import { simulatorControl, type SimulatorReport } from "../../src/driver/simulator/mod.ts";
import { nativeStream } from "../../src/native_stream.ts";
import { shutdownSending } from "../../src/os/socket.ts";
import { ownFds } from "../helpers/fds.ts";
import { keepBusy, prepareBusy } from "../parity/work.ts";

export { sleep };

/** The suite runs on the simulator unless CUDA_IPC_DRIVER says otherwise. Children inherit this. */
process.env.CUDA_IPC_DRIVER ??= "simulator";
export const isOnGpu: boolean = process.env.CUDA_IPC_DRIVER === "cuda";

export class Toolkit {
  readonly cuda: typeof cuda = cuda;
  readonly device: cuda.Device;
  readonly stream: cuda.CudaStream;
  /** Whatever a test keeps between two of its functions. */
  // deno-lint-ignore no-explicit-any
  readonly kept: Record<string, any> = {};
  readonly sleep: typeof sleep = sleep;
  #socket: number | undefined;

  constructor() {
    this.device = cuda.Device.open(0);
    if (this.device.isSimulated === isOnGpu) {
      throw new Error(`CUDA_IPC_DRIVER is ${process.env.CUDA_IPC_DRIVER}, but the driver is another one`);
    }
    this.stream = this.device.createStream();
    // What the driver opens at its first use is no leak
    this.device.createStream().close();
  }

  get pid(): number {
    return process.pid;
  }

  async connect(path: string): Promise<cuda.IpcChannel> {
    const before = new Set(sockets());
    const channel = await cuda.IpcChannel.connect(path, { device: this.device });
    this.#socket = sockets().find((fd) => !before.has(fd));
    return channel;
  }

  /** Ends the socket of the last `connect` without a word. */
  hangUp(): void {
    shutdownSending(this.#socket!);
  }

  /** A pool and a filled buffer of it. */
  createBuffer(byteLength: number, value: number): { pool: cuda.MemoryPool; buffer: cuda.DeviceBuffer } {
    const pool = cuda.MemoryPool.create(this.device, { ipc: true });
    const buffer = pool.allocate(byteLength, { stream: this.stream });
    buffer.fill(value, { stream: this.stream });
    return { pool, buffer };
  }

  /** Work on a stream that takes about this long. */
  keepBusy(stream: cuda.CudaStream, ms: number): void {
    const { driver } = contextOf(this.device, "keep a stream busy");
    keepBusy(driver, nativeStream(stream, "keep a stream busy").handle, ms);
  }

  prepareBusy(): void {
    const { driver } = contextOf(this.device, "keep a stream busy");
    prepareBusy(driver, nativeStream(this.stream, "keep a stream busy").handle);
  }

  /** What the simulated driver has of this process. */
  report(): SimulatorReport {
    return simulatorControl(contextOf(this.device, "report").driver).report();
  }

  /** Opens descriptors until only `left` more can be opened. */
  hoardFds(left: number): number[] {
    const fds: number[] = [];
    try {
      for (;;) fds.push(openSync("/dev/null", "r"));
    } catch {
      for (const fd of fds.splice(-left)) closeSync(fd);
      return fds;
    }
  }

  dropFds(fds: readonly number[]): void {
    for (const fd of fds) closeSync(fd);
  }

  /** This module's open descriptors, by what they refer to. */
  fds(): string[] {
    return ownFds();
  }
}

/** The descriptors that are sockets. */
function sockets(): number[] {
  return readdirSync("/proc/self/fd").map(Number).filter((fd) => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`).startsWith("socket:");
    } catch {
      return false; // the one that was reading the directory
    }
  });
}

/** Waits until something holds. */
export async function until(what: string, isSo: () => boolean | Promise<boolean>, timeoutMs = 10_000): Promise<void> {
  const end = performance.now() + timeoutMs;
  while (!await isSo()) {
    if (performance.now() > end) throw new Error(`it did not happen within ${timeoutMs} ms: ${what}`);
    await sleep(2);
  }
}
