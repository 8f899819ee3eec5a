/** Frames over a socket: written in order as the kernel takes them, read as they come. Nothing here waits or blocks. */
import { ChannelClosedError, ProtocolError } from "../errors.ts";
import { closeFd, discardFds } from "../os/fd.ts";
import { receiveBytes, type Received, sendBytes, shutdownReceiving } from "../os/socket.ts";
import { FdWatch } from "../os/waiter.ts";
import { disown, type Entry, ownFd } from "../share/estate.ts";
import { type Frame, FrameDecoder, MAX_FRAME_BYTES } from "../wire/frame.ts";

/** How much is read before other things get their turn. */
const READS_IN_A_ROW = 8;

export interface TransportHandlers {
  onFrame(frame: Frame): void;
  /** Nothing will come any more: the peer's end, or an error. Called once. */
  onEnd(error: unknown): void;
}

/** A frame on its way out. */
export interface Outgoing {
  readonly bytes: Uint8Array;
  /** They are the transport's, and are closed once the kernel has them. */
  readonly fds: readonly number[];
  readonly settle?: (error?: unknown) => void;
  sent: number;
}

export class Transport {
  readonly socket: number;
  sentBytes = 0;
  receivedBytes = 0;
  readonly #watch: FdWatch;
  /** Closed by a surviving thread, should this one end. */
  readonly #estate: Entry;
  readonly #handlers: TransportHandlers;
  readonly #decoder: FrameDecoder;
  readonly #queue: Outgoing[] = [];
  #isWriting = false;
  #isEnded = false;
  #isClosed = false;
  #onFlushed: (() => void) | undefined;

  /** Takes the socket over. `maxFrameBytes` is for the greeting; `allowLargeFrames` ends that. */
  constructor(socket: number, maxFrameBytes: number, handlers: TransportHandlers) {
    this.socket = socket;
    this.#watch = new FdWatch(socket);
    this.#estate = ownFd(socket);
    this.#handlers = handlers;
    this.#decoder = new FrameDecoder(maxFrameBytes);
  }

  get isOpen(): boolean {
    return !this.#isClosed && !this.#isEnded;
  }

  /** Begins to read. */
  start(): void {
    this.#read();
  }

  allowLargeFrames(): void {
    this.#decoder.maxFrameBytes = MAX_FRAME_BYTES;
  }

  async #read(): Promise<void> {
    try {
      while (!this.#isClosed) {
        for (let reads = 0; reads < READS_IN_A_ROW; reads++) {
          const received = receiveBytes(this.socket);
          if (received === undefined) break;
          if (received === null) return this.#end(undefined);
          this.#take(received);
          if (this.#isClosed) return;
        }
        await this.#watch.readable();
      }
    } catch (error) {
      if (!this.#isClosed) this.#end(error);
    }
  }

  #take({ bytes, fds }: Received): void {
    this.receivedBytes += bytes.byteLength;
    for (const frame of this.#decoder.push(bytes, fds)) {
      if (this.#isClosed) discardFds(...frame.fds);
      else this.#handlers.onFrame(frame);
    }
  }

  /**
   * Lets the peer send nothing more, and hands over what it has sent: it counts that as delivered, and waits for the releases.
   * Only before `close`.
   */
  drain(): void {
    if (!this.isOpen) return;
    try {
      shutdownReceiving(this.socket);
      for (let received = receiveBytes(this.socket); received; received = receiveBytes(this.socket)) this.#take(received);
    } catch {
      // Nothing that can be read, and the connection ends anyway
    }
  }

  /** Sends a frame behind the others. `settle` is called when the kernel has all of it, or never will. */
  send(bytes: Uint8Array, fds: readonly number[] = [], settle?: (error?: unknown) => void): Outgoing {
    const outgoing = { bytes, fds, settle, sent: 0 };
    if (!this.isOpen) {
      discardFds(...fds);
      settle?.(new ChannelClosedError("Cannot send: the connection has ended"));
      return outgoing;
    }
    this.#queue.push(outgoing);
    if (!this.#isWriting) this.#write();
    return outgoing;
  }

  /** Takes a frame back of which nothing was sent yet. */
  cancel(outgoing: Outgoing): boolean {
    const index = this.#queue.indexOf(outgoing);
    if (index < 0 || outgoing.sent > 0) return false;
    this.#queue.splice(index, 1);
    discardFds(...outgoing.fds);
    return true;
  }

  async #write(): Promise<void> {
    this.#isWriting = true;
    try {
      while (this.#queue.length > 0 && this.isOpen) {
        const outgoing = this.#queue[0];
        const isFirst = outgoing.sent === 0;
        const rest = isFirst ? outgoing.bytes : outgoing.bytes.subarray(outgoing.sent);
        const count = sendBytes(this.socket, rest, isFirst ? outgoing.fds : []);
        if (count === 0) {
          await this.#watch.writable();
          continue;
        }
        if (isFirst) discardFds(...outgoing.fds);
        outgoing.sent += count;
        this.sentBytes += count;
        if (outgoing.sent < outgoing.bytes.byteLength) continue;
        this.#queue.shift();
        outgoing.settle?.();
      }
      if (this.#queue.length === 0) this.#onFlushed?.();
    } catch (error) {
      // What the peer has still sent is to be read: the reading sees the end
      if (this.isOpen) this.#failQueue(error);
    } finally {
      this.#isWriting = false;
    }
  }

  /** Resolves when the kernel has everything, or nothing can be sent any more. */
  flushed(): Promise<void> {
    if (this.#queue.length === 0 || !this.isOpen) return Promise.resolve();
    return new Promise((resolve) => this.#onFlushed = resolve);
  }

  #failQueue(error: unknown): void {
    for (const outgoing of this.#queue.splice(0)) {
      if (outgoing.sent === 0) discardFds(...outgoing.fds);
      outgoing.settle?.(new ChannelClosedError("Cannot send: the connection has ended", { cause: error }));
    }
    this.#onFlushed?.();
  }

  /** Called once, by the reading. Whoever sent nonsense may still be told so. */
  #end(error: unknown): void {
    if (!(error instanceof ProtocolError)) {
      this.#isEnded = true;
      this.#failQueue(error);
    }
    this.#handlers.onEnd(error);
  }

  ref(): void {
    this.#watch.ref();
  }

  unref(): void {
    this.#watch.unref();
  }

  /** Ends at once; what is still queued is not sent. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#watch.close();
    this.#failQueue(undefined);
    discardFds(...this.#decoder.takeFds());
    disown(this.#estate);
    closeFd(this.socket);
  }
}
