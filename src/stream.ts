/** GPU streams: queues of work that runs in order. */
import { Action, checkBoolean, checkInteger, checkOptions, checkSignal, invalid, type Text } from "./arguments.ts";
import { Closable, type WaitOptions } from "./closable.ts";
import { streamFinished } from "./completion.ts";
import type { Context } from "./context.ts";
import type { Device } from "./device.ts";
import { check } from "./driver/check.ts";
import { ClosedError, InvalidArgumentError } from "./errors.ts";
import { type CudaEvent, type EventOptions, newEvent } from "./event.ts";
import { NativeStream, nativeStream, provideStreamAccess } from "./native_stream.ts";

/** How to make a stream. */
export interface StreamOptions {
  /** It does not wait for the legacy default stream. Default: true. */
  readonly nonBlocking?: boolean;
  /** Lower numbers go first; the device's range is asked for. Default: the lowest priority (0). */
  readonly priority?: number;
}

/** Something that a stream can wait for: an event, another stream, a lease. */
export interface StreamDependency {
  /** Makes later work of `stream` wait for this. `stream.wait` calls it. */
  orderBefore(stream: CudaStream): void;
}

/** A word that streams write and wait for: a `SharedFence`. */
export interface StreamFence {
  /** Raises the fence to `value` behind the stream's queued work. `stream.signal` calls it. */
  signalAfter(stream: CudaStream, value: bigint): void;
  /** Makes later work of `stream` wait until the fence has reached `value`. `stream.waitFor` calls it. */
  waitBefore(stream: CudaStream, value: bigint): void;
}

let createStream: (device: Device, context: Context, options: StreamOptions | undefined) => CudaStream;

const TOKEN: unique symbol = Symbol("CudaStream");

/**
 * A queue of GPU work. Made by `device.createStream`, closed by whoever made it: queued work still ends, and buffers
 * that are freed on it stay valid until then.
 *
 * @example
 * ```ts
 * import { Device } from "@cuda-ipc/cuda-ipc";
 *
 * using device = Device.open(0);
 * using stream = device.createStream();
 * await stream.finished();
 * ```
 */
export class CudaStream extends Closable implements StreamDependency {
  readonly #device: Device;
  readonly #native: NativeStream;

  /** Not for users: see `device.createStream`. */
  private constructor(token: typeof TOKEN, device: Device, native: NativeStream) {
    super();
    if (token !== TOKEN) throw new InvalidArgumentError("Cannot construct a CudaStream: use device.createStream()");
    this.#device = device;
    this.#native = native;
    this.protect("CudaStream", native);
  }

  static {
    provideStreamAccess((value, action) => {
      if (typeof value !== "object" || value === null || !(#native in value)) {
        throw invalid(action, "stream", value, "a CudaStream");
      }
      if (value.isClosed) throw new ClosedError(`Cannot ${action}: the stream is closed`);
      return value.#native;
    });
    createStream = (device, context, options) => {
      const action = new Action("create a stream on", context);
      const given = checkOptions(action, options, ["nonBlocking", "priority"]);
      const nonBlocking = checkBoolean(action, "nonBlocking", given.nonBlocking, true);
      if (given.priority !== undefined) checkPriority(context, action, given.priority);
      return new CudaStream(TOKEN, device, NativeStream.create(context, nonBlocking, given.priority ?? 0));
    };
  }

  /** The device that does the work. */
  get device(): Device {
    return this.#device;
  }

  /** Blocks this thread, and with it the event loop, until all queued work is done (`cuStreamSynchronize`). */
  synchronize(): void {
    this.checkOpen("synchronize");
    check(this.#native.context.driver.streamSynchronize(this.#native.handle), "cuStreamSynchronize", this);
  }

  /** Resolves when all work queued by now is done; the event loop goes on. */
  async finished(options?: WaitOptions): Promise<void> {
    this.checkOpen("wait for a stream");
    const signal = checkSignal("wait for a stream", checkOptions("wait for a stream", options, ["signal"]).signal);
    await streamFinished(this.#native, signal);
  }

  /** Whether all queued work is done (`cuStreamQuery`). */
  get isIdle(): boolean {
    this.checkOpen("query");
    return this.#native.isIdle();
  }

  /** Makes work queued from now on wait for the given thing; the host goes on. */
  wait(dependency: StreamDependency): void {
    this.checkOpen("wait");
    if (typeof dependency?.orderBefore !== "function") {
      throw invalid("make a stream wait", "dependency", dependency, "a CudaEvent, a CudaStream or a lease");
    }
    dependency.orderBefore(this);
  }

  /**
   * Raises a fence behind what is queued by now (`cuStreamWriteValue64`): whoever waits for `value` goes on, in any process.
   *
   * @throws {InvalidArgumentError} when `value` is not above the last one, or another process writes the fence.
   */
  signal(fence: StreamFence, value: bigint): void {
    this.checkOpen("signal a fence");
    if (typeof fence?.signalAfter !== "function") throw invalid("signal a fence", "fence", fence, "a SharedFence");
    fence.signalAfter(this, value);
  }

  /**
   * Makes work queued from now on wait until a fence has reached `value` (`cuStreamWaitValue64`); the host goes on.
   *
   * @throws {PeerGoneError} when the process that writes the fence has exited below `value`.
   */
  waitFor(fence: StreamFence, value: bigint): void {
    this.checkOpen("wait for a fence");
    if (typeof fence?.waitBefore !== "function") throw invalid("make a stream wait", "fence", fence, "a SharedFence");
    fence.waitBefore(this, value);
  }

  /** Makes an event and records it behind what is queued by now. The caller closes it. */
  record(options?: EventOptions): CudaEvent {
    this.checkOpen("record an event");
    const event = newEvent(this.#device, this.#native.context, options, "record an event");
    try {
      event.record(this);
      return event;
    } catch (error) {
      event.close();
      throw error;
    }
  }

  /** Makes later work of `stream` wait for what this one has queued by now. */
  orderBefore(stream: CudaStream): void {
    this.checkOpen("order a stream");
    const later = nativeStream(stream, "order a stream");
    this.#native.context.orderStreams(this.#native.handle, later.handle);
  }

  /** Called once, by `close`. */
  protected override onClose(): void {
    this.#native.release();
  }

  /** A short name for messages. */
  override toString(): string {
    return `CudaStream of ${this.#native.context}`;
  }
}

function checkPriority(context: Context, action: Text, priority: unknown): void {
  context.hold();
  try {
    context.makeCurrent();
    check(context.driver.ctxGetStreamPriorityRange(), "cuCtxGetStreamPriorityRange", context);
    checkInteger(action, "priority", priority, context.driver.out.readI32(8), context.driver.out.readI32(0));
  } finally {
    context.release();
  }
}

/** Makes a stream on a device. */
export function newStream(device: Device, context: Context, options: StreamOptions | undefined): CudaStream {
  return createStream(device, context, options);
}
