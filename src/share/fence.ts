/** Fences: 64-bit timelines that several processes share, ordered on the GPU and readable by every host. */
import { checkOptions, checkSignal, invalid } from "../arguments.ts";
import { Closable, type WaitOptions } from "../closable.ts";
import { Completion } from "../completion.ts";
import { contextOf } from "../context.ts";
import type { Device } from "../device.ts";
import { ClosedError, InvalidArgumentError, NotSupportedError, PeerGoneError } from "../errors.ts";
import { type NativeStream, nativeStream } from "../native_stream.ts";
import { ownIdentity } from "../os/process.ts";
import { ProcessWatch } from "../os/process_watch.ts";
import { pollUntil } from "../polling.ts";
import type { CudaStream, StreamFence } from "../stream.ts";
import type { ProcessIdentity } from "../wire/identity.ts";
import { FenceBlock } from "./fence_block.ts";
import { watch } from "./fence_watch.ts";
import { BROKEN, FenceWord, hasStreamMemoryOperations } from "./fence_word.ts";

/** How to make a fence. */
export interface SharedFenceOptions {
  /** The value that it begins with. Default: 0n. */
  readonly initial?: bigint;
}

/** What a fence is, for whoever carries it to another process. */
export interface FenceParts {
  readonly word: FenceWord;
  readonly writer: ProcessIdentity;
  readonly device: Device | null;
}

const BLOCK_BYTES = 4096;
const TOKEN: unique symbol = Symbol("SharedFence");

/** Where the next fence of this thread goes. Its words are given out once: whoever got one fence sees the block. */
let current: { readonly block: FenceBlock; next: number; users: number } | undefined;

/** A word, and what gives it back. */
function takeWord(): { word: FenceWord; giveBack: () => void } {
  if (current === undefined || current.next === current.block.length) {
    current?.block.release();
    current = { block: FenceBlock.create(BLOCK_BYTES), next: 0, users: 0 };
  }
  const place = current;
  place.users++;
  place.block.hold();
  return {
    word: new FenceWord(place.block, place.next++),
    giveBack() {
      place.block.release();
      if (--place.users === 0 && current === place) {
        current = undefined;
        place.block.release();
      }
    },
  };
}

/** A process that writes words, watched as long as somebody holds it. */
export interface WordWriter {
  hold(): void;
  release(): void;
  /** Never waits. */
  hasExited(): boolean;
}

/** Another process that is known by its identity. */
class Writer implements WordWriter {
  readonly #watch: ProcessWatch;
  #users = 1;

  constructor(identity: ProcessIdentity) {
    this.#watch = new ProcessWatch(identity);
  }
  hold(): void {
    this.#users++;
  }
  release(): void {
    if (--this.#users === 0) this.#watch.close();
  }
  hasExited(): boolean {
    return this.#watch.hasExited();
  }
}

/** A stream waits: it would do so for ever if the writer died, so that the host frees it then. */
export function breakOnExit(word: FenceWord, value: bigint, writer: WordWriter): void {
  word.block.hold();
  writer.hold();
  watch(() => word.load() >= value || writer.hasExited(), () => {
    if (word.load() < value) word.break();
    writer.release();
    word.block.release();
  });
}

let partsOf: (fence: SharedFence) => FenceParts;
let importFence: typeof receivedFence;

/**
 * A 64-bit value that only grows, shared between processes. The process that made it raises it, from its streams or its
 * host; every process that it was sent to can wait for it, on its streams or its host, without a driver call and without
 * `/dev/shm`. Send it with `channel.send({ fences: { name: fence } })`.
 *
 * When the writing process exits, waits for values that it has not written end: `reached` and later uses throw
 * {@linkcode PeerGoneError}; **work that was already queued behind such a wait runs**, on whatever data is there.
 *
 * @example
 * ```ts
 * import { Device, SharedFence } from "@cuda-ipc/cuda-ipc";
 *
 * using device = Device.open(0);
 * using stream = device.createStream();
 * using fence = SharedFence.create(device);
 * stream.signal(fence, 1n);
 * await fence.reached(1n);
 * ```
 */
export class SharedFence extends Closable implements StreamFence {
  readonly #device: Device | null;
  readonly #word: FenceWord;
  readonly #giveBack: () => void;
  /** Only for another process's fence. */
  readonly #writer: WordWriter | undefined;
  readonly #writerIdentity: ProcessIdentity;
  /** The last value that this process has queued or stored. */
  #last: bigint;
  #lastStream: NativeStream | undefined;

