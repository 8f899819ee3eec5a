/** Words of a channel: those that this process gives out, slot by slot, and those that the peer has announced. */
import { ProtocolError } from "../errors.ts";
import { discardFds } from "../os/fd.ts";
import { FenceBlock } from "../share/fence_block.ts";
import { FenceWord } from "../share/fence_word.ts";
import { MAX_ANNOUNCED, type WordValue } from "../wire/messages.ts";

const BLOCK_BYTES = 4096;
/** What a peer may make us map. */
const MAX_PEER_BLOCK_BYTES = 1024 * 1024;

/** A word for one use: reached when it is not below `value`, which no earlier use had. */
export interface Slot {
  readonly word: FenceWord;
  readonly value: bigint;
}

/** Who writes the word: a slot keeps its kind, since a word has one writing process. */
export type SlotKind = "ready" | "release";

interface Place {
  readonly word: FenceWord;
  generation: bigint;
}

/** Slots of blocks that this process has made. */
export class WordPool {
  readonly #blocks: FenceBlock[] = [];
  readonly #free: Record<SlotKind, Place[]> = { ready: [], release: [] };
  readonly #places = new WeakMap<FenceWord, Place>();
  #next = 0;

  take(kind: SlotKind): Slot {
    const place = this.#free[kind].pop() ?? this.#fresh();
    place.generation++;
    return { word: place.word, value: place.generation };
  }

  /** The slot was reached, or nobody will ever write it: it may be used again. */
  giveBack(kind: SlotKind, slot: Slot): void {
    if (!slot.word.isBroken) this.#free[kind].push(this.#places.get(slot.word)!);
  }

  #fresh(): Place {
    let block = this.#blocks.at(-1);
    if (block === undefined || this.#next === block.length) {
      block = FenceBlock.create(BLOCK_BYTES);
      this.#blocks.push(block);
      this.#next = 0;
    }
    const word = new FenceWord(block, this.#next++);
    const place = { word, generation: 0n };
    this.#places.set(word, place);
    return place;
  }

  close(): void {
    for (const block of this.#blocks.splice(0)) block.release();
  }
}

/** Blocks that the peer has announced. */
export class PeerBlocks {
  readonly #blocks = new Map<number, FenceBlock>();

  /** Takes the descriptor over. */
  add(id: number, byteLength: number, fd: number): void {
    try {
      if (this.#blocks.has(id)) throw new ProtocolError(`Cannot take a fence block: its id ${id} is in use`);
      if (this.#blocks.size >= MAX_ANNOUNCED || byteLength > MAX_PEER_BLOCK_BYTES || byteLength % 4096 !== 0) {
        throw new ProtocolError(
          `Cannot take a fence block of ${byteLength} bytes: expected whole pages, at most ${MAX_PEER_BLOCK_BYTES} bytes each ` +
            `and ${MAX_ANNOUNCED} blocks`,
        );
      }
      this.#blocks.set(id, FenceBlock.map(fd, byteLength));
    } catch (error) {
      discardFds(fd);
      throw error;
    }
  }

  /** The peer will not name it any more. Words of it that are in use here stay. */
  forget(id: number): void {
    this.#blocks.get(id)?.release();
    this.#blocks.delete(id);
  }

  /** A word that a message names. */
  word({ block: id, word }: { readonly block: number; readonly word: number }): FenceWord {
    const block = this.#blocks.get(id);
    if (block === undefined || word >= block.length) {
      throw new ProtocolError(`Cannot use word ${word} of fence block ${id}: the peer has announced no such word`);
    }
    return new FenceWord(block, word);
  }

  slot(json: WordValue): Slot {
    return { word: this.word(json), value: BigInt(json.value) };
  }

  close(): void {
    for (const block of this.#blocks.values()) block.release();
    this.#blocks.clear();
  }
}
