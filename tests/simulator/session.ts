/** Driver calls as plain messages, so that one test drives the driver of its own process and those of others alike. */
import { Buffer } from "node:buffer";
import { setImmediate } from "node:timers";
import { addressFromBigInt, addressToBigInt, createHostView, NativeBlock, toSize } from "../../ffi/mod.ts";
import type { CudaDriver } from "../../src/driver/driver.ts";
import { occupyStream, simulatorControl, type SimulatorReport } from "../../src/driver/simulator/mod.ts";
import { closeFd, isCloseOnExec } from "../../src/os/fd.ts";
import { cString, libc } from "../../src/os/libc.ts";
import { createSharedMemory, mapMemory, unmapMemory } from "../../src/os/memory.ts";

export type Method = Exclude<keyof CudaDriver, "kind" | "out" | "deviceAttributes">;

/** An argument of a driver call; addresses, sizes and 64-bit values are tagged, because JSON and the runtimes differ. */
export type Argument =
  | number
  | { address: string }
  | { size: number }
  | { u64: string }
  | { bytes: string }
  | { [field: string]: Argument }
  | Argument[];

export const address = (value: bigint): Argument => ({ address: String(value) });
export const size = (value: number): Argument => ({ size: value });
export const u64 = (value: bigint): Argument => ({ u64: String(value) });
export const bytes = (value: Uint8Array): Argument => ({ bytes: Buffer.from(value).toString("base64") });

export interface Command {
  readonly method: string;
  readonly args: readonly Argument[];
  /** What "repeat" repeats. */
  readonly commands?: readonly Command[];
}
export interface Answer {
  readonly code: number;
  readonly out: string;
  readonly error?: string;
  readonly report?: SimulatorReport;
}

