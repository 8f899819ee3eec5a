/** Watching another process, named by its identity, for its exit. */
import type { ProcessIdentity } from "../wire/identity.ts";
import { closeFd } from "./fd.ts";
import { hasExited, openPidfd, ownIdentity, processStartTime } from "./process.ts";
import { closeHandle, hasProcessExited, IS_WINDOWS, openProcessHandle } from "./windows.ts";

/** Holds a pidfd of the process (on Windows a handle) until it is closed. */
export class ProcessWatch {
  readonly pid: number;
  #pidfd: number | undefined;
  #exited = false;

  constructor(identity: ProcessIdentity) {
    this.pid = identity.pid;
    const own = ownIdentity();
    // A pid of another pid namespace means nothing here: such a process cannot be watched by its identity alone
    if (identity.bootId !== own.bootId || identity.pidNamespace !== own.pidNamespace) return;
    if (IS_WINDOWS) {
      this.#pidfd = openProcessHandle(identity, `Cannot watch process ${identity.pid}`);
      this.#exited = this.#pidfd === undefined;
      return;
    }
    this.#pidfd = openPidfd(identity.pid);
    try {
      // Asked after the opening: if the pid was used again before, the start time tells
      this.#exited = this.#pidfd === undefined || processStartTime(identity.pid) !== identity.startTime;
    } catch (error) {
      this.close();
      throw error;
    }
  }

  /** Whether the process is known to have exited. Never waits; false where it cannot be watched. */
  hasExited(): boolean {
    if (!this.#exited && this.#pidfd !== undefined) {
      this.#exited = IS_WINDOWS ? hasProcessExited(this.#pidfd) : hasExited(this.#pidfd);
    }
    return this.#exited;
  }

  close(): void {
    if (this.#pidfd === undefined) return;
    if (IS_WINDOWS) closeHandle(this.#pidfd);
    else closeFd(this.#pidfd);
    this.#pidfd = undefined;
  }
}
