/** The receiving half of a channel: messages wait here until somebody takes them, and are opened then. */
import { contextOf } from "../context.ts";
import type { Device } from "../device.ts";
import { NotSupportedError, PeerGoneError, ProtocolError } from "../errors.ts";
import { CudaEvent } from "../event.ts";
import { ownDriverHandle } from "../memory/allocation_handle.ts";
import { allocationOf, DeviceBuffer } from "../memory/buffer.ts";
import { reap } from "../memory/reaper.ts";
import { nativeStream } from "../native_stream.ts";
import { discardFds } from "../os/fd.ts";
import { pollUntil } from "../polling.ts";
import { breakOnExit, receivedFence, type SharedFence } from "../share/fence.ts";
import { type FenceWord, hasStreamMemoryOperations } from "../share/fence_word.ts";
import type { CudaStream } from "../stream.ts";
import { BufferDescriptor, EventDescriptor } from "../wire/descriptor.ts";
import type { Frame } from "../wire/frame.ts";
import { isSameProcess, type ProcessIdentity } from "../wire/identity.ts";
import { readMessage, type Window } from "../wire/messages.ts";
import { OUR_WINDOW } from "./handshake.ts";
import type { Link } from "./link.ts";
import type { MessageParts } from "./message.ts";
import { notVisible, type PeerPool } from "./pools.ts";
import { bindHold, type HoldOwner, ReceivedHold } from "./received.ts";
import type { Slot } from "./words.ts";

/** How much is taken before the peer is told that it may send as much again. */
const CREDIT_MESSAGES = OUR_WINDOW.messages / 4;
const CREDIT_BYTES = OUR_WINDOW.bytes / 8;

interface IncomingBuffer {
  readonly name: string;
  readonly pool: PeerPool | null;
  readonly descriptor: BufferDescriptor;
  readonly fds: number[];
  readonly hold: ReceivedHold;
}

/** A message that was read and checked, and not opened yet. */
export interface Incoming {
  readonly data: unknown;
  readonly ready: Slot | null;
  readonly buffers: readonly IncomingBuffer[];
  readonly events: readonly { readonly name: string; readonly descriptor: EventDescriptor }[];
  readonly fences: readonly { readonly name: string; readonly word: FenceWord; readonly writer: ProcessIdentity }[];
  readonly handles: readonly { readonly name: string; readonly poolId: string | null; readonly fds: number[] }[];
  readonly cost: Window;
}

interface Waiter {
  readonly resolve: (incoming: Incoming) => void;
  readonly reject: (error: unknown) => void;
}

export class Inbox {
  readonly #link: Link;
  readonly #owner: HoldOwner;
  readonly #queue: Incoming[] = [];
  readonly #waiters: Waiter[] = [];
  readonly #pending = { messages: 0, bytes: 0, fds: 0 };
  readonly #taken = { messages: 0, bytes: 0, fds: 0 };
  /** One stream for each device, for messages that are received without one. */
  readonly #ownStreams = new Map<Device, CudaStream>();
  #lastId = 0;
  #end: unknown;
  /** Nobody will take what still comes. */
  #discards = false;

  constructor(link: Link, owner: HoldOwner) {
    this.#link = link;
    this.#owner = owner;
  }

  get queuedMessages(): number {
    return this.#queue.length;
  }

  // ---- arriving

  /** Reads a message frame. Its descriptors are taken over. */
  onMessage(frame: Frame): void {
    const cost = { messages: 1, bytes: frame.byteLength, fds: frame.fds.length };
    let incoming: Incoming;
    try {
      this.#count(cost);
      incoming = this.#read(frame, cost);
    } catch (error) {
      discardFds(...frame.fds);
      throw error;
    }
    const waiter = this.#waiters.shift();
    if (waiter !== undefined) this.#take(incoming, waiter);
    else if (this.#discards) this.discard(incoming);
    else this.#queue.push(incoming);
  }

  #count(cost: Window): void {
    const pending = this.#pending;
    pending.messages += cost.messages;
    pending.bytes += cost.bytes;
    pending.fds += cost.fds;
    const window = OUR_WINDOW;
    if (pending.messages <= window.messages && pending.bytes <= window.bytes && pending.fds <= window.fds) return;
    throw new ProtocolError(
      `Cannot take a message: the peer has ${pending.messages} messages of ${pending.bytes} bytes with ${pending.fds} file ` +
        `descriptors on their way, expected at most ${window.messages}, ${window.bytes} and ${window.fds}`,
    );
  }

