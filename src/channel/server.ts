/** Listening for channels. */
import { checkOptions, checkSignal, invalid } from "../arguments.ts";
import { Closable, type WaitOptions } from "../closable.ts";
import type { Device } from "../device.ts";
import { InvalidArgumentError, PeerRejectedError, SystemCallError } from "../errors.ts";
import { UnixServer } from "../os/connection.ts";
import { ownUid, peerCredentials } from "../os/process.ts";
import { disown, type Entry, ownFd } from "../share/estate.ts";
import { abortable, type ChannelDevices, checkDevices, firstFrame, type IpcChannel, newChannel } from "./channel.ts";
import {
  type Awaited,
  awaitGreeting,
  MAX_GREETING_BYTES,
  type Peer,
  readGreeting,
  sendGreeting,
  sendRejection,
} from "./handshake.ts";
import type { Transport } from "./transport.ts";

/** Options of `IpcServer.listen`. */
export interface ListenOptions extends ChannelDevices {
  /** User ids that may connect. Default: the one of this process. */
  readonly allowUids?: readonly number[];
  /** Asked last about each peer: false refuses it. */
  readonly authorize?: (peer: Peer) => boolean | Promise<boolean>;
  /** Closes the server when it is aborted. */
  readonly signal?: AbortSignal;
}

/** Connections that have not greeted yet; beyond this the oldest is dropped, so that silent ones cannot fill the process. */
const MAX_GREETING = 256;
const TOKEN: unique symbol = Symbol("IpcServer");

/**
 * A socket file at which other processes connect with `IpcChannel.connect`. Only processes of the same user may, unless
 * `allowUids` says otherwise. Iterate over it to get a channel for each; closing it leaves those as they are.
 *
 * @example
 * ```ts ignore
 * await using server = IpcServer.listen("/run/app.sock", { device });
 * for await (const channel of server) serve(channel);
 * ```
 */
export class IpcServer extends Closable {
  readonly #socket: UnixServer;
  /** Closed by a surviving thread, should this one end. */
  readonly #estate: Entry;
  readonly #devices: readonly Device[];
  readonly #allowUids: readonly number[];
  readonly #authorize: ListenOptions["authorize"];
  readonly #greeting = new Set<Transport>();
  readonly #ready: IpcChannel[] = [];
  readonly #waiters: ((channel: IpcChannel | null) => void)[] = [];
  readonly #forgetSignal: () => void;

  /** Not for users: see {@linkcode IpcServer.listen}. */
  private constructor(token: typeof TOKEN, socket: UnixServer, devices: readonly Device[], options: Partial<ListenOptions>) {
    super();
    if (token !== TOKEN) throw new InvalidArgumentError("Cannot construct an IpcServer: use IpcServer.listen()");
    this.#socket = socket;
    this.#estate = ownFd(socket.fd);
    this.#devices = devices;
    this.#allowUids = [...options.allowUids ?? [ownUid()]];
    this.#authorize = options.authorize;
    const { signal } = options;
    const onAbort = () => this.close();
    signal?.addEventListener("abort", onAbort);
    this.#forgetSignal = () => signal?.removeEventListener("abort", onAbort);
    this.#accept();
  }

  /**
   * Listens at `path`, a socket file that only this user may open. A file that a dead server left is replaced; one at which
   * somebody listens is not.
   *
   * @throws {SystemCallError} when the path cannot be used, or somebody listens there.
   */
  static listen(path: string, options?: ListenOptions): IpcServer {
    const action = `listen at ${path}`;
    const given = checkOptions(action, options, ["device", "devices", "allowUids", "authorize", "signal"]);
    const devices = checkDevices(action, given);
    const { allowUids, authorize } = given;
    if (allowUids !== undefined) {
      if (!Array.isArray(allowUids)) throw invalid(action, "allowUids", allowUids, "an array of user ids");
      for (const uid of allowUids) {
        if (!Number.isInteger(uid) || uid < 0 || uid > 0xffff_ffff) throw invalid(action, "allowUids", uid, "user ids");
      }
    }
    if (authorize !== undefined && typeof authorize !== "function") throw invalid(action, "authorize", authorize, "a function");
    checkSignal(action, given.signal);
    // Others may try; the uid check refuses them by name
    const mode = allowUids?.some((uid) => uid !== ownUid()) ? 0o666 : 0o600;
    return new IpcServer(TOKEN, UnixServer.listen(path, { mode }), devices, given);
  }

