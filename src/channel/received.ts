/** What this process holds of a peer's, and owes it: one word for each buffer. */
import { Completion } from "../completion.ts";
import type { Allocation } from "../memory/allocation.ts";
import type { NativeStream } from "../native_stream.ts";
import { disown, type Entry, ownWord } from "../share/estate.ts";
import { watch } from "../share/fence_watch.ts";
import { hasStreamMemoryOperations } from "../share/fence_word.ts";
import type { PeerProcess } from "./peer_process.ts";
import type { Slot } from "./words.ts";

/** The channel that a hold came over. */
export interface HoldOwner {
  /** The word is written, or will be by a stream: the owner is told to look. */
  onReleased(hold: ReceivedHold): void;
  /** Tells the owner that `process` holds the buffer too, and will write `slot`. Resolves when the owner has taken it down. */
  forward(hold: ReceivedHold, process: PeerProcess, slot: Slot): Promise<Forwarded>;
}

/** A claim of a third process that the owner knows of. */
export interface Forwarded {
  /** The third process has said that it is done. */
  onReleased(): void;
}

export class ReceivedHold {
  readonly messageId: number;
  readonly index: number;
  readonly #slot: Slot;
  readonly owner: HoldOwner;
  /** Written by a surviving thread, should this one end. */
  readonly #estate: Entry;
  #isReleased = false;

  constructor(owner: HoldOwner, messageId: number, index: number, slot: Slot) {
    this.owner = owner;
    this.messageId = messageId;
    this.index = index;
    this.#slot = slot;
    const { block, index: word } = slot.word;
    block.hold();
    this.#estate = ownWord(block.hostAddressOf(word), Number(slot.value));
  }

  get isReleased(): boolean {
    return this.#isReleased;
  }

  /** Releases it behind the stream's queued work. */
  releaseAfter(stream: NativeStream): void {
    if (this.#isReleased) return;
    const { word, value } = this.#slot;
    if (!stream.hasWork()) word.store(value);
    else if (hasStreamMemoryOperations(stream.context)) word.writeAfter(stream, value);
    else {
      const completion = new Completion(stream);
      word.block.hold();
      watch(() => completion.isOver(), () => {
        word.store(value);
        word.block.release();
        completion.release();
      });
    }
    this.#end();
  }

  /** Releases it at once: nothing here has used it. */
  release(): void {
    if (this.#isReleased) return;
    this.#slot.word.store(this.#slot.value);
    this.#end();
  }

  #end(): void {
    this.#isReleased = true;
    disown(this.#estate);
    this.owner.onReleased(this);
    this.#slot.word.block.release();
  }

  forward(process: PeerProcess, slot: Slot): Promise<Forwarded> {
    return this.owner.forward(this, process, slot);
  }
}

/** Which of the allocations here came over a channel. */
const holds = new WeakMap<Allocation, ReceivedHold>();

/** Binds a buffer to its hold: when nobody here uses it any more, its owner is told, behind the work that used it. */
export function bindHold(allocation: Allocation, hold: ReceivedHold): void {
  holds.set(allocation, hold);
  allocation.afterGiveBack((stream) => hold.releaseAfter(stream));
}

/** The hold that keeps an imported allocation alive; undefined for one that did not come over a channel. */
export function holdBehind(allocation: Allocation): ReceivedHold | undefined {
  return holds.get(allocation);
}
