/** Leases: what another process holds of ours, and when it has ended. */
import { clearInterval, setInterval } from "node:timers";
import { InvalidArgumentError, NotSupportedError } from "../errors.ts";
import type { Allocation } from "../memory/allocation.ts";
import { nativeStream } from "../native_stream.ts";
import { watch } from "../share/fence_watch.ts";
import { hasStreamMemoryOperations } from "../share/fence_word.ts";
import type { CudaStream, StreamDependency } from "../stream.ts";
import type { PeerProcess } from "./peer_process.ts";
import type { Slot } from "./words.ts";

/** How a lease has ended. */
export type LeaseOutcome = "released" | "peer-gone";

/** One process's right to use one buffer: ends when it has written its word, or when it has exited. */
export class Claim {
  readonly slot: Slot;
  readonly process: PeerProcess;
  readonly #onEnd: (outcome: LeaseOutcome) => void;
  #stopWatching: (() => void) | undefined;
  #forgetExit: () => void = () => {};
  #isEnded = false;

  constructor(slot: Slot, process: PeerProcess, onEnd: (outcome: LeaseOutcome) => void) {
    this.slot = slot;
    this.process = process;
    this.#onEnd = onEnd;
    slot.word.block.hold();
    process.hold();
    this.#forgetExit = process.onExit(() => this.#onExit());
  }

  get isEnded(): boolean {
    return this.#isEnded;
  }

  /** The holder has said that it is done, or can say nothing any more: its word tells when its work is done too. */
  watchWord(): void {
    if (this.#isEnded || this.#stopWatching !== undefined) return;
    const { word, value } = this.slot;
    this.#stopWatching = watch(() => word.load() >= value, () => this.#end("released"));
  }

  #onExit(): void {
    const { word, value } = this.slot;
    if (word.load() >= value) return this.#end("released");
    word.break(); // frees our own streams that wait for the lease
    this.#end("peer-gone");
  }

  #end(outcome: LeaseOutcome): void {
    if (this.#isEnded) return;
    this.#isEnded = true;
    this.#stopWatching?.();
    this.#forgetExit();
    this.#onEnd(outcome);
    this.process.release();
    this.slot.word.block.release();
  }

  /** Ends it as if it had never been: the message was not sent. */
  cancel(): void {
    this.#end("released");
  }
}

/** One buffer of one message: what we keep alive until every process that holds it is done. */
export class Hold {
  readonly allocation: Allocation;
  readonly #claims = new Set<Claim>();
  readonly #onEnd: () => void;
  #outcome: LeaseOutcome = "released";
  #isEnded = false;

  constructor(allocation: Allocation, onEnd: () => void) {
    this.allocation = allocation;
    this.#onEnd = onEnd;
    allocation.lease();
  }

  get isEnded(): boolean {
    return this.#isEnded;
  }

  /** Meaningful once it has ended. */
  get outcome(): LeaseOutcome {
    return this.#outcome;
  }

