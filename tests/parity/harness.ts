/**
 * The parity suite's view of a driver: the same calls in the test's own process, in another process, and in a thread.
 * Everything that a session made through these helpers is given back when it is disposed.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { Worker } from "node:worker_threads";
import * as enums from "../../src/driver/enums.ts";
import { resultName } from "../../src/driver/check.ts";
import type { CudaDriver, MemAccessDesc, MemAllocationProp, MemPoolProps } from "../../src/driver/driver.ts";
import { discardFds, duplicateFd } from "../../src/os/fd.ts";
import { Listener, receiveBytes, sendBytes } from "../../src/os/socket.ts";
import { type Exit, otherRuntime, type Runtime, type RuntimeProcess, spawnRuntime } from "../helpers/runtimes.ts";
import { decode, encode } from "./codec.ts";
import { type CallAnswer, Executor, type Host, type Method, type PlainArguments } from "./executor.ts";
import { endBusy } from "./work.ts";

export { sleep };

/** Whether this run is on a GPU; the driver itself is opened by the first session. */
export const isOnGpu: boolean = process.env.CUDA_IPC_DRIVER !== "simulator";
/** The driver's own word for one of the two. */
export const expectedKind: "cuda" | "simulator" = isOnGpu ? "cuda" : "simulator";

export const MiB = 2 ** 20;
export const PAGE = 4096;

/** What a call gave: its CUresult, what it wrote, and how long it kept its thread. */
export class Result {
  readonly code: number;
  readonly ms: number;
  readonly out: Uint8Array;
  readonly #view: DataView;

  constructor({ code, out, ms }: CallAnswer) {
    this.code = code;
    this.ms = ms;
    this.out = out.slice();
    this.#view = new DataView(this.out.buffer);
  }
  get address(): bigint {
    return this.long(0);
  }
  get i32(): number {
    return this.#view.getInt32(0, true);
  }
  long(byteOffset: number): bigint {
    return this.#view.getBigUint64(byteOffset, true);
  }
  number(byteOffset = 0): number {
    return Number(this.long(byteOffset));
  }
  /** The 64 bytes of a handle or of export data. */
  get opaque(): Uint8Array {
    return this.out.slice(0, 64);
  }
}

/** Functions that give something back; memory of a pool by either of two. */
const CLEANUPS: ReadonlySet<Method> = new Set<Method>([
  "streamDestroy",
  "eventDestroy",
  "memPoolDestroy",
  "memFree",
  "memFreeAsync",
  "memRelease",
  "memUnmap",
  "memAddressFree",
  "memHostUnregister",
  "ipcCloseMemHandle",
]);
function keyOf(method: Method, [handle]: readonly unknown[]): string {
  return `${method.replace("Async", "")} ${handle}`;
}

type Kind = "call" | "host" | "passing";
interface Reply {
  readonly value?: unknown;
  readonly error?: string;
}

export abstract class Session {
  /** Set by `start`. */
  stream = 0n;
  /** What gives back what was made, by the driver's function and its handle or address. */
  readonly #cleanups: { readonly key: string; readonly run: () => Promise<unknown> }[] = [];

  protected abstract execute(kind: Kind, name: string, args: readonly unknown[]): Promise<unknown>;
  /** Gives a duplicate of one of the session's descriptors to the test's own process, which owns it. */
  abstract takeFd(fd: number): Promise<number>;
  /** Takes over a descriptor of the test's own process; returns its number in the session. */
  abstract giveFd(fd: number): Promise<number>;

  /** Calls the driver. */
  async call<M extends Method>(method: M, ...args: PlainArguments<M>): Promise<Result> {
    const result = new Result(await this.execute("call", method, args as unknown[]) as CallAnswer);
    if (result.code === 0 && CLEANUPS.has(method)) this.#forget(keyOf(method, args));
    return result;
  }
  /** Calls the driver for the code alone. */
  async code<M extends Method>(method: M, ...args: PlainArguments<M>): Promise<number> {
    return (await this.call(method, ...args)).code;
  }
  /** Calls the driver, which must answer 0. */
  async do<M extends Method>(method: M, ...args: PlainArguments<M>): Promise<Result> {
    const result = await this.call(method, ...args);
    if (result.code !== 0) throw new Error(`${method} answered ${result.code} ${resultName(result.code)}, expected 0`);
    return result;
  }
  /** Lets the session's host do something. */
  async host<K extends keyof Host>(name: K, ...args: Parameters<Host[K]>): Promise<Awaited<ReturnType<Host[K]>>> {
    if (name === "closeFd") this.#forget(`fd ${args[0]}`);
    return await this.execute("host", name, args) as Awaited<ReturnType<Host[K]>>;
  }

