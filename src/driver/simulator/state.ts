/**
 * The state of one simulated process: what libcuda keeps in its own memory. It lies in shared memory that no program
 * inherits, so that all threads (Workers) of the process find the same one, and other processes can look at what they
 * may know of it: its memory, whether it has a context, and the progress of its events.
 */
import { createHostView, type HostView, NativeBlock, toSize } from "../../../ffi/mod.ts";
import { NotSupportedError } from "../../errors.ts";
import { closeFd } from "../../os/fd.ts";
import { listNumbers, readLink } from "../../os/file.ts";
import { cString, libc, systemError } from "../../os/libc.ts";
import { createSharedMemory, mapMemory, openSharedMemoryHandle, sharedMemoryHandle } from "../../os/memory.ts";
import { CALLS } from "./calls.ts";
import { fillBytes, now, sleepMicroseconds, toNumber, unmap } from "./native.ts";
import { cellsOf, type Row, Table, type TableShape } from "./table.ts";

/**
 * Other versions of this module lay their state out differently, and do not see each other; nor do processes of different
 * simulated machines.
 */
const namePrefix = (machine: string): string => `cuda-ipc-simulator-1-${machine}-`;
const stateName = (machine: string, token: number): string => namePrefix(machine) + token.toString(16).padStart(12, "0");
const PAGE = 65536; // the largest page size of the platforms
const HEADER_BYTES = 256;

export const EVENT_SLOTS = 65536;
export const EVENT_SLOT_BYTES = 32;

/** The tables that other processes read come first. */
const PUBLIC_SHAPES = {
  devices: { capacity: 16, fields: ["retainCount", "busyUntil", "defaultStream", "lostCode"] },
  /** One row for each piece of backing memory that this process keeps alive. */
  memories: { capacity: 16384, fields: ["key", "device", "reservedBytes", "fd", "address", "mappedBytes", "isOrphan"] },
} as const satisfies Record<string, TableShape>;

const PRIVATE_SHAPES = {
  process: {
    capacity: 1,
    fields: ["initialized", "serial", "generation", "buffer", "pendingWork", "eventSlot", "faultsRead", "calls"],
  },
  streams: {
    capacity: 8192,
    fields: ["device", "flags", "priority", "firstWork", "lastWork", "endTime", "isDefault", "isRetired"],
  },
  work: {
    capacity: 65536,
    fields: ["kind", "a", "b", "c", "d", "e", "f", "g", "h", "durationMs", "enqueuedAt", "serial", "next"],
  },
  events: { capacity: EVENT_SLOTS, fields: ["device", "flags", "area", "slot", "token", "imported", "endTime", "recorded"] },
  /** Event slots of other processes, mapped here. */
  eventAreas: { capacity: 4096, fields: ["pid", "state", "address", "holders"] },
  pools: {
    capacity: 4096,
    fields: [
      "imported",
      "memory",
      "locationType",
      "locationId",
      "handleTypes",
      "maxBytes",
      "dataBytes",
      "key",
      "exported",
      "destroyed",
      "allocations",
      "firstGap",
      "reservedHigh",
      "usedBytes",
      "usedHigh",
      "releaseThreshold",
      "reuseFollowEvents",
      "reuseOpportunistic",
      "reuseInternal",
      "access",
    ],
  },
  ranges: {
    capacity: 131072,
    fields: [
      "kind",
      "start",
      "byteLength",
      "span",
      "device",
      "owner",
      "freeing",
      "generation",
      "buffer",
      "references",
      "access",
      "order",
    ],
  },
  physicals: {
    capacity: 16384,
    fields: ["memory", "byteLength", "locationType", "locationId", "handleTypes", "handles", "mappings"],
  },
  reservations: { capacity: 4096, fields: ["start", "byteLength"] },
  /** How often each driver function was called, and how often it blocked. */
  calls: { capacity: CALLS.length, fields: ["count", "blocked"] },
  faults: { capacity: 256, fields: ["call", "code", "from", "to", "workMs"] },
} as const satisfies Record<string, TableShape>;