/** What a call gave: its CUresult and what it wrote. */
export class Reply {
  readonly code: number;
  readonly #view: DataView;
  constructor({ code, out, error }: Answer) {
    if (error !== undefined) throw new Error(error);
    this.code = code;
    const copy = new Uint8Array(Buffer.from(out, "base64"));
    this.#view = new DataView(copy.buffer);
  }
  /** For calls that must work. */
  ok(): this {
    if (this.code !== 0) throw new Error(`the driver answered ${this.code}`);
    return this;
  }
  get address(): bigint {
    return this.#view.getBigUint64(0, true);
  }
  get i32(): number {
    return this.#view.getInt32(0, true);
  }
  get f32(): number {
    return this.#view.getFloat32(0, true);
  }
  number(byteOffset = 0): number {
    return Number(this.#view.getBigUint64(byteOffset, true));
  }
  get opaque(): Uint8Array {
    return new Uint8Array(this.#view.buffer, 0, 64);
  }
  bytes(byteLength: number): Uint8Array {
    return new Uint8Array(this.#view.buffer, 0, byteLength);
  }
}

/** Carries out commands in this process. */
export class Executor {
  readonly #driver: CudaDriver;
  readonly #blocks: NativeBlock[] = [];
  /** Where a descriptor from the other side comes from. */
  readonly #receiveFd: () => Promise<number>;

  constructor(driver: CudaDriver, receiveFd: () => Promise<number> = () => Promise.reject(new Error("no socket"))) {
    this.#driver = driver;
    this.#receiveFd = receiveFd;
  }

  async execute({ method, args, commands = [] }: Command): Promise<Answer> {
    const values = args.map(decode);
    const [a, b] = values as [never, never];
    const answer = (code: number, out: Uint8Array = this.#driver.out.bytes.slice(0, 256)): Answer => ({
      code,
      out: Buffer.from(out).toString("base64"),
    });
    const long = (value: bigint | number) => new Uint8Array(new BigUint64Array([BigInt(value), 0n]).buffer);
    switch (method) {
      case "hostBlock": { // bytes -> address
        const block = new NativeBlock(a);
        this.#blocks.push(block);
        return answer(0, long(addressToBigInt(block.addressAt(0))));
      }
      case "sharedMapping": // fd, bytes -> address
        return answer(0, long(addressToBigInt(mapMemory(a, b))));
      case "unmapShared": // address, bytes
        unmapMemory(a, b);
        return answer(0);
      case "createSharedMemory": // bytes -> fd
        return answer(0, long(createSharedMemory("cuda-ipc-test", a)));
      case "readHost": // address, bytes -> the bytes
        return answer(0, createHostView(a, b).bytes.slice());
      case "countOther": // address, bytes, value -> how many bytes have another value
        return answer(0, long(createHostView(a, b).bytes.reduce((count, byte) => count + (byte === values[2] ? 0 : 1), 0)));
      case "writeHost": // address, the bytes
        createHostView(a, (b as Uint8Array).byteLength).bytes.set(b);
        return answer(0);
      case "receiveFd": // -> fd
        return answer(0, long(await this.#receiveFd()));
      case "openFdOf": // pid, fd -> fd: shared memory only
        return answer(0, long(openFdOf(a, b)));
      case "occupyStream": // stream, milliseconds
        occupyStream(this.#driver, a, b);
        return answer(0);
      case "dropWork":
        simulatorControl(this.#driver).dropWork();
        return answer(0);
      case "repeat": // the commands again and again, until the process is killed
        for (;;) {
          for (const command of commands) await this.execute(command);
          await new Promise<void>((resolve) => setImmediate(resolve));
        }
      case "loseContext": // ordinal
        simulatorControl(this.#driver).loseContext(a);
        return answer(0);
      case "reset":
        simulatorControl(this.#driver).reset();
        return answer(0);
      case "report":
        return { code: 0, out: "", report: simulatorControl(this.#driver).report() };
      case "closeFd":
        closeFd(a);
        return answer(0);
      case "isCloseOnExec":
        return answer(0, long(isCloseOnExec(a) ? 1 : 0));
      default: {
        const call = this.#driver[method as Method] as (...args: unknown[]) => number;
        return answer(call.apply(this.#driver, values));
      }
    }
  }
}

function openFdOf(pid: number, fd: number): number {
  const O_RDWR_CLOEXEC = 0o2000002;
  const opened = libc().open(cString(`/proc/${pid}/fd/${fd}`), O_RDWR_CLOEXEC, 0);
  if (opened < 0) throw new Error(`cannot open descriptor ${fd} of process ${pid}`);
  return opened;
}

function decode(argument: Argument): unknown {
  if (typeof argument === "number") return argument;
  if (Array.isArray(argument)) return argument.map(decode);
  const value = argument as Record<string, unknown>;
  if (typeof value.address === "string") return addressFromBigInt(BigInt(value.address));
  if (typeof value.u64 === "string") return BigInt(value.u64);
  if (typeof value.bytes === "string") return new Uint8Array(Buffer.from(value.bytes, "base64"));
  if (typeof value.size === "number") return toSize(value.size);
  return Object.fromEntries(Object.entries(value).map(([name, field]) => [name, decode(field as Argument)]));
}

/** A process with a driver, this one or another, with the steps that most tests need. */
export abstract class Session {
  abstract execute(command: Command): Promise<Answer>;

  async call(method: Method | string, ...args: Argument[]): Promise<Reply> {
    return new Reply(await this.execute({ method, args }));
  }
  /** A call that must work. */
  async do(method: Method | string, ...args: Argument[]): Promise<Reply> {
    const reply = await this.call(method, ...args);
    if (reply.code !== 0) throw new Error(`${method} answered ${reply.code}`);
    return reply;
  }
  /** The result code alone. */
  async code(method: Method | string, ...args: Argument[]): Promise<number> {
    return (await this.call(method, ...args)).code;
  }

  async report(): Promise<SimulatorReport> {
    return (await this.execute({ method: "report", args: [] })).report!;
  }

  /** Makes a device's context current and creates a stream. */
  async start(ordinal = 0): Promise<bigint> {
    const context = (await this.do("devicePrimaryCtxRetain", ordinal)).address;
    await this.do("ctxSetCurrent", address(context));
    return (await this.do("streamCreateWithPriority", 1, 0)).address;
  }

  async createPool(props: Record<string, number> = {}): Promise<bigint> {
    const all = { allocType: 1, handleTypes: 1, locationType: 1, locationId: 0, ...props };
    return (await this.do("memPoolCreate", all)).address;
  }

  async allocate(pool: bigint, byteLength: number, stream: bigint): Promise<bigint> {
    return (await this.do("memAllocFromPoolAsync", size(byteLength), address(pool), address(stream))).address;
  }

  async exportPool(pool: bigint): Promise<number> {
    return (await this.do("memPoolExportToShareableHandle", address(pool), 1)).i32;
  }

  /** Writes through the driver. */
  async write(target: bigint, data: Uint8Array, stream: bigint): Promise<void> {
    const host = (await this.do("hostBlock", data.byteLength)).address;
    await this.do("writeHost", address(host), bytes(data));
    await this.do("memcpyHtoDAsync", address(target), address(host), size(data.byteLength), address(stream));
    await this.do("streamSynchronize", address(stream));
  }

  /** Reads through the driver: little, for it goes through a pipe. */
  async read(source: bigint, byteLength: number, stream: bigint): Promise<Uint8Array> {
    const host = (await this.do("hostBlock", byteLength)).address;
    await this.do("memcpyDtoHAsync", address(host), address(source), size(byteLength), address(stream));
    await this.do("streamSynchronize", address(stream));
    return (await this.do("readHost", address(host), byteLength)).bytes(byteLength);
  }

  /** Whether device memory holds one value everywhere. */
  async isFilled(source: bigint, value: number, byteLength: number, stream: bigint): Promise<boolean> {
    const host = (await this.do("hostBlock", byteLength)).address;
    await this.do("memcpyDtoHAsync", address(host), address(source), size(byteLength), address(stream));
    await this.do("streamSynchronize", address(stream));
    return (await this.do("countOther", address(host), byteLength, value)).number() === 0;
  }

  async fill(target: bigint, value: number, byteLength: number, stream: bigint): Promise<void> {
    await this.do("memsetD8Async", address(target), value, size(byteLength), address(stream));
  }

  async freeBytes(): Promise<number> {
    return (await this.do("memGetInfo")).number(0);
  }
}

/** The driver of the test's own process. */
export class LocalSession extends Session {
  readonly #executor: Executor;
  constructor(driver: CudaDriver) {
    super();
    this.#executor = new Executor(driver);
  }
  execute(command: Command): Promise<Answer> {
    return this.#executor.execute(command);
  }
}
