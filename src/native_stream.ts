/** The driver's stream behind a CudaStream: counted, since buffers and waits outlive the object that the user closed. */
import type { Text } from "./arguments.ts";
import type { Address } from "../ffi/mod.ts";
import { CU_STREAM_NON_BLOCKING } from "./driver/enums.ts";
import { check } from "./driver/check.ts";
import { CUDA_ERROR_NOT_READY } from "./driver/results.ts";
import type { Context } from "./context.ts";

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

  /** The last release destroys the stream; the driver lets its queued work end first. */
  release(): void {
    if (--this.#holders > 0) return;
    this.context.removeStream(this);
    this.context.makeCurrent();
    const result = this.context.driver.streamDestroy(this.handle);
    this.context.release();
    check(result, "cuStreamDestroy", this);
  }

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