const SHAPES = { ...PUBLIC_SHAPES, ...PRIVATE_SHAPES };
type Shapes = typeof SHAPES;
export type TableName = keyof Shapes;
type FieldOf<N extends TableName> = Shapes[N]["fields"][number];
export type RowOf<N extends TableName> = Row<FieldOf<N>>;
export type Tables<N extends TableName = TableName> = { readonly [K in N]: Table<FieldOf<K>> };

// ---- layout: header, public tables | event slots | private tables | the order of the ranges

const ORDER_CELLS = PRIVATE_SHAPES.ranges.capacity + 1;

function layOut(shapes: Record<string, TableShape>, first: number): { at: Record<string, number>; end: number } {
  const at: Record<string, number> = {};
  let end = first;
  for (const [name, shape] of Object.entries(shapes)) {
    at[name] = end;
    end += cellsOf(shape) * 8;
  }
  return { at, end };
}
const toPage = (bytes: number): number => Math.ceil(bytes / PAGE) * PAGE;

const PUBLIC = layOut(PUBLIC_SHAPES, HEADER_BYTES);
const PUBLIC_BYTES = toPage(PUBLIC.end);
const EVENTS_AT = PUBLIC_BYTES;
const EVENTS_BYTES = toPage(EVENT_SLOTS * EVENT_SLOT_BYTES);
const PRIVATE = layOut(PRIVATE_SHAPES, EVENTS_AT + EVENTS_BYTES);
const STATE_BYTES = toPage(PRIVATE.end + ORDER_CELLS * 8);

function openTables<N extends TableName>(buffer: ArrayBuffer, layout: Record<string, number>): Tables<N> {
  const kinds = Object.keys(SHAPES);
  const tables = Object.keys(layout).map((name) => {
    const shape: TableShape = SHAPES[name as TableName];
    const cells = new Float64Array(buffer, layout[name], cellsOf(shape));
    return [name, new Table(name, kinds.indexOf(name) + 1, shape, cells)];
  });
  return Object.fromEntries(tables);
}

// ---- the header: 32-bit words
const WORD_PID = 0;
const WORD_LOCK = 1; // the thread that holds the lock, 0 when none does

// ---- finding a state: its descriptor has one of a few numbers, so that one look at a process is enough
const FIRST_FD = 220;
const LAST_FD = 235;
const F_DUPFD_CLOEXEC = 1030;
const O_RDWR_CLOEXEC = 0o2000002;

/** The descriptor of a process's state and its token, which no other process has had. */
function findState(
  machine: string,
  pid: number | "self",
  accept: (fd: number) => boolean = () => true,
): { fd: number; token: number } | undefined {
  const start = `/memfd:${namePrefix(machine)}`;
  for (let fd = FIRST_FD; fd <= LAST_FD; fd++) {
    const link = readLink(`/proc/${pid}/fd/${fd}`);
    if (link === undefined) return undefined;
    const token = link.startsWith(start) ? link.slice(start.length).match(/^[0-9a-f]{12}(?= \(deleted\)$)/) : null;
    if (token !== null && accept(fd)) return { fd, token: parseInt(token[0], 16) };
  }
}

function openStateOf(machine: string, pid: number, token: number): number | undefined {
  const found = findState(machine, pid);
  if (found?.token !== token) return undefined;
  const fd = libc().open(cString(`/proc/${pid}/fd/${found.fd}`), O_RDWR_CLOEXEC, 0);
  return fd < 0 ? undefined : fd;
}

/** How a process names its state to others. */
export interface StateName {
  readonly pid: number;
  readonly token: number;
  /** Its pid namespace, where the pid means something. */
  readonly namespace: number;
  /** What other pid namespaces open it by. */
  readonly memory: Uint8Array;
}