  /** Makes the device's primary context current and creates the session's stream. */
  async start(device = 0): Promise<this> {
    const context = (await this.do("devicePrimaryCtxRetain", device)).address;
    await this.do("ctxSetCurrent", context);
    this.stream = await this.createStream();
    return this;
  }

  #later<M extends Method>(method: M, ...args: PlainArguments<M>): void {
    this.#cleanups.push({ key: keyOf(method, args), run: () => this.code(method, ...args) });
  }
  protected closeLater(fd: number): void {
    this.#cleanups.push({ key: `fd ${fd}`, run: () => this.host("closeFd", fd) });
  }
  /** The test itself has given it back: a handle must not be given back twice. */
  #forget(key: string): void {
    const index = this.#cleanups.findLastIndex((cleanup) => cleanup.key === key);
    if (index >= 0) this.#cleanups.splice(index, 1);
  }
  /** Gives everything back, the latest first. */
  protected async giveBack(): Promise<void> {
    for (let cleanup = this.#cleanups.at(-1); cleanup !== undefined; cleanup = this.#cleanups.at(-1)) {
      this.#forget(cleanup.key);
      await cleanup.run();
    }
  }
  abstract [Symbol.asyncDispose](): Promise<void>;

  // ---- streams and events

  async createStream(): Promise<bigint> {
    const stream = (await this.do("streamCreateWithPriority", enums.CU_STREAM_NON_BLOCKING, 0)).address;
    this.#later("streamDestroy", stream);
    return stream;
  }
  async synchronize(): Promise<void> {
    await this.do("streamSynchronize", this.stream);
  }
  async createEvent(flags: number = enums.CU_EVENT_DISABLE_TIMING): Promise<bigint> {
    const event = (await this.do("eventCreate", flags)).address;
    this.#later("eventDestroy", event);
    return event;
  }
  createIpcEvent(): Promise<bigint> {
    return this.createEvent(enums.CU_EVENT_DISABLE_TIMING | enums.CU_EVENT_INTERPROCESS);
  }
  async eventHandle(event: bigint): Promise<Uint8Array> {
    return (await this.do("ipcGetEventHandle", event)).opaque;
  }
  async openEvent(handle: Uint8Array): Promise<bigint> {
    return (await this.do("ipcOpenEventHandle", handle)).address;
  }

  // ---- pools

  /** A pool whose handle can be shared, on the device, unless told otherwise. */
  async createPool(props: MemPoolProps = {}): Promise<bigint> {
    const pool = (await this.do("memPoolCreate", poolProps(props))).address;
    this.#later("memPoolDestroy", pool);
    return pool;
  }
  async allocate(pool: bigint, byteLength = PAGE): Promise<bigint> {
    const address = (await this.do("memAllocFromPoolAsync", byteLength, pool, this.stream)).address;
    this.#later("memFreeAsync", address, this.stream);
    return address;
  }
  async free(address: bigint): Promise<void> {
    await this.do("memFreeAsync", address, this.stream);
    await this.synchronize();
  }
  async exportPool(pool: bigint): Promise<number> {
    const fd = (await this.do("memPoolExportToShareableHandle", pool, FD)).i32;
    this.closeLater(fd);
    return fd;
  }
  /** Closes a descriptor before the session ends. */
  async closeFd(fd: number): Promise<void> {
    this.#forget(`fd ${fd}`);
    await this.host("closeFd", fd);
  }
  async exportPointer(address: bigint): Promise<Uint8Array> {
    return (await this.do("memPoolExportPointer", address)).opaque;
  }
  async importPool(fd: number): Promise<bigint> {
    return (await this.do("memPoolImportFromShareableHandle", BigInt(fd), FD)).address;
  }
  async importPointer(pool: bigint, data: Uint8Array): Promise<bigint> {
    const address = (await this.do("memPoolImportPointer", pool, data)).address;
    this.#later("memFreeAsync", address, this.stream);
    return address;
  }
  async poolAttribute(pool: bigint, attribute: number): Promise<bigint> {
    return (await this.do("memPoolGetAttribute", pool, attribute)).long(0);
  }

  // ---- other device memory

  async allocatePlain(byteLength = 2 * MiB): Promise<bigint> {
    const address = (await this.do("memAlloc", byteLength)).address;
    this.#later("memFree", address);
    return address;
  }
  async memHandle(address: bigint): Promise<Uint8Array> {
    return (await this.do("ipcGetMemHandle", address)).opaque;
  }
  async openMemHandle(handle: Uint8Array): Promise<bigint> {
    const address = (await this.do("ipcOpenMemHandle", handle, enums.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)).address;
    this.#later("ipcCloseMemHandle", address);
    return address;
  }
  async createVirtual(byteLength: number): Promise<bigint> {
    const handle = (await this.do("memCreate", byteLength, ALLOCATION_PROP)).address;
    this.#later("memRelease", handle);
    return handle;
  }
  async exportVirtual(handle: bigint): Promise<number> {
    const fd = (await this.do("memExportToShareableHandle", handle, FD)).i32;
    this.closeLater(fd);
    return fd;
  }
  async importVirtual(fd: number): Promise<bigint> {
    const handle = (await this.do("memImportFromShareableHandle", BigInt(fd), FD)).address;
    this.#later("memRelease", handle);
    return handle;
  }
  /** Maps pieces of physical memory side by side at new addresses, for the first device to read and write by default. */
  async mapVirtual(
    handles: readonly bigint[],
    byteLength: number,
    access: readonly MemAccessDesc[] = [READ_WRITE_ON_DEVICE],
  ): Promise<bigint> {
    const total = handles.length * byteLength;
    const address = (await this.do("memAddressReserve", total, 0, 0n)).address;
    this.#later("memAddressFree", address, total);
    for (const [index, handle] of handles.entries()) {
      const place = address + BigInt(index * byteLength);
      await this.do("memMap", place, byteLength, 0, handle);
      this.#later("memUnmap", place, byteLength);
    }
    if (access.length > 0) await this.do("memSetAccess", address, total, access);
    return address;
  }
  async freeBytes(): Promise<number> {
    return (await this.do("memGetInfo")).number(0);
  }

  /** Whether the session's stream comes to its end. */
  isFinished(): Promise<boolean> {
    return eventually(async () => await this.code("streamQuery", this.stream) === 0);
  }

  // ---- what is in memory

  /** Fills and waits for it. */
  async fill(address: bigint, value: number, byteLength = PAGE): Promise<void> {
    await this.do("memsetD8Async", address, value, byteLength, this.stream);
    await this.synchronize();
  }
  /** The byte at a device address; where it cannot be read, the code as a negative number. */
  async byteAt(address: bigint): Promise<number> {
    const buffer = await this.#readBuffer();
    const code = await this.workCode("memcpyDtoHAsync", buffer, address, 1, this.stream);
    return code !== 0 ? -code : (await this.host("read", buffer, 1))[0];
  }
  /** The bytes at a device address, which can be read. */
  async bytesAt(address: bigint, byteLength: number): Promise<Uint8Array> {
    const buffer = await this.host("allocate", byteLength);
    await this.do("memcpyDtoHAsync", buffer, address, byteLength, this.stream);
    await this.synchronize();
    return await this.host("read", buffer, byteLength);
  }
  /** The code of a call that is queued, or of the work itself. */
  async workCode<M extends Method>(method: M, ...args: PlainArguments<M>): Promise<number> {
    return await this.code(method, ...args) || await this.code("streamSynchronize", this.stream);
  }
  #buffer: bigint | undefined;
  async #readBuffer(): Promise<bigint> {
    return this.#buffer ??= await this.host("allocate", 16);
  }

  /** Registers memory of the host for the device; gives the device's address. */
  async register(address: bigint, byteLength: number): Promise<bigint> {
    const flags = enums.CU_MEMHOSTREGISTER_PORTABLE | enums.CU_MEMHOSTREGISTER_DEVICEMAP;
    await this.do("memHostRegister", address, byteLength, flags);
    this.#later("memHostUnregister", address);
    return (await this.do("memHostGetDevicePointer", address)).address;
  }
}

