/** What every object that owns something of the driver's has in common: closing once, and a safety net. */
import process from "node:process";
import { checkOptions, checkSignal, withArticle } from "./arguments.ts";
import { inBackground } from "./background.ts";
import { ClosedError, CudaDriverError } from "./errors.ts";

/** Options of `closeAsync` and other waits. */
export interface WaitOptions {
  /** Ends the wait: the promise rejects with the signal's reason. What was begun goes on. */
  readonly signal?: AbortSignal;
}

/** What remains of an object that was collected without being closed. It must not refer to the object. */
export interface Remains {
  /** Gives the driver its resource back. Called once. */
  release(): void;
}

/**
 * Objects that the safety net does not know yet. Registering costs 50 to 300 ns (more than an allocation from a pool
 * may add), so one that is closed in the turn of the event loop that made it never pays.
 */
const young: Closable[] = [];
const MAX_YOUNG = 1024;

const warned = new Set<string>();
const safetyNet = new FinalizationRegistry<{ className: string; remains: Remains }>(({ className, remains }) => {
  if (!warned.has(className)) {
    warned.add(className);
    process.emitWarning(
      `${
        withArticle(className).replace("a", "A")
      } was garbage-collected without close(); it is freed now. Close it, or declare it with "using" ` +
        `(said once for each class)`,
      { type: "CudaIpcWarning", code: "CUDA_IPC_NOT_CLOSED" },
    );
  }
  inBackground(`free a ${className} that was garbage-collected`, () => remains.release(), "CUDA_IPC_NOT_FREED");
});

let register: (object: Closable) => void;
let isRegistering = false;

function registerYoung(): void {
  isRegistering = false;
  for (const object of young) register(object);
  young.length = 0;
}

/**
 * An object with an end: `close()` may be called any number of times, `using` and `await using` call it, and every
 * use after it throws {@linkcode ClosedError}. Garbage collection is a safety net only: it warns once for each class.
 */
export abstract class Closable implements Disposable, AsyncDisposable {
  #closed = false;
  #className = "";
  #remains: Remains | undefined;
  #isRegistered = false;
  /** Its place among the young ones; below 0 where it is none of them. */
  #place = -1;

  static {
    register = (object) => {
      object.#place = -1;
      object.#isRegistered = true;
      safetyNet.register(object, { className: object.#className, remains: object.#remains! }, object);
    };
  }

  /** Whether the object was closed. */
  get isClosed(): boolean {
    return this.#closed;
  }

  /**
   * Closes the object: at once for its user, for the driver when no work uses it any more. Never blocks. Of a context that is lost
   * (a kernel has failed) nothing is left to give back, and that is no error.
   */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    if (this.#isRegistered) safetyNet.unregister(this);
    else if (this.#place >= 0) this.#leaveYoung();
    try {
      this.onClose();
    } catch (error) {
      // With its context everything is gone; an error here would only hide the one that told so
      if (!(error instanceof CudaDriverError && error.isContextLost)) throw error;
    }
  }

  /**
   * Closes the object and waits until the driver has what it owned.
   *
   * @throws {unknown} the signal's reason, when it aborts the wait; the closing goes on.
   */
  async closeAsync(options?: WaitOptions): Promise<void> {
    const action = `close ${this}`;
    const signal = checkSignal(action, checkOptions(action, options, ["signal"]).signal);
    this.close();
    await this.settled(signal);
  }

  /** The same as {@linkcode close}. */
  [Symbol.dispose](): void {
    this.close();
  }

  /** The same as {@linkcode closeAsync}. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.closeAsync();
  }

  /** Called once, by `close`. */
  protected abstract onClose(): void;

  /** Settles when what `onClose` handed on is done. */
  protected settled(_signal: AbortSignal | undefined): Promise<void> {
    return Promise.resolve();
  }

  /** Puts the object under the safety net. */
  protected protect(className: string, remains: Remains): void {
    this.#className = className;
    this.#remains = remains;
    this.#place = young.push(this) - 1;
    if (young.length > MAX_YOUNG) registerYoung();
    else if (!isRegistering) {
      isRegistering = true;
      queueMicrotask(registerYoung);
    }
  }

  /** At once: kept for longer, it would have to be copied by the next collection. */
  #leaveYoung(): void {
    const last = young.pop()!;
    if (last === this) return;
    young[this.#place] = last;
    last.#place = this.#place;
  }

  /** Throws {@linkcode ClosedError} once the object is closed. */
  protected checkOpen(action: { toString(): string }): void {
    if (this.isClosed) throw new ClosedError(`Cannot ${action}: ${this} is closed`);
  }
}
