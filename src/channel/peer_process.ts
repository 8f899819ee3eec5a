/** Another process, held by its pidfd: whether it has exited, and being told when it does. */
import { setTimeout as sleep } from "node:timers/promises";
import { inBackground } from "../background.ts";
import { PeerGoneError } from "../errors.ts";
import { closeFd, duplicateFd } from "../os/fd.ts";
import { hasExited } from "../os/process.ts";
import { FdWatch } from "../os/waiter.ts";
import type { ProcessIdentity } from "../wire/identity.ts";

const AGAIN_MS = 100;

/** Counted: leases outlive the channel that they were sent over. */
export class PeerProcess {
  readonly identity: ProcessIdentity;
  readonly #pidfd: number | undefined;
  #watch: FdWatch | undefined;
  readonly #callbacks = new Set<() => void>();
  #exited = false;
  #users = 1;

  /** Takes the pidfd over. Without one the exit is never seen. */
  constructor(identity: ProcessIdentity, pidfd: number | undefined) {
    this.identity = identity;
    this.#pidfd = pidfd;
    if (pidfd === undefined) return;
    this.#watchExit(pidfd);
  }

  /** Leases end by the exit, so a failure to wait for it (no descriptors are left, say) is no reason to give up. */
  async #watchExit(pidfd: number): Promise<void> {
    while (this.#users > 0) {
      try {
        const watch = this.#watch = new FdWatch(pidfd);
        watch.unref();
        await watch.readable();
        return this.#onExit();
      } catch {
        this.#watch?.close();
        await sleep(AGAIN_MS, undefined, { ref: false });
      }
    }
  }

  get pid(): number {
    return this.identity.pid;
  }

  /** Whether its exit can be seen at all. */
  get isWatched(): boolean {
    return this.#pidfd !== undefined;
  }

  /** Never waits. */
  hasExited(): boolean {
    if (!this.#exited && this.#pidfd !== undefined && this.#users > 0) this.#exited = hasExited(this.#pidfd);
    return this.#exited;
  }

  /** Calls back once when it has exited, in this turn if it has. Gives a function that takes it back. */
  onExit(callback: () => void): () => void {
    if (this.#exited) {
      callback();
      return () => {};
    }
    this.#callbacks.add(callback);
    return () => this.#callbacks.delete(callback);
  }

  #onExit(): void {
    this.#exited = true;
    for (const callback of [...this.#callbacks]) inBackground(`end what process ${this.pid} held`, callback);
    this.#callbacks.clear();
  }

  /** A pidfd for somebody else, who closes it. */
  duplicatePidfd(): number {
    if (this.#pidfd === undefined) throw new PeerGoneError(`Cannot pass process ${this.pid} on: it cannot be watched`);
    return duplicateFd(this.#pidfd);
  }

  hold(): void {
    this.#users++;
  }

  release(): void {
    if (--this.#users > 0 || this.#pidfd === undefined) return;
    this.#watch?.close();
    closeFd(this.#pidfd);
  }
}