export const FD = enums.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
export const ON_DEVICE = { type: enums.CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
export const READ_WRITE_ON_DEVICE = {
  locationType: enums.CU_MEM_LOCATION_TYPE_DEVICE,
  locationId: 0,
  flags: enums.CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
};
export const HOST_POOL: MemPoolProps = { locationType: enums.CU_MEM_LOCATION_TYPE_HOST_NUMA, locationId: 0 };
export const ALLOCATION_PROP: MemAllocationProp = {
  type: enums.CU_MEM_ALLOCATION_TYPE_PINNED,
  requestedHandleTypes: FD,
  locationType: enums.CU_MEM_LOCATION_TYPE_DEVICE,
  locationId: 0,
};

export function poolProps(props: MemPoolProps = {}): MemPoolProps {
  return {
    allocType: enums.CU_MEM_ALLOCATION_TYPE_PINNED,
    handleTypes: FD,
    locationType: enums.CU_MEM_LOCATION_TYPE_DEVICE,
    locationId: 0,
    ...props,
  };
}

// ---- the test's own process

let executor: Executor | undefined;

class Local extends Session {
  readonly #executor = executor ??= new Executor();

  protected execute(kind: Kind, name: string, args: readonly unknown[]): Promise<unknown> {
    if (kind === "call") return Promise.resolve(this.#executor.call(name as Method, args));
    const action = this.#executor.host[name as keyof Host] as (...args: readonly unknown[]) => unknown;
    return Promise.resolve(action(...args));
  }
  takeFd(fd: number): Promise<number> {
    return Promise.resolve(duplicateFd(fd));
  }
  giveFd(fd: number): Promise<number> {
    this.closeLater(fd);
    return Promise.resolve(fd);
  }
  async [Symbol.asyncDispose](): Promise<void> {
    await this.code("streamSynchronize", this.stream);
    endBusy(this.#executor.driver);
    await this.giveBack();
  }
}

/** The driver of the test's own process, for what must be fast. */
export function localDriver(): CudaDriver {
  return (executor ??= new Executor()).driver;
}

/** A session in the test's own process. */
export async function startLocal(): Promise<Session> {
  return await new Local().start();
}

// ---- another process

/** A simulated device has as much memory there as a large GPU. */
const PEER_MEMORY = "256GiB";

export interface PeerOptions {
  readonly runtime?: Runtime;
  /** Whether it makes a context and a stream. */
  readonly context?: boolean;
  readonly env?: Readonly<Record<string, string | undefined>>;
  /** What starts it, in the words of a shell, such as `unshare --mount`. */
  readonly wrapper?: string;
}

export class Peer extends Session {
  readonly process: RuntimeProcess;
  readonly #socket: number;

  private constructor(process: RuntimeProcess, socket: number) {
    super();
    this.process = process;
    this.#socket = socket;
  }

  static async spawn({ runtime = otherRuntime, context = true, env, wrapper }: PeerOptions): Promise<Peer> {
    const directory = mkdtempSync(join(tmpdir(), "cuda-ipc-parity-"));
    const listener = Listener.open(join(directory, "socket"));
    try {
      const program = new URL("./peer_program.ts", import.meta.url);
      const child = spawnRuntime(runtime, program, [listener.path], {
        env: { CUDA_IPC_SIM_MEMORY: PEER_MEMORY, ...env },
        wrapper,
        timeoutMs: 60_000,
      });
      if (await child.nextLine() === null) throw new Error(`the peer did not start: ${(await child.exited).stderr}`);
      const peer = new Peer(child, listener.accept()!);
      return context ? await peer.start() : peer;
    } finally {
      listener.close();
      rmSync(directory, { recursive: true, force: true });
    }
  }

  protected async execute(kind: Kind, name: string, args: readonly unknown[]): Promise<unknown> {
    this.process.write(encode({ kind, name, args }) + "\n");
    const line = await this.process.nextLine();
    if (line === null) {
      const { signal, code, stderr } = await this.process.exited;
      throw new Error(`the peer ended in ${name} by ${signal ?? `exit code ${code}`}: ${stderr}`);
    }
    const { value, error } = decode(line) as Reply;
    if (error !== undefined) throw new Error(`the peer failed in ${name}: ${error}`);
    return value;
  }

  async takeFd(fd: number): Promise<number> {
    await this.execute("passing", "sendFd", [fd]);
    return receiveBytes(this.#socket, 1)!.fds[0];
  }
  async giveFd(fd: number): Promise<number> {
    sendBytes(this.#socket, new Uint8Array(1), [fd]);
    discardFds(fd);
    return await this.execute("passing", "receiveFd", []) as number;
  }

  /** Makes a call that may kill the process: how it ended, or what the call gave. */
  async fate<M extends Method>(method: M, ...args: PlainArguments<M>): Promise<Exit | Result> {
    await this.host("resetSegvHandler");
    try {
      return await this.call(method, ...args);
    } catch {
      return await this.process.exited;
    }
  }

  /** Kills it and waits until it has exited. */
  async kill(): Promise<Exit> {
    this.process.kill("SIGKILL");
    return await this.process.exited;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    discardFds(this.#socket);
    await this.process[Symbol.asyncDispose]();
  }
}

/** A session in a process of the other runtime, unless told otherwise. */
export function startPeer(options: PeerOptions = {}): Promise<Peer> {
  return Peer.spawn(options);
}

// ---- a thread

class Thread extends Session {
  readonly #worker = new Worker(new URL("./thread_program.ts", import.meta.url));
  #settle: ((reply: Reply) => void) | undefined;

  constructor() {
    super();
    this.#worker.on("message", (reply: Reply) => this.#settle?.(reply));
    this.#worker.on("error", (error: Error) => this.#settle?.({ error: String(error) }));
  }
  async #reply(): Promise<unknown> {
    const { value, error } = await new Promise<Reply>((resolve) => this.#settle = resolve);
    if (error !== undefined) throw new Error(`the thread failed: ${error}`);
    return value;
  }
  async ready(): Promise<this> {
    await this.#reply();
    return this;
  }
  protected execute(kind: Kind, name: string, args: readonly unknown[]): Promise<unknown> {
    const reply = this.#reply();
    this.#worker.postMessage({ kind, name, args });
    return reply;
  }
  takeFd(fd: number): Promise<number> {
    return Promise.resolve(fd);
  }
  giveFd(fd: number): Promise<number> {
    return Promise.resolve(fd);
  }
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#worker.terminate();
  }
}

/** A session in another thread of the test's process, without a current context. */
export function startThread(): Promise<Session> {
  return new Thread().ready();
}

// ---- between sessions

/** Passes a descriptor; gives its number there. */
export async function passFd(from: Session, fd: number, to: Session): Promise<number> {
  return await to.giveFd(await from.takeFd(fd));
}

/** One allocation of an exported pool, imported elsewhere. With a `value` its first page is filled. */
export interface SharedAllocation {
  readonly pool: bigint;
  /** Open until the exporter's session ends or closes it. */
  readonly exportedFd: number;
  readonly address: bigint;
  readonly data: Uint8Array;
  readonly imported: { readonly fd: number; readonly pool: bigint; readonly address: bigint };
}

export async function shareAllocation(
  exporter: Session,
  importer: Session,
  { byteLength = PAGE, value, props = {} }: { byteLength?: number; value?: number; props?: MemPoolProps } = {},
): Promise<SharedAllocation> {
  const pool = await exporter.createPool(props);
  const exportedFd = await exporter.exportPool(pool);
  const address = await exporter.allocate(pool, byteLength);
  if (value !== undefined) await exporter.fill(address, value, Math.min(byteLength, PAGE));
  const data = await exporter.exportPointer(address);
  const fd = await passFd(exporter, exportedFd, importer);
  const importedPool = await importer.importPool(fd);
  const imported = { fd, pool: importedPool, address: await importer.importPointer(importedPool, data) };
  return { pool, exportedFd, address, data, imported };
}

/** Memory that both hosts map and both devices have registered: its host and device addresses in each session. */
export async function shareRegistered(
  one: Session,
  other: Session,
  byteLength = PAGE,
): Promise<{ one: { host: bigint; device: bigint }; other: { host: bigint; device: bigint } }> {
  const fd = await one.host("createShared", byteLength);
  const map = async (session: Session, own: number) => {
    const host = await session.host("mapShared", own, byteLength);
    return { host, device: await session.register(host, byteLength) };
  };
  return { one: await map(one, fd), other: await map(other, await passFd(one, fd, other)) };
}

/** Waits until the condition holds; gives whether it does. */
export async function eventually(condition: () => Promise<boolean>, timeoutMs = 10_000): Promise<boolean> {
  const end = performance.now() + timeoutMs;
  while (!await condition()) {
    if (performance.now() > end) return false;
    await sleep(5);
  }
  return true;
}
