/** A channel: a connection to one other process, over which buffers, events, fences, handles and data are sent. */
import { clearTimeout, setTimeout } from "node:timers";
import { checkBoolean, checkOptions, checkSignal, invalid } from "../arguments.ts";
import { Closable, type WaitOptions } from "../closable.ts";
import { contextOf } from "../context.ts";
import type { Device } from "../device.ts";
import { ChannelClosedError, InvalidArgumentError, NotSupportedError, PeerGoneError, ProtocolError } from "../errors.ts";
import { nativeStream } from "../native_stream.ts";
import { connect } from "../os/connection.ts";
import { discardFds } from "../os/fd.ts";
import { retiredFenceBytes } from "../share/fence_block.ts";
import type { CudaStream } from "../stream.ts";
import { type Frame, MAX_FRAME_BYTES } from "../wire/frame.ts";
import {
  readBlock,
  readClose,
  readCredit,
  readForget,
  readForward,
  readForwarded,
  readForwardReleased,
  readPool,
  readProcess,
  readRelease,
} from "../wire/messages.ts";
import { Forwarding } from "./forwarding.ts";
import {
  type Awaited,
  awaitGreeting,
  type Greeted,
  GREETING_TIMEOUT_MS,
  type Peer,
  readGreeting,
  sendGreeting,
} from "./handshake.ts";
import { Inbox } from "./inbox.ts";
import type { Lease } from "./lease.ts";
import { Link } from "./link.ts";
import { type IpcMessage, newMessage } from "./message.ts";
import { Outbox, type SendOptions, type SendParts } from "./outbox.ts";
import type { ReceivedHold } from "./received.ts";

/** Which devices a channel may use. Without one it carries data, fences and handles, ordered by the host. */
export interface ChannelDevices {
  /** The device whose buffers are sent and received. */
  readonly device?: Device;
  /** Several devices; each received buffer is opened on the one that it lies on. */
  readonly devices?: readonly Device[];
}

/** Options of `IpcChannel.connect`. */
export interface ConnectOptions extends ChannelDevices, WaitOptions {}

/** Options of `channel.receive`. */
export interface ReceiveOptions extends WaitOptions {
  /**
   * The stream that will use the buffers: work queued on it from then on is ordered behind the sender's work. Without one
   * the sender's work is waited for by the host.
   */
  readonly stream?: CudaStream;
}

/** Options of `channel.close`. */
export interface CloseOptions {
  /** Drop what is not sent yet. Default: false. */
  readonly force?: boolean;
}

/**
 * Why a channel has ended: we closed it, the peer closed it, its process exited, it closed its socket without a word and lives
 * on, or something arrived that is no message.
 */
export type CloseReason = "closed" | "closed-by-peer" | "peer-gone" | "disconnected" | "protocol-error";

/** What a channel holds at the moment. */
export interface ChannelStats {
  /** Messages that wait for the peer to take earlier ones. */
  readonly queuedMessages: number;
  /** Messages that were received and not taken yet. */
  readonly receivedMessages: number;
  /** What the peer, or whoever it sent it on to, has not released. */
  readonly leases: readonly {
    /** Counts the messages of the channel from 1. */
    readonly messageId: number;
    /** Bytes of the allocations that it keeps. */
    readonly byteLength: number;
  }[];
  /** The process that holds the leases. */
  readonly peerPid: number;
  /** Bytes of fence memory of this thread that wait until their device is idle. */
  readonly retiredFenceBytes: number;
  /** Bytes that went over the socket so far. What is shared does not: messages only describe it. */
  readonly sentBytes: number;
  /** Bytes that came over the socket so far. */
  readonly receivedBytes: number;
}

/** How long an end without a word is looked at before the peer is believed to live on. */
const EXIT_AFTER_END_MS = 500;
/** How long what is queued may take to leave when the channel is closed. */
const FLUSH_MS = 5000;
const TOKEN: unique symbol = Symbol("IpcChannel");

let make: (greeted: Greeted, awaited: Awaited, devices: readonly Device[]) => IpcChannel;

