/** The driver's stream behind a CudaStream: counted, since buffers and waits outlive the object that the user closed. */
import { setTimeout } from "node:timers";
import type { Text } from "./arguments.ts";
import { inBackground } from "./background.ts";
import type { Address } from "../ffi/mod.ts";
import { CU_STREAM_NON_BLOCKING } from "./driver/enums.ts";
import { check } from "./driver/check.ts";
import { CUDA_ERROR_NOT_READY } from "./driver/results.ts";
import type { Context } from "./context.ts";

const END_INTERVAL_MS = 5;

/** Streams that nobody holds any more and that have work queued. At process exit nothing is waited for. */
const ending = new Set<NativeStream>();
let timer: ReturnType<typeof setTimeout> | undefined;

function endLater(): void {
  if (timer !== undefined || ending.size === 0) return;
  timer = setTimeout(() => {
    timer = undefined;
    for (const stream of [...ending]) inBackground("destroy a stream", () => stream.endIfIdle());
    endLater();
  }, END_INTERVAL_MS);
  timer.unref();
}

export class NativeStream {
  readonly context: Context;
  readonly handle: Address;
  #holders = 1;

  /** The caller holds the context for it. */
  protected constructor(context: Context, handle: Address) {
    this.context = context;
    this.handle = handle;
  }

  static create(context: Context, nonBlocking: boolean, priority: number): NativeStream {
    context.hold();
    try {
      context.makeCurrent();
      const flags = nonBlocking ? CU_STREAM_NON_BLOCKING : 0;
      check(context.driver.streamCreateWithPriority(flags, priority), "cuStreamCreateWithPriority", context);
      const stream = new NativeStream(context, context.driver.out.readAddress(0));
      context.addStream(stream);
      return stream;
    } catch (error) {
      context.release();
      throw error;
    }
  }

  hold(): void {
    this.#holders++;
  }

  /**
   * The last release destroys the stream, when its queued work has ended: what waits for an idle device must see that work.
   */
  release(): void {
    if (--this.#holders > 0) return;
    if (this.hasWork()) {
      ending.add(this);
      endLater();
    } else this.#destroy();
  }

  /** Whether something must wait before it is given back. A stream whose context is lost has no work. */
  hasWork(): boolean {
    return this.context.driver.streamQuery(this.handle) === CUDA_ERROR_NOT_READY;
  }

  /** Destroys a stream that nobody holds, if its work has ended now. */
  endIfIdle(): void {
    if (this.hasWork()) return;
    ending.delete(this);
    this.#destroy();
  }

  #destroy(): void {
    this.context.removeStream(this);
    this.context.makeCurrent();
    const result = this.context.driver.streamDestroy(this.handle);
    this.context.release();
    check(result, "cuStreamDestroy", this);
  }

  /** Whether all its work is done. Throws when its context is lost. */
  isIdle(): boolean {
    const result = this.context.driver.streamQuery(this.handle);
    if (result === CUDA_ERROR_NOT_READY) return false;
    check(result, "cuStreamQuery", this);
    return true;
  }

  toString(): string {
    return `a stream of ${this.context}`;
  }
}

/** Gives the NativeStream of an open CudaStream, else throws InvalidArgumentError or ClosedError. */
type StreamAccess = (value: unknown, action: Text) => NativeStream;
let access: StreamAccess;

/** stream.ts lends its view into CudaStream, so that the modules below it need not import it. */
export function provideStreamAccess(provided: StreamAccess): void {
  access = provided;
}

export function nativeStream(value: unknown, action: Text): NativeStream {
  return access(value, action);
}
