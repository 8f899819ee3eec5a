/** The sending half of a channel: leases are taken at the call, frames go out in order and within the peer's window. */
import { checkOptions, invalid } from "../arguments.ts";
import { Completion } from "../completion.ts";
import {
  type ChannelClosedError,
  DeviceNotVisibleError,
  InvalidArgumentError,
  NotSupportedError,
  ProtocolError,
} from "../errors.ts";
import { CudaEvent } from "../event.ts";
import { type Allocation, ImportedAllocation, PoolAllocation } from "../memory/allocation.ts";
import { AllocationHandle } from "../memory/allocation_handle.ts";
import { allocationOf, type DeviceBuffer } from "../memory/buffer.ts";
import { hostPoolOf } from "../memory/native_host_pool.ts";
import { nativeStream } from "../native_stream.ts";
import { discardFds, duplicateFd } from "../os/fd.ts";
import { fenceParts, type SharedFence } from "../share/fence.ts";
import { watch } from "../share/fence_watch.ts";
import { hasStreamMemoryOperations } from "../share/fence_word.ts";
import type { CudaStream } from "../stream.ts";
import { encodeFrame, MAX_FRAME_BYTES, MAX_FRAME_FDS } from "../wire/frame.ts";
import {
  MAX_ITEMS,
  type ReleaseJson,
  type SentBuffer,
  type SentEvent,
  type SentFence,
  type SentHandle,
  type Window,
} from "../wire/messages.ts";
import { type Claim, type Hold, holdFor, type Lease, leaseSent, newLease } from "./lease.ts";
import { type Link, MAX_KEPT } from "./link.ts";
import type { AnyNativePool } from "./pools.ts";
import { type Forwarded, holdBehind, type HoldOwner } from "./received.ts";
import type { Outgoing } from "./transport.ts";
import { type Slot, WordPool } from "./words.ts";

/**
 * What a message is made of. Each part is a record of things by name: at most 1024 in each, of at most 64 pools, with 16 MiB
 * and 253 file descriptors in all.
 */
export interface SendParts {
  /** Anything that JSON can say. It arrives as `JSON.parse` gives it: a Date as text, NaN as null, a Map as `{}`. */
  readonly data?: unknown;
  /** Buffers that the peer may use until it releases them. */
  readonly buffers?: Readonly<Record<string, DeviceBuffer>>;
  /** Interprocess events (`{ ipc: true }`). Prefer `after` and fences, which survive the death of their process. */
  readonly events?: Readonly<Record<string, CudaEvent>>;
  /** Fences, which the peer can wait for. */
  readonly fences?: Readonly<Record<string, SharedFence>>;
  /** Handles of whole pools. They stay yours; the peer gets its own. */
  readonly handles?: Readonly<Record<string, AllocationHandle>>;
}

/** Options of `channel.send`. */
export interface SendOptions {
  /** The stream whose queued work writes the buffers: the peer's first use is ordered behind it. */
  readonly after?: CudaStream;
  /** Takes the message back while nothing of it was sent. */
  readonly signal?: AbortSignal;
}

/** A buffer of a message: the peer's claim, and who must hear of it first and last. */
interface SentHold {
  readonly hold: Hold;
  readonly claim: Claim;
  readonly slot: Slot;
  /** The owner's, where the buffer is not ours. */
  forwarded: Forwarded | undefined;
}

interface Entry {
  readonly id: number;
  readonly lease: Lease;
  readonly bytes: Uint8Array;
  readonly fds: readonly number[];
  readonly holds: readonly SentHold[];
  /** Owners of forwarded buffers have not answered yet. */
  isWaiting: boolean;
  isCancelled: boolean;
  outgoing: Outgoing | undefined;
  readonly settle: (error?: unknown) => void;
}

export class Outbox {
  readonly #link: Link;
  readonly #queue: (Entry | Uint8Array)[] = [];
  /** Everything that the peer may still release. */
  readonly #sent = new Map<number, readonly SentHold[]>();
  readonly #readySlots: Slot[] = [];
  /** For buffers that came over another channel: its peer sees these words, and no others of ours. */
  readonly #forwardWords = new Map<HoldOwner, WordPool>();
  readonly #credit: { -readonly [K in keyof Window]: Window[K] };
  #nextId = 1;
  #end: ChannelClosedError | undefined;

  constructor(link: Link) {
    this.#link = link;
    this.#credit = { ...link.window };
    link.sendBehind = (bytes) => this.#sendBehind(bytes);
  }

  /** Messages that have not left yet. */
  get queuedMessages(): number {
    return this.#queue.filter((entry) => !(entry instanceof Uint8Array)).length;
  }