/**
 * A connection to one other process. What it carries is safe to use: memory that the peer holds is not given back before
 * the peer has released it or exited, and its work is ordered behind yours and yours behind its.
 *
 * Sending a buffer opens the **whole pool** that it comes from, future allocations included, to the peer's process, for as
 * long as that lives: use one pool for each group of processes that trust each other.
 *
 * @example
 * ```ts ignore
 * await using channel = await IpcChannel.connect("/run/app.sock", { device });
 * for await (const message of channel) {
 *   console.log(message.data, await message.buffers.frame.read());
 *   await message.release();
 * }
 * ```
 */
export class IpcChannel extends Closable {
  readonly #link: Link;
  readonly #outbox: Outbox;
  readonly #inbox: Inbox;
  readonly #forwarding: Forwarding;
  /** Releases that the peer has not been told of, by message. */
  readonly #released = new Map<number, number[]>();
  #telling: Promise<void> | undefined;
  readonly #closed: Promise<CloseReason>;
  #settleClosed!: (reason: CloseReason) => void;
  #reason: CloseReason | undefined;
  #flushed: Promise<void> = Promise.resolve();
  #isForced = false;
  /** Settles when the peer sends nothing any more. */
  readonly #quiet: Promise<void>;
  #settleQuiet!: () => void;

