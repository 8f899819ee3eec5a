/** A mark behind a stream's queued work, for the host to look at. */
import type { Address } from "../ffi/mod.ts";
import { check } from "./driver/check.ts";
import { CU_EVENT_DISABLE_TIMING } from "./driver/enums.ts";
import { CUDA_ERROR_NOT_READY } from "./driver/results.ts";
import type { NativeStream } from "./native_stream.ts";
import { pollUntil } from "./polling.ts";

/** Holds the stream until it is released. */
export class Completion {
  readonly #stream: NativeStream;
  #event: Address | undefined;

  /** Marks what `stream` has queued by now. */
  constructor(stream: NativeStream) {
    const { context } = stream;
    context.makeCurrent();
    check(context.driver.eventCreate(CU_EVENT_DISABLE_TIMING), "cuEventCreate", context);
    this.#event = context.driver.out.readAddress(0);
    this.#stream = stream;
    stream.hold();
    this.mark();
  }

  /** Moves the mark behind what the stream has queued by now. */
  mark(): void {
    check(this.#stream.context.driver.eventRecord(this.#event!, this.#stream.handle), "cuEventRecord", this.#stream);
  }

  /** Throws when the work has failed. */
  isDone(): boolean {
    const result = this.#query();
    if (result === CUDA_ERROR_NOT_READY) return false;
    check(result, "cuEventQuery", this.#stream);
    return true;
  }

  /** Whether nothing of the work goes on, be it done or failed. */
  isOver(): boolean {
    return this.#query() !== CUDA_ERROR_NOT_READY;
  }

  hasFailed(): boolean {
    const result = this.#query();
    return result !== 0 && result !== CUDA_ERROR_NOT_READY;
  }

  #query(): number {
    return this.#stream.context.driver.eventQuery(this.#event!);
  }

  release(): void {
    if (this.#event === undefined) return;
    const { context } = this.#stream;
    const event = this.#event;
    this.#event = undefined;
    context.makeCurrent();
    const result = context.driver.eventDestroy(event);
    this.#stream.release();
    check(result, "cuEventDestroy", context);
  }
}

/** Resolves when everything that the stream has queued by now is done. */
export async function streamFinished(stream: NativeStream, signal: AbortSignal | undefined): Promise<void> {
  if (stream.isIdle()) return;
  const completion = new Completion(stream);
  try {
    await pollUntil(() => completion.isDone(), signal);
  } finally {
    completion.release();
  }
}