  #read(frame: Frame, cost: Window): Incoming {
    const json = readMessage(frame.json);
    if (json.id <= this.#lastId) {
      throw new ProtocolError(`Cannot take message ${json.id}: expected a number above ${this.#lastId}, the last one's`);
    }
    this.#lastId = json.id;
    const { peerBlocks, peerPools } = this.#link;
    const bytes = new Taker("binary data", frame.binary.byteLength, (from, to) => frame.binary.subarray(from, to));
    const fds = new Taker("file descriptors", frame.fds.length, (from, to) => frame.fds.slice(from, to));
    const slots = json.buffers.map(({ release }) => peerBlocks.slot(release));
    const ready = json.ready === null ? null : peerBlocks.slot(json.ready);
    const buffers = json.buffers.map(({ name, pool, descriptorBytes, fds: fdCount }) => {
      const known = pool === null ? null : peerPools.get(pool);
      if (known === undefined) throw new ProtocolError(`Cannot take buffer "${name}": the peer has announced no pool ${pool}`);
      return { name, pool: known, descriptor: BufferDescriptor.fromBytes(bytes.take(descriptorBytes)), fds: fds.take(fdCount) };
    });
    const events = json.events.map(({ name, descriptorBytes }) => ({
      name,
      descriptor: EventDescriptor.fromBytes(bytes.take(descriptorBytes)),
    }));
    const fences = json.fences.map(({ name, block, word, writer }) => ({ name, word: peerBlocks.word({ block, word }), writer }));
    const handles = json.handles.map(({ name, poolId }) => ({ name, poolId, fds: fds.take(1) }));
    bytes.end();
    fds.end();
    // Nothing can be refused any more: from here on the descriptors and holds have owners
    for (const { word } of fences) word.block.hold();
    for (const { pool } of buffers) pool?.hold();
    ready?.word.block.hold();
    return {
      data: json.data,
      ready,
      buffers: buffers.map((buffer, index) => ({
        ...buffer,
        hold: new ReceivedHold(this.#owner, json.id, index, slots[index]),
      })),
      events,
      fences,
      handles,
      cost,
    };
  }

  // ---- taking