  /** Not for users: see {@linkcode IpcChannel.connect} and `IpcServer`. */
  private constructor(token: typeof TOKEN, greeted: Greeted, awaited: Awaited, devices: readonly Device[]) {
    super();
    if (token !== TOKEN) throw new InvalidArgumentError("Cannot construct an IpcChannel: use IpcChannel.connect() or IpcServer");
    this.#link = new Link(greeted, devices);
    this.#outbox = new Outbox(this.#link);
    this.#forwarding = new Forwarding(this.#link, this.#outbox);
    this.#inbox = new Inbox(this.#link, {
      onReleased: (hold) => this.#onReleased(hold),
      forward: (hold, process, slot) => this.#forwarding.forward(hold, process, slot),
    });
    this.#closed = new Promise((resolve) => this.#settleClosed = resolve);
    this.#quiet = new Promise((resolve) => this.#settleQuiet = resolve);
    awaited.handOver((frame) => this.#onFrame(frame), (error) => this.#onEnd(error));
  }

  static {
    make = (greeted, awaited, devices) => new IpcChannel(TOKEN, greeted, awaited, devices);
  }

  /**
   * Connects to an `IpcServer` that listens at `path`.
   *
   * @throws {SystemCallError} when nobody listens there.
   * @throws {PeerRejectedError} when the server refused this process.
   * @throws {ProtocolError} when what listens there speaks something else, or does not answer within 10 s.
   */
  static async connect(path: string, options?: ConnectOptions): Promise<IpcChannel> {
    const action = `connect to ${path}`;
    const given = checkOptions(action, options, ["device", "devices", "signal"]);
    const devices = checkDevices(action, given);
    const signal = checkSignal(action, given.signal);
    const awaited = awaitGreeting(await connect(path, { signal }), MAX_FRAME_BYTES);
    try {
      sendGreeting(awaited.transport, "hello", devices.map(({ uuid }) => uuid));
      const welcome = await firstFrame(awaited, action, signal);
      return make({ transport: awaited.transport, ...readGreeting(awaited.transport, welcome, "welcome") }, awaited, devices);
    } catch (error) {
      awaited.transport.close();
      throw error;
    }
  }

  /** Who is at the other end. */
  get peer(): Peer {
    return this.#link.peer;
  }

  /** Settles with the reason when the channel has ended. */
  get closed(): Promise<CloseReason> {
    return this.#closed;
  }

  /**
   * Sends a message. The lease on its buffers is taken at the call: you may free them right after it. The promise settles
   * when the message was handed to the operating system; it waits while the peer has too many messages that it has not
   * taken.
   *
   * Without `after` you promise that the work on the buffers is done.
   *
   * @throws {InvalidArgumentError} when a part is not what it should be, or the message is too large.
   * @throws {DeviceNotVisibleError} when a buffer or an event lies on a device with which the peer has not opened the channel.
   * @throws {ChannelClosedError} when the channel has ended before it was sent.
   */
  async send(parts: SendParts, options?: SendOptions): Promise<Lease> {
    const action = "send a message";
    const given = checkOptions(action, options, ["after", "signal"]);
    const signal = checkSignal(action, given.signal);
    if (this.isClosed) throw new ChannelClosedError(`Cannot ${action}: the channel is closed`);
    return await this.#outbox.send(parts, given.after, signal);
  }

  /**
   * The next message. Release it when you are done.
   *
   * @throws {ChannelClosedError} when the channel has ended.
   * @throws {PeerGoneError} when the peer's process has exited, perhaps with its work on the message unfinished.
   * @throws {DeviceNotVisibleError} when something in the message lies on a device that the channel was not opened with; the
   * message is released, and the channel goes on.
   */
  async receive(options?: ReceiveOptions): Promise<IpcMessage> {
    const action = "receive a message";
    const given = checkOptions(action, options, ["stream", "signal"]);
    const signal = checkSignal(action, given.signal);
    const { stream } = given;
    if (stream !== undefined) this.#checkStream(action, stream);
    if (this.isClosed) throw new ChannelClosedError(`Cannot ${action}: the channel is closed`);
    const inbox = this.#inbox;
    const incoming = await inbox.take(signal);
    try {
      return newMessage(await inbox.open(incoming, stream, signal), () => this.#tellReleased());
    } catch (error) {
      if (signal?.aborted && error === signal.reason) inbox.putBack(incoming);
      else inbox.discard(incoming);
      throw error;
    } finally {
      this.#finish();
    }
  }

  #checkStream(action: string, stream: CudaStream): void {
    const { context } = nativeStream(stream, action);
    const { devices } = this.#link;
    if (devices.length === 0) {
      throw new NotSupportedError(`Cannot ${action} on a stream: the channel was opened without a device`);
    }
    if (!devices.includes(stream.device)) {
      throw new InvalidArgumentError(
        `Cannot ${action}: the stream belongs to ${context}, the channel was opened with ${devices.join(", ")}`,
      );
    }
  }

  /**
   * The messages until the channel is closed by either side, each received with these options. It throws what `receive` throws;
   * one message that cannot be opened ends this iteration and not the channel, so that another may be begun.
   */
  async *messages(options?: ReceiveOptions): AsyncGenerator<IpcMessage, void, void> {
    for (;;) {
      let message: IpcMessage;
      try {
        message = await this.receive(options);
      } catch (error) {
        if (this.#reason === "closed" || (this.#reason === "closed-by-peer" && error instanceof ChannelClosedError)) return;
        throw error;
      }
      yield message;
    }
  }

  /** The same as `messages()`, ordered by the host. */
  [Symbol.asyncIterator](): AsyncGenerator<IpcMessage, void, void> {
    return this.messages();
  }

  /** What it holds at the moment. */
  stats(): ChannelStats {
    return {
      queuedMessages: this.#outbox.queuedMessages,
      receivedMessages: this.#inbox.queuedMessages,
      leases: this.#outbox.leases,
      peerPid: this.#link.process.pid,
      retiredFenceBytes: retiredFenceBytes(),
      sentBytes: this.#link.transport.sentBytes,
      receivedBytes: this.#link.transport.receivedBytes,
    };
  }

  /** Waiting for messages keeps the process alive. This is so from the start. */
  ref(): void {
    if (this.#link.transport.isOpen) this.#link.transport.ref();
  }

  /**
   * Waiting for messages does not keep the process alive. In Deno, while nothing of this module is ref'ed, a message that
   * comes after a long silence is seen up to 64 ms late.
   */
  unref(): void {
    if (this.#link.transport.isOpen) this.#link.transport.unref();
  }

  /**
   * Ends the channel. What was sent leaves first, unless `force`; messages that nobody has received are released. Leases and
   * received buffers stay as they are: each side still waits for the other's. A peer that does not read (a stopped process) is
   * given 5 s: so long `closeAsync` may take.
   */
  override close(options?: CloseOptions): void {
    this.#isForced ||= checkBoolean("close a channel", "force", checkOptions("close a channel", options, ["force"]).force, false);
    super.close();
    if (!this.#isForced) return;
    this.#hangUp();
    this.#settleQuiet();
  }

  // ---- frames

  #onFrame(frame: Frame): void {
    try {
      this.#dispatch(frame);
    } catch (error) {
      this.#fail(error);
    }
  }

  #dispatch(frame: Frame): void {
    const link = this.#link;
    const { type, json, fds } = frame;
    if (type === "message") return this.#inbox.onMessage(frame);
    const wanted = type === "block" || type === "pool" || type === "process" ? 1 : 0;
    if (type !== undefined && fds.length !== wanted) {
      discardFds(...fds);
      throw new ProtocolError(`Cannot read a frame: ${type} came with ${fds.length} file descriptors, expected ${wanted}`);
    }
    switch (type) {
      case undefined:
        return discardFds(...fds); // of a later release, which knows that we do not know it
      case "block": {
        const { id, byteLength } = owning(fds, () => readBlock(json));
        return link.peerBlocks.add(id, byteLength, fds[0]);
      }
      case "pool":
        return link.peerPools.add(owning(fds, () => readPool(json)), fds[0]);
      case "process":
        return link.addProcess(owning(fds, () => readProcess(json)), fds[0]);
      case "release":
        return this.#outbox.onRelease(readRelease(json));
      case "credit":
        return this.#outbox.addCredit(readCredit(json));
      case "forward":
        this.#forwarding.onForward(readForward(json)).catch((error) => this.#fail(error));
        return;
      case "forwarded":
        return this.#forwarding.onForwarded(readForwarded(json));
      case "forwardReleased":
        return this.#forwarding.onForwardReleased(readForwardReleased(json));
      case "forget":
        return link.forget(readForget(json));
      case "close":
        readClose(json);
        if (this.#reason !== undefined) return this.#settleQuiet(); // it has seen ours, and sends nothing any more
        return this.#end("closed-by-peer", new ChannelClosedError("Cannot use the channel: the peer has closed it"));
      default:
        throw new ProtocolError(`Cannot read a frame: ${type} came after the greeting`);
    }
  }

  /** Something arrived that is no message: this channel ends, and nothing else. */
  #fail(error: unknown): void {
    this.#settleQuiet();
    if (this.#reason !== undefined) return;
    const reason = error instanceof Error ? error.message : String(error);
    this.#link.send("close", { reason });
    this.#end("protocol-error", error);
  }

  // ---- releases

  #onReleased({ messageId, index }: ReceivedHold): void {
    if (!this.#link.transport.isOpen) return;
    const indices = this.#released.get(messageId);
    if (indices === undefined) this.#released.set(messageId, [index]);
    else indices.push(index);
    // Several buffers are often released in one turn
    this.#telling ??= Promise.resolve().then(() => this.#tellReleased());
  }

  /** Tells the peer what was released. Its words tell more: this only makes it look. */
  #tellReleased(): Promise<void> {
    this.#telling = undefined;
    const told = [...this.#released].map(([message, buffers]) =>
      new Promise<void>((resolve) => this.#link.send("release", { message, buffers }, [], () => resolve()))
    );
    this.#released.clear();
    return Promise.all(told).then(() => {});
  }

  // ---- the end

  /** The socket has ended. Whether the peer's process has too decides what it still holds. */
  #onEnd(error: unknown): void {
    this.#settleQuiet();
    if (this.#reason !== undefined) return;
    if (error !== undefined) return this.#fail(error);
    const { process } = this.#link;
    const gone = () => {
      clearTimeout(timer);
      this.#end("peer-gone", new PeerGoneError(`Cannot use the channel: process ${process.pid} has exited`));
    };
    const timer = setTimeout(() => {
      forget();
      if (process.hasExited()) return gone();
      const reason = `process ${process.pid} has closed its end and lives on, with what it holds`;
      this.#end("disconnected", new ChannelClosedError(`Cannot use the channel: ${reason}`));
    }, process.isWatched ? EXIT_AFTER_END_MS : 0);
    const forget = process.onExit(gone);
  }

  #end(reason: CloseReason, error: unknown): void {
    if (this.#reason !== undefined) return;
    this.#reason = reason;
    const closedError = error instanceof ChannelClosedError
      ? error
      : new ChannelClosedError("Cannot send: the channel has ended", { cause: error });
    this.#inbox.end(error, reason === "closed");
    this.#tellReleased();
    this.#outbox.end(closedError);
    this.#forwarding.end(closedError);
    const { transport } = this.#link;
    if (reason === "closed" || reason === "closed-by-peer") this.#link.send("close", { reason });
    if (this.#isForced) this.#hangUp();
    else if (reason === "peer-gone" || reason === "disconnected") transport.close();
    this.#flushed = this.#flush(reason === "closed");
    this.#settleClosed(reason);
  }

  /**
   * Lets the last frames out, then gives everything up. Who closes first goes on reading until the other has answered:
   * messages that are on their way must be released too, since the other's process may live on.
   */
  async #flush(andReadOn: boolean): Promise<void> {
    const { transport } = this.#link;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const timeout = new Promise<void>((resolve) => timer = setTimeout(resolve, FLUSH_MS));
    await Promise.race([transport.flushed(), timeout]);
    if (andReadOn && transport.isOpen) await Promise.race([this.#quiet, timeout]);
    clearTimeout(timer);
    this.#hangUp();
    this.#finish();
  }

  /** Messages that the peer has sent and nobody will receive are released. */
  #hangUp(): void {
    this.#link.transport.drain();
    this.#link.transport.close();
  }

  #isFinished = false;

  /** Gives up what the connection needed, once no message can be taken any more. */
  #finish(): void {
    if (this.#reason === undefined || this.#isFinished || this.#link.transport.isOpen) return;
    if (!this.isClosed && this.#inbox.queuedMessages > 0) return;
    this.#isFinished = true;
    this.#inbox.close();
    this.#link.close();
  }

  /** Called once, by `close`. */
  protected override onClose(): void {
    this.#end("closed", new ChannelClosedError("Cannot use the channel: it is closed"));
    this.#finish();
  }

  /** Settles when what was sent has left. */
  protected override async settled(signal: AbortSignal | undefined): Promise<void> {
    await abortable(this.#flushed, signal);
  }

  /** A short name for messages. */
  override toString(): string {
    return `IpcChannel to process ${this.#link.peer.pid}`;
  }
}

/** Reads a frame's JSON; on an error its descriptors are closed. */
function owning<T>(fds: readonly number[], read: () => T): T {
  try {
    return read();
  } catch (error) {
    discardFds(...fds);
    throw error;
  }
}

/** The devices that the options name, all open and each once. */
export function checkDevices(action: string, { device, devices }: ChannelDevices): readonly Device[] {
  if (device !== undefined && devices !== undefined) {
    throw new InvalidArgumentError(`Cannot ${action}: device and devices are both given, expected one of them`);
  }
  if (devices !== undefined && !Array.isArray(devices)) throw invalid(action, "devices", devices, "an array of Devices");
  const list = device === undefined ? devices ?? [] : [device];
  for (const item of list) contextOf(item, action);
  return [...new Set(list)];
}

/** Waits for a promise, or for the signal. */
export function abortable<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return promise;
  return new Promise((resolve, reject) => {
    const onAbort = () => reject(signal.reason);
    signal.addEventListener("abort", onAbort);
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", onAbort));
  });
}

/** The peer's first frame, within the time that a greeting may take. */
export async function firstFrame(awaited: Awaited, action: string, signal: AbortSignal | undefined): Promise<Frame> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(
      () => reject(new ProtocolError(`Cannot ${action}: the peer has not greeted within ${GREETING_TIMEOUT_MS / 1000} s`)),
      GREETING_TIMEOUT_MS,
    );
  });
  try {
    return await abortable(Promise.race([awaited.first, late]), signal);
  } finally {
    clearTimeout(timer);
  }
}

/** Makes the channel of a connection whose greeting is done. */
export function newChannel(greeted: Greeted, awaited: Awaited, devices: readonly Device[]): IpcChannel {
  return make(greeted, awaited, devices);
}
