/** The process at the other end: a signal that aborts when it has exited. */
import { setTimeout as sleep } from "node:timers/promises";
import { PeerGoneError } from "../../errors.ts";
import { closeFd } from "../../os/fd.ts";
import { openPeerPidfd, openPidfd, peerCredentials } from "../../os/process.ts";
import { FdWatch } from "../../os/waiter.ts";
import type { Side } from "./report.ts";

const SETTLE_MS = 200;

/** Holds the peer's pidfd, which no later process with the same pid can be taken for. */
export class Peer implements Disposable {
  readonly #name: string;
  readonly #exit = new AbortController();
  readonly #pidfd: number | undefined;
  readonly #watch: FdWatch | undefined;
  readonly #exited: Promise<void>;

  constructor(side: Side, socket: number) {
    const { pid } = peerCredentials(socket);
    this.#name = `the ${side}, process ${pid},`;
    // Where the kernel is too old to give the peer's pidfd by its socket, its pid must do
    this.#pidfd = openPeerPidfd(socket) ?? openPidfd(pid);
    this.#watch = this.#pidfd === undefined ? undefined : new FdWatch(this.#pidfd);
    this.#watch?.unref();
    this.#exited = this.#watch?.readable() ?? Promise.resolve();
    this.#exited.then(() => this.#exit.abort(this.goneError()), () => {}); // rejects when we are disposed
  }

  /** Aborts with a PeerGoneError when the peer has exited. */
  get exit(): AbortSignal {
    return this.#exit.signal;
  }

  /** What to throw when the peer has closed the connection before its time. */
  goneError(cause?: unknown): PeerGoneError {
    return new PeerGoneError(`Cannot go on: ${this.#name} has gone before the work was done`, { cause });
  }

  /** Does what needs the peer. Where that fails because the peer dies, the error says so, whatever was noticed first. */
  async workWith<T>(body: () => Promise<T>): Promise<T> {
    try {
      return await body();
    } catch (error) {
      // Socket, driver and pidfd tell of a death one after the other
      await Promise.race([this.#exited, sleep(SETTLE_MS)]);
      throw this.exit.aborted ? this.goneError(error) : error;
    }
  }

  [Symbol.dispose](): void {
    this.#watch?.close();
    if (this.#pidfd !== undefined) closeFd(this.#pidfd);
  }
}