  /** The next message, in the order of asking. */
  take(signal: AbortSignal | undefined): Promise<Incoming> {
    return new Promise((resolve, reject) => {
      const incoming = this.#queue.shift();
      if (incoming !== undefined) return this.#take(incoming, { resolve, reject });
      if (this.#end !== undefined) return reject(this.#end);
      const forget = () => signal?.removeEventListener("abort", onAbort);
      const waiter: Waiter = {
        resolve: (taken) => {
          forget();
          resolve(taken);
        },
        reject: (error) => {
          forget();
          reject(error);
        },
      };
      const onAbort = () => {
        const index = this.#waiters.indexOf(waiter);
        if (index < 0) return;
        this.#waiters.splice(index, 1);
        waiter.reject(signal!.reason);
      };
      signal?.addEventListener("abort", onAbort);
      this.#waiters.push(waiter);
    });
  }

  /** The peer may send as much again. */
  #take(incoming: Incoming, waiter: Waiter): void {
    const { cost } = incoming;
    const taken = this.#taken;
    for (const name of ["messages", "bytes", "fds"] as const) {
      taken[name] += cost[name];
      this.#pending[name] -= cost[name];
    }
    if (taken.messages >= CREDIT_MESSAGES || taken.bytes >= CREDIT_BYTES || taken.fds > 0) {
      if (this.#link.transport.isOpen) this.#link.send("credit", taken);
      taken.messages = taken.bytes = taken.fds = 0;
    }
    waiter.resolve(incoming);
  }

  /** A message that was taken and not opened: the next one to take it gets it. */
  putBack(incoming: Incoming): void {
    const waiter = this.#waiters.shift();
    if (waiter !== undefined) return waiter.resolve(incoming);
    if (this.#end === undefined) this.#queue.unshift(incoming);
    else this.discard(incoming);
  }

  /** Gives up a message that nobody has opened. */
  discard({ buffers, handles, fences, ready }: Incoming): void {
    for (const { fds, hold } of buffers) {
      discardFds(...fds.splice(0));
      hold.release();
    }
    for (const { fds } of handles) discardFds(...fds.splice(0));
    release({ buffers, fences, ready });
  }

  // ---- opening

  /** Waits until the sender's work is ordered before ours, then opens what is in the message. */
  async open(incoming: Incoming, stream: CudaStream | undefined, signal: AbortSignal | undefined): Promise<MessageParts> {
    const { ready } = incoming;
    if (ready !== null && ready.word.load() < ready.value) {
      const native = stream === undefined ? undefined : nativeStream(stream, "receive a message");
      if (native !== undefined && hasStreamMemoryOperations(native.context)) {
        ready.word.waitBefore(native, ready.value);
        breakOnExit(ready.word, ready.value, this.#link.process);
      } else {
        await this.#reached(ready, signal);
      }
    } else if (ready?.word.isBroken) {
      throw this.#unfinished();
    }
    await this.#placesFree(incoming, signal);
    return this.#openParts(incoming, stream);
  }

  /** The sender may have given a place out again before this process has unmapped what it was. */
  async #placesFree({ buffers }: Incoming, signal: AbortSignal | undefined): Promise<void> {
    const { devices } = this.#link;
    for (const { pool, descriptor } of buffers) {
      if (pool === null || !pool.mustImportLater(devices, descriptor)) continue;
      await pollUntil(() => {
        reap();
        return !pool.mustImportLater(devices, descriptor);
      }, signal);
    }
  }

  #reached({ word, value }: Slot, signal: AbortSignal | undefined): Promise<void> {
    const { process } = this.#link;
    process.hold();
    return pollUntil(() => {
      if (word.isBroken) throw this.#unfinished();
      if (word.load() >= value) return true;
      if (!process.hasExited() || word.load() >= value) return false;
      word.break();
      throw this.#unfinished();
    }, signal).finally(() => process.release());
  }

  #unfinished(): PeerGoneError {
    return new PeerGoneError(
      `Cannot receive a message: its sender, process ${this.#link.process.pid}, has exited before its work on it was done`,
    );
  }

