/** Making connections without blocking: connecting while the other side is busy, and accepting, also when descriptors run out. */
import { setImmediate, setTimeout as sleep } from "node:timers/promises";
import { ClosedError, SystemCallError } from "../errors.ts";
import { EMFILE, ENFILE } from "./errno.ts";
import { discardFds } from "./fd.ts";
import { libc } from "./libc.ts";
import { connectSocket, Listener, type ListenOptions } from "./socket.ts";
import { FdWatch, type WaitOptions } from "./waiter.ts";

/** How often a full backlog is tried again. */
const RETRY_MIN_MS = 1;
const RETRY_MAX_MS = 50;
/** How many connections are accepted before other things get their turn. */
const ACCEPTS_IN_A_ROW = 16;
/** After an error that leaves the connection waiting: the next try would meet it at once. */
const PAUSE_MS = 100;
const EFD_CLOEXEC = 0x80000;

/** Connects to `path`; waits while the server has no room for another connection. The caller owns the socket. */
export async function connect(path: string, { signal }: WaitOptions = {}): Promise<number> {
  for (let retryMs = RETRY_MIN_MS;; retryMs = Math.min(2 * retryMs, RETRY_MAX_MS)) {
    signal?.throwIfAborted();
    const socket = connectSocket(path);
    if (socket !== undefined) return socket;
    await sleep(retryMs, undefined, { signal }).catch(() => {}); // an abort: the signal's reason is thrown above
  }
}

/** A listener whose connections are waited for. */
export class UnixServer {
  readonly #listener: Listener;
  readonly #watch: FdWatch;
  /** Held for the moment when no other descriptor is left: only what is accepted can be turned away. */
  #spareFd: number;
  #inARow = 0;
  #isClosed = false;

  private constructor(listener: Listener, watch: FdWatch) {
    this.#listener = listener;
    this.#watch = watch;
    this.#spareFd = openSpare();
  }

  /** Listens at `path`, as `Listener.open` does. */
  static listen(path: string, options?: ListenOptions): UnixServer {
    const listener = Listener.open(path, options);
    try {
      return new UnixServer(listener, new FdWatch(listener.fd));
    } catch (error) {
      listener.close();
      throw error;
    }
  }

  get path(): string {
    return this.#listener.path;
  }

  /** The socket that listens. */
  get fd(): number {
    return this.#listener.fd;
  }

  /**
   * The next connection's socket, which the caller owns; null once the server is closed. Rejects with SystemCallError when
   * this process may open no more descriptors: the connection was turned away, and the server goes on.
   */
  async accept({ signal }: WaitOptions = {}): Promise<number | null> {
    for (;;) {
      signal?.throwIfAborted();
      if (this.#isClosed) return null;
      if (this.#inARow === ACCEPTS_IN_A_ROW) {
        this.#inARow = 0;
        await setImmediate();
        continue;
      }
      this.#inARow++;
      const socket = await this.#acceptNow();
      if (socket !== undefined) return socket;
      this.#inARow = 0;
      try {
        await this.#watch.readable({ signal });
      } catch (error) {
        if (!(this.#isClosed && error instanceof ClosedError)) throw error;
      }
    }
  }

  async #acceptNow(): Promise<number | undefined> {
    try {
      return this.#listener.accept();
    } catch (error) {
      const isFull = error instanceof SystemCallError && (error.errno === EMFILE || error.errno === ENFILE);
      const outcome = isFull ? this.#turnAway() : "stuck";
      if (outcome === "nobody waits") return undefined;
      if (outcome === "stuck") await sleep(PAUSE_MS);
      throw error;
    }
  }

  /** Closes the connection that waits longest, so that its peer is not left waiting. */
  #turnAway(): "turned away" | "nobody waits" | "stuck" {
    if (this.#spareFd >= 0) discardFds(this.#spareFd);
    try {
      const socket = this.#listener.accept();
      if (socket === undefined) return "nobody waits";
      discardFds(socket);
      return "turned away";
    } catch {
      return "stuck"; // another thread was faster
    } finally {
      this.#spareFd = openSpare();
    }
  }

  /** A pending `accept` keeps the process alive. This is so from the start. */
  ref(): void {
    this.#watch.ref();
  }

  /** A pending `accept` does not keep the process alive. */
  unref(): void {
    this.#watch.unref();
  }

  /** Stops listening and removes the socket file. A pending `accept` gives null. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#watch.close();
    if (this.#spareFd >= 0) discardFds(this.#spareFd);
    this.#listener.close();
  }
}

/** Any descriptor; -1 when none is left. */
function openSpare(): number {
  return libc().eventfd(0, EFD_CLOEXEC);
}