  /** The path of the socket file. */
  get path(): string {
    return this.#socket.path;
  }

  /**
   * The next channel; null when the server is closed. Whoever stops waiting must say so by `signal`: a forgotten `accept` takes
   * the next client.
   *
   * @throws {unknown} the signal's reason, when it aborts the wait.
   */
  async accept(options?: WaitOptions): Promise<IpcChannel | null> {
    const action = `accept at ${this.path}`;
    const signal = checkSignal(action, checkOptions(action, options, ["signal"]).signal);
    const channel = this.#ready.shift();
    if (channel !== undefined) return channel;
    if (this.isClosed) return null;
    let waiter!: (channel: IpcChannel | null) => void;
    const next = new Promise<IpcChannel | null>((resolve) => this.#waiters.push(waiter = resolve));
    try {
      return await abortable(next, signal);
    } catch (reason) {
      const index = this.#waiters.indexOf(waiter);
      if (index >= 0) this.#waiters.splice(index, 1);
      else next.then((channel) => channel && this.#offer(channel)); // it came at the same moment, and is another's
      throw reason;
    }
  }

  #offer(channel: IpcChannel): void {
    const waiter = this.#waiters.shift();
    if (waiter !== undefined) waiter(channel);
    else if (this.isClosed) channel.close();
    else this.#ready.push(channel);
  }

  /** The channels, until the server is closed. */
  async *[Symbol.asyncIterator](): AsyncGenerator<IpcChannel, void, void> {
    for (;;) {
      const channel = await this.accept();
      if (channel === null) return;
      yield channel;
    }
  }

  /** Listening keeps the process alive. This is so from the start. */
  ref(): void {
    this.#socket.ref();
  }

  /** Listening does not keep the process alive. */
  unref(): void {
    this.#socket.unref();
  }

  async #accept(): Promise<void> {
    while (!this.isClosed) {
      try {
        const socket = await this.#socket.accept();
        if (socket === null) return;
        this.#greet(socket);
      } catch (error) {
        // No descriptors left: that connection was turned away, and later ones may find some again
        if (!(error instanceof SystemCallError)) throw error;
      }
    }
  }

  async #greet(socket: number): Promise<void> {
    let awaited: Awaited | undefined;
    try {
      awaited = awaitGreeting(socket, MAX_GREETING_BYTES);
      const { transport } = awaited;
      this.#greeting.add(transport);
      if (this.#greeting.size > MAX_GREETING) {
        const [oldest] = this.#greeting;
        this.#greeting.delete(oldest);
        oldest.close();
      }
      this.#offer(await this.#serve(awaited));
    } catch (error) {
      // One peer's failure is its own: it is told why, as far as it listens
      if (awaited?.transport.isOpen) {
        sendRejection(awaited.transport, error instanceof Error ? error.message : String(error));
        await awaited.transport.flushed();
      }
      awaited?.transport.close();
    } finally {
      if (awaited !== undefined) this.#greeting.delete(awaited.transport);
    }
  }

  async #serve(awaited: Awaited): Promise<IpcChannel> {
    const { transport } = awaited;
    const { uid } = peerCredentials(transport.socket);
    if (!this.#allowUids.includes(uid)) {
      throw new PeerRejectedError(`user ${uid} may not connect, allowed are ${this.#allowUids.join(", ") || "none"}`);
    }
    const frame = await firstFrame(awaited, "greet a peer", undefined);
    const greeted = readGreeting(transport, frame, "hello");
    try {
      if (this.#authorize !== undefined && await this.#authorize(greeted.peer) !== true) {
        throw new PeerRejectedError("the server did not authorize this process");
      }
      if (this.isClosed || !transport.isOpen) throw new PeerRejectedError("the server was closed");
      sendGreeting(transport, "welcome", this.#devices.map((device) => device.uuid));
      return newChannel({ transport, ...greeted }, awaited, this.#devices);
    } catch (error) {
      greeted.process.release();
      throw error;
    }
  }

  /** Called once, by `close`. */
  protected override onClose(): void {
    this.#forgetSignal();
    disown(this.#estate);
    this.#socket.close();
    for (const transport of this.#greeting) transport.close();
    for (const channel of this.#ready.splice(0)) channel.close();
    for (const resolve of this.#waiters.splice(0)) resolve(null);
  }

  /** A short name for messages. */
  override toString(): string {
    return `IpcServer at ${this.#socket.path}`;
  }
}