  #openParts({ data, buffers, events, fences, handles, ready }: Incoming, stream: CudaStream | undefined): MessageParts {
    const opened: { close(): void }[] = [];
    const keep = <T extends { close(): void }>(thing: T): T => {
      opened.push(thing);
      return thing;
    };
    const byName = <Item extends { readonly name: string }, T extends { close(): void }>(
      items: readonly Item[],
      open: (item: Item) => T,
    ): Record<string, T> => Object.fromEntries(items.map((item) => [item.name, keep(open(item))]));
    try {
      const parts = {
        data,
        buffers: byName(buffers, (buffer) => this.#openBuffer(buffer, stream)),
        events: byName(events, ({ descriptor }) => CudaEvent.import(this.#deviceOf(descriptor.deviceUuid), descriptor)),
        fences: byName(fences, ({ word, writer }) => this.#openFence(word, writer)),
        handles: byName(handles, ({ fds, poolId }) => ownDriverHandle(fds.pop()!, poolId ?? "")),
      };
      release({ buffers, fences, ready });
      return parts;
    } catch (error) {
      for (const thing of opened) thing.close();
      throw error;
    }
  }

  #openBuffer({ name, pool, descriptor, fds, hold }: IncomingBuffer, stream: CudaStream | undefined): DeviceBuffer {
    const buffer = pool === null
      ? this.#openWithHandles(name, descriptor, fds.splice(0), stream)
      : this.#openFromPool(pool, descriptor, stream);
    bindHold(allocationOf(buffer, "receive a buffer", name), hold);
    return buffer;
  }

  #openFromPool(announced: PeerPool, descriptor: BufferDescriptor, stream: CudaStream | undefined): DeviceBuffer {
    const pool = announced.open(this.#link.devices);
    return DeviceBuffer.import(pool, descriptor, pool.device === null ? {} : { stream: this.#streamOf(pool.device, stream) });
  }

  /** The descriptors are taken over. */
  #openWithHandles(name: string, descriptor: BufferDescriptor, fds: number[], stream: CudaStream | undefined): DeviceBuffer {
    const handles = fds.map((fd) => ownDriverHandle(fd, ""));
    try {
      if (descriptor.memoryKind !== "virtual") {
        throw new NotSupportedError(
          `Cannot receive buffer "${name}": memory of the kind "${descriptor.memoryKind}" is not opened by handles of its own`,
        );
      }
      const device = this.#deviceOf(descriptor.deviceUuid);
      return DeviceBuffer.importVirtual(device, descriptor, handles, { stream: this.#streamOf(device, stream) });
    } finally {
      for (const handle of handles) handle.close();
    }
  }

  /** The given stream, or where that is another device's, one of our own that runs behind it. */
  #streamOf(device: Device, stream: CudaStream | undefined): CudaStream {
    if (stream?.device === device) return stream;
    const own = this.#ownStream(device);
    if (stream !== undefined) own.wait(stream);
    return own;
  }

  #openFence(word: FenceWord, writer: ProcessIdentity): SharedFence {
    const { process, devices } = this.#link;
    const known = isSameProcess(writer, process.identity) ? process : undefined;
    return receivedFence(devices[0] ?? null, word, writer, known);
  }

  #deviceOf(uuid: string): Device {
    const { devices } = this.#link;
    const device = devices.find((candidate) => candidate.uuid === uuid);
    if (device === undefined) throw notVisible(uuid, devices);
    return device;
  }

  #ownStream(device: Device): CudaStream {
    let stream = this.#ownStreams.get(device);
    if (stream === undefined) {
      contextOf(device, "receive a buffer");
      this.#ownStreams.set(device, stream = device.createStream());
    }
    return stream;
  }

  // ---- ending

  /** No message comes any more. Those that are here can still be taken, unless `discard`. */
  end(error: unknown, discard: boolean): void {
    this.#end = error;
    this.#discards = discard;
    for (const waiter of this.#waiters.splice(0)) waiter.reject(error);
    if (discard) this.discardAll();
  }

  discardAll(): void {
    for (const incoming of this.#queue.splice(0)) this.discard(incoming);
  }

  /** Buffers that are still in use keep the streams that they need. */
  close(): void {
    this.discardAll();
    for (const stream of this.#ownStreams.values()) stream.close();
    this.#ownStreams.clear();
  }
}

/** What a message needed until it was opened or given up. */
function release({ buffers, fences, ready }: Pick<Incoming, "buffers" | "fences" | "ready">): void {
  for (const { pool } of buffers) pool?.release();
  for (const { word } of fences) word.block.release();
  ready?.word.block.release();
}

/** Takes parts of a list one after the other: too few is an error, and so are some too many. */
class Taker<T> {
  readonly #what: string;
  readonly #length: number;
  readonly #slice: (from: number, to: number) => T;
  #at = 0;

  constructor(what: string, length: number, slice: (from: number, to: number) => T) {
    this.#what = what;
    this.#length = length;
    this.#slice = slice;
  }

  take(count: number): T {
    if (count > this.#length - this.#at) {
      throw new ProtocolError(`Cannot read a message: it has ${this.#length} ${this.#what}, fewer than it says`);
    }
    this.#at += count;
    return this.#slice(this.#at - count, this.#at);
  }

  end(): void {
    if (this.#at !== this.#length) {
      throw new ProtocolError(`Cannot read a message: it has ${this.#length} ${this.#what}, expected ${this.#at}`);
    }
  }
}