  /** Not for users: see {@linkcode SharedFence.create}. */
  private constructor(
    token: typeof TOKEN,
    device: Device | null,
    word: FenceWord,
    giveBack: () => void,
    writer: ProcessIdentity,
    watched: WordWriter | undefined,
  ) {
    super();
    if (token !== TOKEN) throw new InvalidArgumentError("Cannot construct a SharedFence: use SharedFence.create()");
    this.#device = device;
    this.#word = word;
    this.#giveBack = giveBack;
    this.#writerIdentity = writer;
    this.#writer = watched;
    this.#last = word.load();
    this.protect("SharedFence", {
      release() {
        watched?.release();
        giveBack();
      },
    });
  }

  static {
    partsOf = (fence) => ({ word: fence.#word, writer: fence.#writerIdentity, device: fence.#device });
    importFence = (device, word, writer, known) => {
      word.block.hold();
      known?.hold();
      return new SharedFence(TOKEN, device, word, () => word.block.release(), writer, known ?? new Writer(writer));
    };
  }

  /**
   * Makes a fence that streams of `device` can write. The caller closes it, after the work that uses it.
   *
   * @throws {InvalidArgumentError} when `initial` is not a bigint from 0n to 2^62 - 1.
   */
  static create(device: Device, options?: SharedFenceOptions): SharedFence {
    contextOf(device, "create a fence");
    const { initial = 0n } = checkOptions("create a fence", options, ["initial"]);
    checkValue("create a fence", "initial", initial);
    const { word, giveBack } = takeWord();
    word.store(initial);
    return new SharedFence(TOKEN, device, word, giveBack, ownIdentity(), undefined);
  }

  /** The device that it was made or received for; null where it was received by a channel without a device. */
  get device(): Device | null {
    return this.#device;
  }

  /** Whether another process, or another thread of this one, made and raises it. */
  get isImported(): boolean {
    return this.#writer !== undefined;
  }

  /**
   * What it has reached, read directly from shared memory.
   *
   * @throws {PeerGoneError} when it is broken: its writer has exited, or its work has failed.
   */
  get value(): bigint {
    this.checkOpen("read a fence");
    const value = this.#word.load();
    if (value >= BROKEN) throw this.#broken("read");
    return value;
  }

  /**
   * Raises it from the host, at once.
   *
   * @throws {InvalidArgumentError} when `value` is not above the last one, or streams have signals to it queued.
   * @throws {NotSupportedError} when the fence is imported: a fence has one writing process.
   */
  signal(value: bigint): void {
    this.#checkSignal("signal a fence", value);
    if (this.#word.load() < this.#last) {
      throw new InvalidArgumentError(
        `Cannot signal a fence from the host: a stream has the value ${this.#last} still queued. Await reached(${this.#last}n) first`,
      );
    }
    this.#word.store(value);
    this.#last = value;
  }

  /**
   * Resolves when the fence has reached `value`. Looks at the shared word from one timer of this thread: often at first,
   * then every few milliseconds.
   *
   * @throws {PeerGoneError} when its writer exits before that.
   */
  async reached(value: bigint, options?: WaitOptions): Promise<void> {
    const action = "wait for a fence";
    this.checkOpen(action);
    checkValue(action, "value", value);
    const signal = checkSignal(action, checkOptions(action, options, ["signal"]).signal);
    await pollUntil(() => {
      this.checkOpen(action);
      return this.#hasReached(value, action);
    }, signal);
  }

  /** Throws when it never will. */
  #hasReached(value: bigint, action: string): boolean {
    const now = this.#word.load();
    if (now >= BROKEN) throw this.#broken(action);
    if (now >= value) return true;
    if (this.#writer?.hasExited() !== true) return false;
    // Asked again: the writer may have written between the two questions
    if (this.#word.load() >= value) return true;
    this.#word.break();
    throw this.#broken(action);
  }

  /** Raises it behind a stream's queued work. `stream.signal(fence, value)` calls it. */
  signalAfter(stream: CudaStream, value: bigint): void {
    const action = "signal a fence";
    const native = nativeStream(stream, action);
    this.#checkSignal(action, value);
    if (!hasStreamMemoryOperations(native.context)) {
      // The host writes it when it sees that the work is done
      const previous = this.#last;
      const completion = new Completion(native);
      const word = this.#word;
      word.block.hold();
      watch(() => word.load() >= previous && completion.isOver(), () => {
        if (completion.hasFailed()) word.break(); // whoever waits must not take the work for done
        else word.store(value);
        word.block.release();
        completion.release();
      });
    } else {
      if (this.#lastStream !== undefined && this.#lastStream !== native) this.#word.waitBefore(native, this.#last);
      this.#word.writeAfter(native, value);
    }
    this.#last = value;
    this.#lastStream = native;
  }

  /** Makes later work of a stream wait. `stream.waitFor(fence, value)` calls it. */
  waitBefore(stream: CudaStream, value: bigint): void {
    const action = "make a stream wait for a fence";
    const native = nativeStream(stream, action);
    this.checkOpen(action);
    checkValue(action, "value", value);
    if (this.#hasReached(value, action)) return;
    if (!hasStreamMemoryOperations(native.context)) {
      throw new NotSupportedError(
        `Cannot ${action}: ${native.context} has no 64-bit stream memory operations. Await fence.reached(${value}n) first`,
      );
    }
    this.#word.waitBefore(native, value);
    if (this.#writer !== undefined) breakOnExit(this.#word, value, this.#writer);
  }

  #checkSignal(action: string, value: unknown): void {
    this.checkOpen(action);
    if (this.#writer !== undefined) {
      throw new NotSupportedError(
        `Cannot ${action}: process ${this.#writerIdentity.pid} made it, and a fence has one writing process. ` +
          "Make one for each direction",
      );
    }
    checkValue(action, "value", value);
    if ((value as bigint) <= this.#last) {
      throw invalid(action, "value", value, `a bigint above ${this.#last}n, the last one signalled or queued`);
    }
  }

  #broken(action: string): PeerGoneError {
    return new PeerGoneError(
      `Cannot ${action}: its writer, process ${this.#writerIdentity.pid}, has exited, or its work has failed`,
    );
  }

  /** Called once, by `close`. */
  protected override onClose(): void {
    this.#writer?.release();
    this.#giveBack();
  }

  /** A short name for messages. */
  override toString(): string {
    return `SharedFence${this.isImported ? " (imported)" : ""}`;
  }
}

function checkValue(action: string, name: string, value: unknown): asserts value is bigint {
  if (typeof value !== "bigint" || value < 0n || value >= BROKEN) {
    throw invalid(action, name, value, "a bigint from 0n to 2^62 - 1");
  }
}

/** The parts of an open fence. */
export function fenceParts(fence: unknown, action: string, name: string): FenceParts {
  if (!(fence instanceof SharedFence)) throw invalid(action, name, fence, "a SharedFence");
  if (fence.isClosed) throw new ClosedError(`Cannot ${action}: ${name} is closed`);
  return partsOf(fence);
}

/** A fence of another process, over a word that is mapped here; `known` is the process where a channel holds it. */
export function receivedFence(
  device: Device | null,
  word: FenceWord,
  writer: ProcessIdentity,
  known: WordWriter | undefined,
): SharedFence {
  return importFence(device, word, writer, known);
}