/** Opens a state that cannot be found in /proc. */
function openStateByHandle(machine: string, { token, memory }: StateName): number | undefined {
  const fd = openSharedMemoryHandle(memory);
  if (fd === undefined) return undefined;
  if (readLink(`/proc/self/fd/${fd}`) === `/memfd:${stateName(machine, token)} (deleted)`) return fd;
  closeFd(fd);
}

function readPid(fd: number): number {
  const block = new NativeBlock(8);
  libc().pread(fd, block.addressAt(0), toSize(8), toSize(0));
  const pid = block.readI32(4 * WORD_PID);
  block.free();
  return pid;
}

const LOCK_SPINS = 200;
const LOCK_SLEEP_US = 50;
const LOCK_CHECK_MS = 20;

export class ProcessState {
  readonly machine: string;
  readonly pid: number;
  /** A random number below 2^48 that tells this process from a later one with the same pid. */
  readonly token: number;
  /** The pid namespace: others do not see this process under its pid. */
  readonly namespace: number = Number(readLink("/proc/self/ns/pid")?.match(/\d+/)?.[0] ?? 0);
  /** What other pid namespaces open this state by; empty where the system has no such names. */
  readonly handle: Uint8Array;
  readonly tables: Tables;
  /** Range ids sorted by address; the first cell is their number. */
  readonly order: Float64Array;
  /** This process's event slots: an address, because other processes have theirs at another. */
  readonly eventsAddress: number;
  readonly process: RowOf<"process">;
  readonly #words: Int32Array;
  readonly #thread: number = libc().gettid();

  private constructor(machine: string, fd: number, token: number) {
    const address = mapMemory(fd, STATE_BYTES);
    const { buffer } = createHostView(address, STATE_BYTES).bytes;
    this.machine = machine;
    this.token = token;
    this.handle = sharedMemoryHandle(fd) ?? new Uint8Array();
    this.#words = new Int32Array(buffer, 0, HEADER_BYTES / 4);
    this.pid = libc().getpid();
    this.tables = openTables(buffer, { ...PUBLIC.at, ...PRIVATE.at });
    this.order = new Float64Array(buffer, PRIVATE.end, ORDER_CELLS);
    this.eventsAddress = toNumber(address) + EVENTS_AT;
    this.process = this.tables.process.at(1);
  }

  /** The state of this process: another thread's, or a new one. Threads that start at once agree on one. */
  static open(machine: string): ProcessState {
    const pid = libc().getpid();
    const isOurs = (fd: number) => readPid(fd) === pid;
    const known = findState(machine, "self", isOurs);
    if (known !== undefined) return new ProcessState(machine, known.fd, known.token);

    const token = parseInt(crypto.randomUUID().replaceAll("-", "").slice(0, 12), 16);
    const made = createSharedMemory(stateName(machine, token), STATE_BYTES);
    try {
      const state = new ProcessState(machine, made, token);
      state.#words[WORD_PID] = pid;
      state.tables.process.create({ serial: 1, generation: 1, buffer: 1 });
      for (let index = 0; index < PUBLIC_SHAPES.devices.capacity; index++) state.tables.devices.create({});
      for (let index = 0; index < CALLS.length; index++) state.tables.calls.create({});
      const fd = claimFd(made);
      // The lowest descriptor wins. What a slower thread made is left mapped: it is empty.
      const winner = findState(machine, "self", isOurs);
      if (winner === undefined || winner.fd === fd) return state;
      closeFd(fd);
      return new ProcessState(machine, winner.fd, winner.token);
    } finally {
      closeFd(made);
    }
  }

  // ---- the lock: one for the whole process; a thread that died with it (a terminated Worker) does not keep it