  /** The processes that still hold it. */
  get claims(): readonly Claim[] {
    return [...this.#claims];
  }

  /** Adds a process that holds the buffer. `onEnd` is called when it does no more. */
  add(slot: Slot, process: PeerProcess, onEnd: (outcome: LeaseOutcome) => void): Claim {
    let claim: Claim | undefined = undefined;
    let endedAtOnce: LeaseOutcome | undefined;
    const ended = (outcome: LeaseOutcome) => {
      if (claim === undefined) {
        endedAtOnce = outcome;
        return;
      }
      this.#claims.delete(claim);
      if (outcome === "peer-gone") this.#outcome = outcome;
      onEnd(outcome);
      if (this.#claims.size === 0) this.#end();
    };
    claim = new Claim(slot, process, ended);
    this.#claims.add(claim);
    if (endedAtOnce !== undefined) ended(endedAtOnce);
    return claim;
  }

  #end(): void {
    if (this.#isEnded) return;
    this.#isEnded = true;
    this.allocation.endLease();
    this.#onEnd();
  }
}

const TOKEN: unique symbol = Symbol("Lease");
let make: (messageId: number, onEnd: () => void) => Lease;
let addHold: (lease: Lease, allocation: Allocation) => Hold;
let settleEmpty: (lease: Lease) => void;

/**
 * What one `channel.send` lets another process use. While it lasts, the memory of the buffers in it stays: `free()` closes
 * them for you, and the driver gets them back after the lease. A lease without buffers is released when it is sent.
 *
 * @example
 * ```ts ignore
 * const lease = await channel.send({ buffers: { frame } }, { after: stream });
 * frame.free(); // given back when the peer is done
 * await lease.released;
 * console.log(lease.outcome);
 * ```
 */
export class Lease implements StreamDependency {
  readonly #holds: Hold[] = [];
  readonly #messageId: number;
  readonly #onEnd: () => void;
  readonly #settled: Promise<void>;
  #settle!: () => void;
  #outcome: LeaseOutcome | undefined;

  /** Not for users: see `channel.send`. */
  private constructor(token: typeof TOKEN, messageId: number, onEnd: () => void) {
    if (token !== TOKEN) throw new InvalidArgumentError("Cannot construct a Lease: use channel.send()");
    this.#messageId = messageId;
    this.#onEnd = onEnd;
    this.#settled = new Promise((resolve) => this.#settle = resolve);
  }

  static {
    make = (messageId, onEnd) => new Lease(TOKEN, messageId, onEnd);
    addHold = (lease, allocation) => {
      const hold = new Hold(allocation, () => lease.#onHoldEnd());
      lease.#holds.push(hold);
      return hold;
    };
    settleEmpty = (lease) => {
      if (lease.#holds.length === 0) lease.#end();
    };
  }

  #onHoldEnd(): void {
    if (this.#holds.every((hold) => hold.isEnded)) this.#end();
  }

  #end(): void {
    if (this.#outcome !== undefined) return;
    this.#outcome = this.#holds.some(({ outcome }) => outcome === "peer-gone") ? "peer-gone" : "released";
    this.#settle();
    this.#onEnd();
  }

  /** Whether it has ended. */
  get isReleased(): boolean {
    return this.#outcome !== undefined;
  }

  /**
   * How it has ended: `"released"`, also by a peer that could not open it; or `"peer-gone"` when a process that held it has
   * exited. Undefined while it lasts.
   */
  get outcome(): LeaseOutcome | undefined {
    return this.#outcome;
  }

  /** Bytes of memory that it still holds. */
  get byteLength(): number {
    return this.#holds.reduce((sum, hold) => sum + (hold.isEnded ? 0 : hold.allocation.byteLength), 0);
  }

  /**
   * Settles when every process that holds it has released it and its GPU work is done, or that process has exited; never
   * rejects. A consumer whose work hangs keeps its lease until it exits: nothing times out by itself. Asking for it keeps
   * this process alive until then.
   */
  get released(): Promise<void> {
    if (this.#outcome === undefined) {
      const alive = setInterval(() => {}, 0x7fff_ffff);
      this.#settled.then(() => clearInterval(alive));
    }
    return this.#settled;
  }

  /** Makes later work of `stream` wait until the lease has ended. `stream.wait(lease)` calls it. */
  orderBefore(stream: CudaStream): void {
    const action = "make a stream wait for a lease";
    const native = nativeStream(stream, action);
    const claims = this.#holds.flatMap((hold) => hold.claims).filter(({ slot: { word, value } }) => word.load() < value);
    if (claims.length > 0 && !hasStreamMemoryOperations(native.context)) {
      throw new NotSupportedError(
        `Cannot ${action}: ${native.context} has no 64-bit stream memory operations. Await lease.released first`,
      );
    }
    for (const { slot: { word, value } } of claims) word.waitBefore(native, value);
  }

  /** A short name for messages. */
  toString(): string {
    return `Lease ${this.#messageId}`;
  }
}

/** `onEnd` is called once. */
export function newLease(messageId: number, onEnd: () => void): Lease {
  return make(messageId, onEnd);
}

/** Keeps one more allocation for the lease. */
export function holdFor(lease: Lease, allocation: Allocation): Hold {
  return addHold(lease, allocation);
}

/** The message was sent: a lease without buffers has ended. */
export function leaseSent(lease: Lease): void {
  settleEmpty(lease);
}
