/**
 * What a process of the parity suite can do: every driver call, and what the host does around them (memory, words that two
 * processes share, descriptors). Commands are plain values, so that a test gives them to its own process, to another one,
 * or to a thread alike: addresses, handles and 64-bit values are bigints, sizes are numbers.
 */
import { readdirSync } from "node:fs";
import process from "node:process";
import { setImmediate } from "node:timers";
import {
  type Address,
  addressFromBigInt,
  addressToBigInt,
  createHostView,
  NativeBlock,
  openLibrary,
  type Size,
  toSize,
} from "../../ffi/mod.ts";
import type { CudaDriver, Memcpy2D } from "../../src/driver/driver.ts";
import { libcudaCandidates } from "../../src/driver/native.ts";
import { chosenDriver } from "../../src/driver/mod.ts";
import { closeFd, type FdInfo, inspectFd, isCloseOnExec } from "../../src/os/fd.ts";
import { libc } from "../../src/os/libc.ts";
import { createSharedMemory, mapMemory } from "../../src/os/memory.ts";
import { keepBusy, prepareBusy } from "./work.ts";

export type Method = Exclude<keyof CudaDriver, "kind" | "out">;

/** What a call takes, in plain values. */
type Plain<T> = T extends Address ? bigint : T extends Size ? number : T extends Memcpy2D ? PlainMemcpy2D : T;
export type PlainMemcpy2D = { [K in keyof Memcpy2D]: NonNullable<Memcpy2D[K]> extends Address ? bigint : number };
export type PlainArguments<M extends Method> = CudaDriver[M] extends (...args: infer A) => number
  ? { [K in keyof A]: Plain<A[K]> }
  : never;

/** For each argument: a for an address or a handle, s for a size, o for an object with addresses, - for what is passed on as it is. */
const ARGUMENTS: Readonly<Record<Method, string>> = {
  init: "-",
  driverGetVersion: "",
  deviceGetCount: "",
  deviceGet: "-",
  deviceGetName: "-",
  deviceGetUuid: "-",
  deviceTotalMem: "-",
  deviceGetAttribute: "--",
  deviceCanAccessPeer: "--",
  devicePrimaryCtxRetain: "-",
  devicePrimaryCtxRelease: "-",
  ctxSetCurrent: "a",
  ctxGetCurrent: "",
  ctxGetStreamPriorityRange: "",
  memGetInfo: "",
  streamCreateWithPriority: "--",
  streamDestroy: "a",
  streamSynchronize: "a",
  streamQuery: "a",
  streamWaitEvent: "aa-",
  streamWriteValue64: "aa--",
  streamWaitValue64: "aa--",
  eventCreate: "-",
  eventDestroy: "a",
  eventRecord: "aa",
  eventQuery: "a",
  eventSynchronize: "a",
  eventElapsedTime: "aa",
  ipcGetEventHandle: "a",
  ipcOpenEventHandle: "-",
  memPoolCreate: "-",
  memPoolDestroy: "a",
  memPoolTrimTo: "as",
  memPoolSetAttribute: "a--",
  memPoolGetAttribute: "a-",
  memPoolSetAccess: "a-",
  memPoolGetAccess: "a-",
  memAllocFromPoolAsync: "saa",
  memFreeAsync: "aa",
  memPoolExportToShareableHandle: "a-",
  memPoolImportFromShareableHandle: "a-",
  memPoolExportPointer: "a",
  memPoolImportPointer: "a-",
  memAlloc: "s",
  memFree: "a",
  memGetAddressRange: "a",
  pointerGetAttribute: "-a",
  memHostAlloc: "s-",
  memFreeHost: "a",
  memHostRegister: "as-",
  memHostUnregister: "a",
  memHostGetDevicePointer: "a",
  memcpyHtoDAsync: "aasa",
  memcpyDtoHAsync: "aasa",
  memcpyDtoDAsync: "aasa",
  memcpyAsync: "aasa",
  memcpyPeerAsync: "aaaasa",
  memcpy2DAsync: "oa",
  memsetD8Async: "a-sa",
  memsetD16Async: "a-sa",
  memsetD32Async: "a-sa",
  memsetD2D8Async: "as-ssa",
  memsetD2D16Async: "as-ssa",
  memsetD2D32Async: "as-ssa",
  memCreate: "s-",
  memRelease: "a",
  memRetainAllocationHandle: "a",
  memAddressReserve: "ssa",
  memAddressFree: "as",
  memMap: "assa",
  memUnmap: "as",
  memSetAccess: "as-",
  memGetAccess: "-a",
  memExportToShareableHandle: "a-",
  memImportFromShareableHandle: "a-",
  memGetAllocationGranularity: "--",
  ipcGetMemHandle: "a",
  ipcOpenMemHandle: "--",
  ipcCloseMemHandle: "a",
};