  /** What the peer holds. */
  get leases(): readonly { messageId: number; byteLength: number }[] {
    return [...this.#sent].map(([messageId, holds]) => ({
      messageId,
      byteLength: holds.reduce((sum, { hold }) => sum + (hold.isEnded ? 0 : hold.allocation.byteLength), 0),
    }));
  }

  /** Takes the lease now; the promise settles when the kernel has the message. */
  send(parts: SendParts, after: CudaStream | undefined, signal: AbortSignal | undefined): Promise<Lease> {
    if (this.#end !== undefined) return Promise.reject(this.#end);
    const prepared = this.#prepare(parts, after);
    return new Promise<Lease>((resolve, reject) => {
      const onAbort = () => {
        if (this.#takeBack(entry)) entry.settle(signal!.reason);
      };
      const entry: Entry = {
        ...prepared,
        isWaiting: false,
        isCancelled: false,
        outgoing: undefined,
        settle: (...error) => {
          signal?.removeEventListener("abort", onAbort);
          if (error.length > 0) {
            this.#cancel(entry);
            reject(error[0]);
          } else {
            leaseSent(entry.lease);
            resolve(entry.lease);
          }
        },
      };
      signal?.addEventListener("abort", onAbort);
      this.#queue.push(entry);
      const forwards = entry.holds.filter(({ hold }) => holdBehind(hold.allocation) !== undefined);
      if (forwards.length > 0) this.#forward(entry, forwards);
      this.#pump();
    });
  }

  /** Everything that can fail because of what the caller gave happens here, and is undone when it does. */
  #prepare(parts: SendParts, after: CudaStream | undefined): Pick<Entry, "id" | "lease" | "bytes" | "fds" | "holds"> {
    const action = "send a message";
    const { data, buffers, events, fences, handles } = checkOptions(action, parts, [
      "data",
      "buffers",
      "events",
      "fences",
      "handles",
    ]);
    // JSON.stringify would leave these out without a word
    if (typeof data === "function" || typeof data === "symbol") throw invalid(action, "data", data, "what JSON can say");
    const id = this.#nextId++;
    const lease = newLease(id, () => this.#sent.delete(id));
    const holds: SentHold[] = [];
    const fds: number[] = [];
    const binary: Uint8Array[] = [];
    const link = this.#link;
    const pools = new Set<AnyNativePool>();
    try {
      const stream = after === undefined ? undefined : nativeStream(after, action);
      const sentBuffers = entries(action, "buffers", buffers).map(([name, buffer]): SentBuffer => {
        const allocation = allocationOf(buffer, action, `buffers.${name}`);
        const descriptor = buffer.ipcDescriptor;
        if (descriptor.memoryKind !== "host") this.#checkPeerHas(descriptor.deviceUuid, `buffers.${name}`, action);
        const own = this.#exportHandles(buffer, fds);
        const native = nativePoolOf(buffer, allocation);
        if (native !== undefined && pools.add(native).size > MAX_KEPT) {
          throw new InvalidArgumentError(
            `Cannot ${action}: its buffers come from more than ${MAX_KEPT} pools. Send several messages, or use fewer pools`,
          );
        }
        const pool = native === undefined ? null : link.poolId(native, descriptor.memoryKind, descriptor.deviceUuid);
        const sent = this.#hold(lease, allocation, action);
        holds.push(sent);
        const bytes = descriptor.toBytes();
        binary.push(bytes);
        return { name, pool, descriptorBytes: bytes.byteLength, fds: own, release: link.slotJson(sent.slot) };
      });
      const sentEvents = entries(action, "events", events).map(([name, event]): SentEvent => {
        if (!(event instanceof CudaEvent)) throw invalid(action, `events.${name}`, event, "a CudaEvent");
        const descriptor = event.ipcDescriptor;
        this.#checkPeerHas(descriptor.deviceUuid, `events.${name}`, action);
        const bytes = descriptor.toBytes();
        binary.push(bytes);
        return { name, descriptorBytes: bytes.byteLength };
      });
      const sentFences = entries(action, "fences", fences).map(([name, fence]): SentFence => {
        const { word, writer } = fenceParts(fence, action, `fences.${name}`);
        return { name, block: link.blockId(word.block), word: word.index, writer };
      });
      const sentHandles = entries(action, "handles", handles).map(([name, handle]): SentHandle => {
        if (!(handle instanceof AllocationHandle)) throw invalid(action, `handles.${name}`, handle, "an AllocationHandle");
        fds.push(duplicateFd(handle.fd));
        return { name, poolId: handle.poolId ?? null };
      });
      const ready = stream === undefined ? null : link.slotJson(this.#signalReady(stream));
      const json = {
        id,
        data,
        ready,
        buffers: sentBuffers,
        events: sentEvents,
        fences: sentFences,
        handles: sentHandles,
      };
      const bytes = encodeMessage(action, json, fds.length, binary);
      this.#checkSize(action, bytes.byteLength, fds.length);
      return { id, lease, bytes, fds, holds };
    } catch (error) {
      discardFds(...fds);
      for (const { claim } of holds) claim.cancel();
      throw error;
    }
  }

  /** Else it could only give the thing back unseen. */
  #checkPeerHas(deviceUuid: string, name: string, action: string): void {
    const { pid, deviceUuids } = this.#link.peer;
    if (deviceUuids.includes(deviceUuid)) return;
    throw new DeviceNotVisibleError(
      `Cannot ${action}: ${name} lies on ${deviceUuid}, and process ${pid} has opened the channel with ` +
        `${deviceUuids.join(", ") || "no device"}. Let it name that device`,
    );
  }

  /** Descriptors that travel with the buffer itself: virtual memory has some. */
  #exportHandles(buffer: DeviceBuffer, fds: number[]): number {
    if (buffer.kind !== "virtual") return 0;
    const handles = buffer.exportHandles();
    try {
      for (const handle of handles) fds.push(duplicateFd(handle.fd));
      return handles.length;
    } finally {
      for (const handle of handles) handle.close();
    }
  }

  #hold(lease: Lease, allocation: Allocation, action: string): SentHold {
    const behind = holdBehind(allocation);
    if (allocation.isImported && behind === undefined) {
      throw new NotSupportedError(
        `Cannot ${action}: one of its buffers was imported by hand, so that its owner cannot be told of another holder. ` +
          "Receive it over a channel, or let its owner send it",
      );
    }
    if (behind !== undefined && !this.#link.process.isWatched) {
      throw new NotSupportedError(`Cannot ${action}: one of its buffers is another process's, and this peer cannot be watched`);
    }
    const words = behind === undefined ? this.#link.words : this.#wordsFor(behind.owner);
    const slot = words.take("release");
    const hold = holdFor(lease, allocation);
    const claim = hold.add(slot, this.#link.process, (outcome) => {
      if (outcome === "released") words.giveBack("release", slot);
    });
    return { hold, claim, slot, forwarded: undefined };
  }

  #wordsFor(owner: HoldOwner): WordPool {
    let words = this.#forwardWords.get(owner);
    if (words === undefined) this.#forwardWords.set(owner, words = new WordPool());
    return words;
  }

  /** A slot that the stream reaches behind its queued work. */
  #signalReady(stream: ReturnType<typeof nativeStream>): Slot {
    const slots = this.#readySlots;
    while (slots.length > 0 && slots[0].word.load() >= slots[0].value) this.#link.words.giveBack("ready", slots.shift()!);
    const slot = this.#link.words.take("ready");
    const { word, value } = slot;
    if (stream.isIdle()) word.store(value);
    else if (hasStreamMemoryOperations(stream.context)) word.writeAfter(stream, value);
    else {
      const completion = new Completion(stream);
      word.block.hold();
      watch(() => completion.isDone(), () => {
        completion.release();
        word.store(value);
        word.block.release();
      });
    }
    slots.push(slot);
    return slot;
  }

  #checkSize(action: string, bytes: number, fds: number): void {
    const { window } = this.#link;
    const maxBytes = Math.min(MAX_FRAME_BYTES, window.bytes);
    const maxFds = Math.min(MAX_FRAME_FDS, window.fds);
    if (bytes <= maxBytes && fds <= maxFds) return;
    throw new InvalidArgumentError(
      `Cannot ${action}: it has ${bytes} bytes and ${fds} file descriptors, expected at most ${maxBytes} and ${maxFds}. ` +
        "Send large data in a buffer, and many handles in several messages",
    );
  }

  /** Before the peer gets somebody else's buffer, its owner must know of it. */
  async #forward(entry: Entry, forwards: readonly SentHold[]): Promise<void> {
    entry.isWaiting = true;
    try {
      await Promise.all(forwards.map(async (sent) => {
        const { block } = sent.slot.word;
        block.hold();
        try {
          sent.forwarded = await holdBehind(sent.hold.allocation)!.forward(this.#link.process, sent.slot);
          if (entry.isCancelled) releaseUnsent(sent);
        } finally {
          block.release();
        }
      }));
      entry.isWaiting = false;
    } catch (error) {
      if (this.#takeBack(entry)) entry.settle(error);
    }
    this.#pump();
  }

  /** A frame that may not overtake the messages, and needs no credit. */
  #sendBehind(bytes: Uint8Array): void {
    if (this.#end !== undefined) return;
    this.#queue.push(bytes);
    this.#pump();
  }

  #pump(): void {
    while (this.#queue.length > 0) {
      const entry = this.#queue[0];
      if (entry instanceof Uint8Array) {
        this.#queue.shift();
        this.#link.transport.send(entry);
        continue;
      }
      const credit = this.#credit;
      if (entry.isWaiting || credit.messages < 1 || credit.bytes < entry.bytes.byteLength || credit.fds < entry.fds.length) {
        return;
      }
      this.#queue.shift();
      credit.messages--;
      credit.bytes -= entry.bytes.byteLength;
      credit.fds -= entry.fds.length;
      if (entry.holds.length > 0 && !entry.lease.isReleased) this.#sent.set(entry.id, entry.holds);
      entry.outgoing = this.#link.transport.send(entry.bytes, entry.fds, entry.settle);
    }
  }

  /** Whether nothing of the message was sent, and nothing will be. */
  #takeBack(entry: Entry): boolean {
    const index = this.#queue.indexOf(entry);
    if (index >= 0) {
      this.#queue.splice(index, 1);
      discardFds(...entry.fds);
      return true;
    }
    if (entry.outgoing === undefined || !this.#link.transport.cancel(entry.outgoing)) return false;
    this.addCredit({ messages: 1, bytes: entry.bytes.byteLength, fds: entry.fds.length });
    return true;
  }

  /** The peer has never seen the message. */
  #cancel(entry: Entry): void {
    entry.isCancelled = true;
    for (const sent of entry.holds) {
      releaseUnsent(sent);
      sent.claim.cancel();
    }
  }

  /** The peer says that it has released buffers: their words tell when its work is done too. */
  onRelease({ message, buffers }: ReleaseJson): void {
    if (message >= this.#nextId) throw new ProtocolError(`Cannot release message ${message}: it was never sent`);
    const holds = this.#sent.get(message);
    if (holds === undefined) return; // ended meanwhile
    for (const index of buffers) {
      const sent = holds[index];
      if (sent === undefined) throw new ProtocolError(`Cannot release buffer ${index} of message ${message}: it has none`);
      sent.claim.watchWord();
      sent.forwarded?.onReleased();
    }
  }

  /** A live buffer of a message, for somebody who holds it too. */
  holdOf(message: number, index: number): Hold | undefined {
    const sent = this.#sent.get(message)?.[index];
    return sent === undefined || sent.claim.isEnded ? undefined : sent.hold;
  }

  addCredit({ messages, bytes, fds }: Window): void {
    const credit = this.#credit;
    credit.messages += messages;
    credit.bytes += bytes;
    credit.fds += fds;
    const { window } = this.#link;
    if (credit.messages > window.messages || credit.bytes > window.bytes || credit.fds > window.fds) {
      throw new ProtocolError("Cannot take credit from the peer: it gives back more than was sent");
    }
    this.#pump();
  }

  /** The connection has ended. What the peer holds ends by its words, or by its exit. */
  end(error: ChannelClosedError): void {
    this.#end = error;
    for (const entry of this.#queue.splice(0)) {
      if (entry instanceof Uint8Array) continue;
      discardFds(...entry.fds);
      entry.settle(error);
    }
    for (const holds of this.#sent.values()) {
      for (const { hold } of holds) for (const claim of hold.claims) claim.watchWord();
    }
    for (const words of this.#forwardWords.values()) words.close();
    this.#forwardWords.clear();
  }
}

/** The owner of a forwarded buffer waits for its word, which nobody else will write. */
function releaseUnsent({ slot, forwarded }: SentHold): void {
  if (forwarded === undefined) return;
  slot.word.store(slot.value);
  forwarded.onReleased();
}

/** The pool whose handle opens the buffer; undefined for memory that has its own handles. */
function nativePoolOf(buffer: DeviceBuffer, allocation: Allocation): AnyNativePool | undefined {
  if (buffer.kind === "host") return hostPoolOf(buffer);
  return allocation instanceof PoolAllocation || allocation instanceof ImportedAllocation ? allocation.pool : undefined;
}

/** The named things of one part of a message. */
function entries<T>(action: string, name: string, record: Readonly<Record<string, T>> | undefined): [string, T][] {
  if (record === undefined) return [];
  // Of a Map nothing would be sent, without a word
  if (typeof record !== "object" || record === null || Symbol.iterator in record) {
    throw invalid(action, name, record, "an object of named things");
  }
  const list = Object.entries(record);
  if (list.length > MAX_ITEMS) {
    throw new InvalidArgumentError(`Cannot ${action}: ${name} has ${list.length} things, expected at most ${MAX_ITEMS}`);
  }
  return list;
}

/** Only the caller's data can be what JSON refuses. */
function encodeMessage(action: string, json: unknown, fdCount: number, binary: readonly Uint8Array[]): Uint8Array {
  try {
    return encodeFrame("message", json, fdCount, binary);
  } catch (cause) {
    throw new InvalidArgumentError(
      `Cannot ${action}: data is not what JSON can say (${cause instanceof Error ? cause.message : String(cause)})`,
      { cause },
    );
  }
}
