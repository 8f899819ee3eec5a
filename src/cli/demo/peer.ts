/** The process at the other end: a signal that aborts when it has exited. */
import { PeerGoneError } from "../../errors.ts";
import { closeFd } from "../../os/fd.ts";
import { openPeerPidfd, openPidfd, peerCredentials } from "../../os/process.ts";
import { FdWatch } from "../../os/waiter.ts";
import type { Side } from "./report.ts";

/** Holds the peer's pidfd, which no later process with the same pid can be taken for. */
export class Peer implements Disposable {
  readonly #name: string;
  readonly #exit = new AbortController();
  readonly #pidfd: number | undefined;
  readonly #watch: FdWatch | undefined;

  constructor(side: Side, socket: number) {
    const { pid } = peerCredentials(socket);
    this.#name = `the ${side}, process ${pid},`;
    // Where the kernel is too old to give the peer's pidfd by its socket, its pid must do
    this.#pidfd = openPeerPidfd(socket) ?? openPidfd(pid);
    if (this.#pidfd === undefined) {
      this.#exit.abort(this.goneError());
    } else {
      this.#watch = new FdWatch(this.#pidfd);
      this.#watch.unref();
      this.#watch.readable().then(() => this.#exit.abort(this.goneError()), () => {}); // rejects when we are disposed
    }
  }

  /** Aborts with a PeerGoneError when the peer has exited. */
  get exit(): AbortSignal {
    return this.#exit.signal;
  }

  /** What to throw when the peer has closed the connection before its time. */
  goneError(): PeerGoneError {
    return new PeerGoneError(`Cannot go on: ${this.#name} has gone before the work was done`);
  }

  [Symbol.dispose](): void {
    this.#watch?.close();
    if (this.#pidfd !== undefined) closeFd(this.#pidfd);
  }
}