function convert(kind: string, value: unknown): unknown {
  if (kind === "a" && typeof value === "bigint") return addressFromBigInt(value);
  if (kind === "s") return toSize(value as number);
  if (kind === "o") {
    return Object.fromEntries(Object.entries(value as object).map(([name, field]) => [name, convert("a", field)]));
  }
  return value;
}

const OUT_BYTES = 128;

/** What a driver call answered. */
export interface CallAnswer {
  readonly code: number;
  readonly out: Uint8Array;
  /** How long the call kept its thread. */
  readonly ms: number;
}

export class Executor {
  readonly driver: CudaDriver;

  constructor() {
    this.driver = chosenDriver("run the parity suite", undefined);
  }

  call(method: Method, args: readonly unknown[]): CallAnswer {
    const { driver } = this;
    const kinds = ARGUMENTS[method];
    const values = args.map((value, index) => convert(kinds[index], value));
    const start = performance.now();
    const code = (driver[method] as (...args: unknown[]) => number).apply(driver, values);
    const ms = performance.now() - start;
    return { code, out: driver.out.bytes.slice(0, OUT_BYTES), ms };
  }

  /** What the host does. */
  readonly host = {
    /** Zeroed memory that the driver does not know. */
    allocate: (byteLength: number): bigint => addressToBigInt(new NativeBlock(byteLength).addressAt(0)),
    read: (address: bigint, byteLength: number): Uint8Array =>
      createHostView(addressFromBigInt(address), byteLength).bytes.slice(),
    write: (address: bigint, bytes: Uint8Array): void =>
      createHostView(addressFromBigInt(address), bytes.byteLength).bytes.set(bytes),

    createShared: (byteLength: number): number => createSharedMemory("cuda-ipc-parity", byteLength),
    mapShared: (fd: number, byteLength: number): bigint => addressToBigInt(mapMemory(fd, byteLength)),
    loadWord: (address: bigint): bigint => Atomics.load(wordAt(address), 0),
    storeWord: (address: bigint, value: bigint): void => void Atomics.store(wordAt(address), 0, value),
    /** For each value from 1 to `rounds`: waits until the first word is there, then answers in the second by a plain store. */
    answerWords: async (first: bigint, second: bigint, rounds: number): Promise<void> => {
      for (let value = 1n; value <= rounds; value++) {
        await reached(first, value);
        Atomics.store(wordAt(second), 0, value);
      }
    },
    /** The other side of answerWords: the stream writes the word at the device's address. */
    askByStream: async (stream: bigint, word: bigint, answer: bigint, rounds: number): Promise<number> => {
      for (let value = 1n; value <= rounds; value++) {
        const code = this.driver.streamWriteValue64(addressFromBigInt(stream), addressFromBigInt(word), value, 0);
        if (code !== 0) return code;
        await reached(answer, value);
      }
      return 0;
    },

    /** A socket that is not connected. */
    openSocket: (): number => libc().socket(AF_UNIX, SOCK_STREAM, 0),
    closeFd,
    inspectFd: (fd: number): FdInfo => inspectFd(fd),
    isCloseOnExec,
    countFds: (): number => readdirSync("/proc/self/fd").length,

    /** Lets a SIGSEGV end the process, as it does a C program's, in place of a report by the runtime. */
    resetSegvHandler: (): void => void libc().signal(SIGSEGV, addressFromBigInt(0n)),

    /** Makes what keepBusy needs, before anything is measured. */
    prepareBusy: (stream: bigint): void => prepareBusy(this.driver, addressFromBigInt(stream)),
    /** Queues about so much work on the stream. */
    keepBusy: (stream: bigint, ms: number): void => keepBusy(this.driver, addressFromBigInt(stream), ms),

    /** Imports and frees one pointer again and again. */
    churnImports: (pool: bigint, data: Uint8Array, stream: bigint, rounds: number): number => {
      const { driver } = this;
      const [nativePool, nativeStream] = [addressFromBigInt(pool), addressFromBigInt(stream)];
      for (let round = 0; round < rounds; round++) {
        const code = driver.memPoolImportPointer(nativePool, data);
        if (code !== 0) return code;
        const freed = driver.memFreeAsync(driver.out.readAddress(0), nativeStream);
        if (freed !== 0) return freed;
        if (round % 512 === 0) driver.streamSynchronize(nativeStream);
      }
      return driver.streamSynchronize(nativeStream);
    },

    /**
     * One side of a ping-pong by fences without the host: for each round a fill of `buffer`, a write of the round's number to
     * `own`, and a wait for it at `other`; the side that does not start waits first.
     */
    enqueueFenceRounds: (
      stream: bigint,
      buffer: bigint,
      own: bigint,
      other: bigint,
      rounds: number,
      starts: boolean,
    ): number => {
      const { driver } = this;
      const [s, b, mine, theirs] = [stream, buffer, own, other].map(addressFromBigInt);
      const page = toSize(4096);
      for (let round = 1; round <= rounds; round++) {
        const steps = [
          () => driver.memsetD8Async(b, round & 0xff, page, s),
          () => driver.streamWriteValue64(s, mine, BigInt(round), 0),
        ];
        const wait = () => driver.streamWaitValue64(s, theirs, BigInt(round), 0);
        for (const step of starts ? [...steps, wait] : [wait, ...steps]) {
          const code = step();
          if (code !== 0) return code;
        }
      }
      return 0;
    },
    /** The other half of a ping-pong in which each host waits for the other stream's word, then enqueues its own. */
    answerByStream: async (
      stream: bigint,
      buffer: bigint,
      own: bigint,
      other: bigint,
      rounds: number,
      starts: boolean,
    ): Promise<number> => {
      const { driver } = this;
      const [s, b, mine] = [stream, buffer, own].map(addressFromBigInt);
      for (let round = 1; round <= rounds; round++) {
        if (!starts) await reached(other, BigInt(round));
        const code = driver.memsetD8Async(b, round & 0xff, toSize(4096), s) ||
          driver.streamWriteValue64(s, mine, BigInt(round), 0);
        if (code !== 0) return code;
        if (starts) await reached(other, BigInt(round));
      }
      return driver.streamSynchronize(s);
    },

    /** Calls a function of libcuda that the driver has no method for; each argument takes a register. */
    callByName: (name: string, ...args: bigint[]): number => {
      const signature = { prototype: `CUresult ${name}(…)`, args: args.map(() => "u64" as const), result: "i32" } as const;
      const library = openLibrary("the CUDA driver", libcudaCandidates(process.env.CUDA_IPC_LIBCUDA), { [name]: signature });
      return library[name](...args);
    },
  };
}

const SIGSEGV = 11;
const AF_UNIX = 1;
const SOCK_STREAM = 1;

export type Host = Executor["host"];

const words = new Map<bigint, BigInt64Array>();
function wordAt(address: bigint): BigInt64Array {
  let word = words.get(address);
  if (word === undefined) {
    word = new BigInt64Array(createHostView(addressFromBigInt(address), 8).bytes.buffer);
    words.set(address, word);
  }
  return word;
}

/** Waits for a word of the shared memory. The event loop turns, because simulated devices need it. */
export async function reached(address: bigint, value: bigint, timeoutMs = 20_000): Promise<void> {
  const word = wordAt(address);
  const end = performance.now() + timeoutMs;
  for (let spins = 0; Atomics.load(word, 0) < value; spins++) {
    if (spins % 64 === 63) {
      await new Promise<void>((resolve) => setImmediate(resolve));
      if (performance.now() > end) throw new Error(`the word is still ${Atomics.load(word, 0)}, expected ${value}`);
    }
  }
}
