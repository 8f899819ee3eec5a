/**
 * Memory that all threads (Workers) of this process share, without a name that another process could find. Each thread has
 * its own copy of this module, but there is one libcuda: what must be counted once for both lies here.
 *
 * It is mapped at one of a few fixed addresses, which the first thread to come takes; the others find it in the process's own
 * list of mappings. A program that this process starts inherits nothing of it.
 */
import process from "node:process";
import { addressFromBigInt, addressToBigInt, createHostView, toSize } from "../../ffi/mod.ts";
import { NotSupportedError } from "../errors.ts";
import { closeFd } from "../os/fd.ts";
import { readTextFile } from "../os/file.ts";
import { libc } from "../os/libc.ts";
import { createSharedMemory } from "../os/memory.ts";

const NAME = "cuda-ipc-process-1";
const BYTES = 4 * 1024 * 1024;
/**
 * Where programs have nothing. The driver reserves hundreds of gigabytes of addresses above 8 GiB (the more, the more memory
 * the machine has), so most lie far above; the last are for platforms whose addresses have 39 bits only.
 */
const ADDRESSES: readonly bigint[] = [0x2000_0000_0000n, 0x3000_0000_0000n, 0x5000_0000_0000n, 0x7c_0000_0000n, 0x1_4000_0000n]
  .flatMap((region) => [0n, 1n, 2n, 3n].map((index) => region + 0xda0_0000n + index * 0x100_0000n));
const PROT_READ_WRITE = 3;
const MAP_SHARED = 1;
const MAP_FIXED_NOREPLACE = 0x100000;

const LOCK = 0; // a 64-bit word
const PID = 1;
const HEADER_WORDS = 8;
const SPINS = 200;
const SLEEP_US = 50;

const CELLS = BYTES / 8 - HEADER_WORDS;
/** How many numbers the import registry has. */
export const IMPORT_CELLS: number = CELLS / 2;
/** How many numbers there are for what threads leave behind. */
export const ESTATE_CELLS: number = CELLS / 2;

/** A thread of this process: its number is used again, its start time tells. */
export interface ThreadIdentity {
  readonly tid: number;
  readonly start: number;
}

class ProcessMemory {
  /** Of the import registry. Zero at first; read and written under the lock. */
  readonly imports: Float64Array<ArrayBuffer>;
  /** Of what threads leave behind, likewise. */
  readonly estate: Float64Array<ArrayBuffer>;
  /** This one. */
  readonly thread: ThreadIdentity;
  readonly #words: BigInt64Array<ArrayBuffer>;
  readonly #holder: bigint;

  constructor(buffer: ArrayBuffer, thread: ThreadIdentity) {
    this.imports = new Float64Array(buffer, 8 * HEADER_WORDS, IMPORT_CELLS);
    this.estate = new Float64Array(buffer, 8 * (HEADER_WORDS + IMPORT_CELLS), ESTATE_CELLS);
    this.#words = new BigInt64Array(buffer, 0, HEADER_WORDS);
    this.thread = thread;
    this.#holder = holderOf(thread);
  }

  /** Runs something while no other thread does. A lock whose thread has ended (a terminated Worker) is taken over. */
  locked<T>(body: () => T): T {
    this.#lock();
    try {
      return body();
    } finally {
      Atomics.store(this.#words, LOCK, 0n);
    }
  }

  #lock(): void {
    for (let spins = 0;; spins++) {
      const holder = Atomics.compareExchange(this.#words, LOCK, 0n, this.#holder);
      if (holder === 0n) return;
      if (spins < SPINS) continue;
      if (!this.isRunning(threadOf(holder)) && Atomics.compareExchange(this.#words, LOCK, holder, this.#holder) === holder) {
        return;
      }
      libc().usleep(SLEEP_US);
    }
  }

  /** Whether that very thread still runs. */
  isRunning({ tid, start }: ThreadIdentity): boolean {
    return (startOf(tid) ?? 0) === start;
  }

  /** Whether it is this process's own: a forked child has its parent's. */
  claimPid(pid: number): boolean {
    const holder = Atomics.compareExchange(this.#words, PID, 0n, BigInt(pid));
    return holder === 0n || holder === BigInt(pid);
  }
}

// ---- threads, as the lock's word has them

const START_BITS = 40n;

function holderOf({ tid, start }: ThreadIdentity): bigint {
  return (BigInt(tid) << START_BITS) | BigInt(start);
}

function threadOf(holder: bigint): ThreadIdentity {
  return { tid: Number(holder >> START_BITS), start: Number(holder & ((1n << START_BITS) - 1n)) };
}

/**
 * When a thread of this process was started, in clock ticks since boot: below 2^40 for 300 years. Undefined when it has ended;
 * without /proc all threads count as running.
 */
function startOf(tid: number): number | undefined {
  const stat = readTextFile(`/proc/self/task/${tid}/stat`);
  return stat === undefined ? undefined : Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[22 - 3]);
}

// ---- finding it

let opened: ProcessMemory | undefined;

/** This process's memory. */
export function processMemory(): ProcessMemory {
  return opened ??= open();
}

function open(): ProcessMemory {
  if (process.platform !== "linux") return new ProcessMemory(new ArrayBuffer(BYTES), { tid: 1, start: 0 }); // this thread's own
  const tid = libc().gettid();
  const thread = { tid, start: startOf(tid) ?? 0 };
  const fd = createSharedMemory(NAME, BYTES);
  try {
    // A thread that came first may have found an address taken which is free now
    for (const address of [...ADDRESSES.filter(isOurs), ...ADDRESSES]) {
      const flags = MAP_SHARED | MAP_FIXED_NOREPLACE;
      const mapped = libc().mmap(addressFromBigInt(address), toSize(BYTES), PROT_READ_WRITE, flags, fd, toSize(0));
      if (addressToBigInt(mapped) !== address && !isOurs(address)) continue;
      const memory = new ProcessMemory(createHostView(addressFromBigInt(address), BYTES).bytes.buffer, thread);
      if (memory.claimPid(libc().getpid())) return memory;
    }
  } finally {
    closeFd(fd);
  }
  throw new NotSupportedError("Cannot count imports: all addresses for the memory that the threads of a process share are taken");
}

/** Whether another thread has mapped it there. Asked of the system, since a wrong guess would be a read of foreign memory. */
function isOurs(address: bigint): boolean {
  const start = `${address.toString(16)}-${(address + BigInt(BYTES)).toString(16)} rw-s `;
  return (readTextFile("/proc/self/maps") ?? "").split("\n").some((line) =>
    line.startsWith(start) && line.includes(`/memfd:${NAME} `)
  );
}