  lock(): void {
    const words = this.#words;
    for (let spins = 0, checked = 0;; spins++) {
      const holder = Atomics.compareExchange(words, WORD_LOCK, 0, this.#thread);
      if (holder === 0) return;
      if (spins < LOCK_SPINS) continue;
      if (holder === this.#thread || now() - checked > LOCK_CHECK_MS) {
        checked = now();
        const isGone = holder === this.#thread || readLink(`/proc/self/task/${holder}/cwd`) === undefined;
        if (isGone && Atomics.compareExchange(words, WORD_LOCK, holder, this.#thread) === holder) return;
      }
      sleepMicroseconds(LOCK_SLEEP_US);
    }
  }

  unlock(): void {
    Atomics.store(this.#words, WORD_LOCK, 0);
  }

  /** Makes every event slot free, and unknown to whoever has its event open. */
  releaseEventSlots(): void {
    fillBytes(this.eventsAddress, 0, EVENTS_BYTES);
  }

  // ---- other processes

  /** Whether that very process still runs. */
  isRunning(pid: number, token: number): boolean {
    return findState(this.machine, pid)?.token === token;
  }

  /** Maps the event slots of another process: an address, or undefined when that process is gone or not reachable. */
  mapEventsOf(name: StateName): number | undefined {
    const fd = name.namespace === this.namespace
      ? openStateOf(this.machine, name.pid, name.token)
      : openStateByHandle(this.machine, name);
    if (fd === undefined) return undefined;
    try {
      return toNumber(mapMemory(fd, EVENTS_BYTES, EVENTS_AT));
    } finally {
      closeFd(fd);
    }
  }

  unmapEvents(address: number): void {
    unmap(address, EVENTS_BYTES);
  }
}

function claimFd(fd: number): number {
  const claimed = libc().fcntl(fd, F_DUPFD_CLOEXEC, FIRST_FD);
  if (claimed < 0) throw systemError("fcntl", `Cannot keep the simulator's state in file descriptor ${FIRST_FD}`);
  if (claimed <= LAST_FD) return claimed;
  closeFd(claimed);
  throw new NotSupportedError(
    `Cannot open the simulator: file descriptors ${FIRST_FD} to ${LAST_FD} are taken. Open it before so many others`,
  );
}

/** What one process may know of another: its devices and its memory. */
export interface ForeignState {
  readonly pid: number;
  readonly token: number;
  readonly tables: Tables<keyof typeof PUBLIC_SHAPES>;
}

interface MappedForeignState extends ForeignState {
  readonly address: number;
  readonly view: HostView;
}

/** A process that is new needs longer than this to take memory; those that are known are seen as they are now. */
const LIST_AGE_MS = 20;

/** The other simulated processes of this machine that this user may look at, as they are now. */
export class ForeignStates {
  readonly #self: ProcessState;
  readonly #mapped = new Map<number, MappedForeignState>();
  #listedAt = -Infinity;

  constructor(self: ProcessState) {
    this.#self = self;
  }

  /** Looks at every process of the machine, unless the last look was a moment ago and `mayBeOld`. */
  list(mayBeOld = false): ForeignState[] {
    if (mayBeOld && now() - this.#listedAt < LIST_AGE_MS) return [...this.#mapped.values()];
    this.#listedAt = now();
    const alive = new Set<number>();
    for (const pid of listNumbers("/proc")) {
      if (pid === this.#self.pid) continue;
      const found = findState(this.#self.machine, pid);
      if (found === undefined) continue;
      if (this.#mapped.has(found.token) || this.#map(pid, found.token)) alive.add(found.token);
    }
    for (const [token, state] of this.#mapped) if (!alive.has(token)) this.#unmap(state);
    return [...this.#mapped.values()];
  }

  #map(pid: number, token: number): boolean {
    const fd = openStateOf(this.#self.machine, pid, token);
    if (fd === undefined) return false;
    try {
      const address = mapMemory(fd, PUBLIC_BYTES);
      const view = createHostView(address, PUBLIC_BYTES);
      const tables: ForeignState["tables"] = openTables(view.bytes.buffer, PUBLIC.at);
      this.#mapped.set(token, { pid, token, tables, address: toNumber(address), view });
      return true;
    } finally {
      closeFd(fd);
    }
  }

  #unmap(state: MappedForeignState): void {
    this.#mapped.delete(state.token);
    state.view.detach();
    unmap(state.address, PUBLIC_BYTES);
  }
}
