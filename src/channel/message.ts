/** What was received, and giving it back. */
import { checkOptions } from "../arguments.ts";
import { InvalidArgumentError } from "../errors.ts";
import type { CudaEvent } from "../event.ts";
import type { AllocationHandle } from "../memory/allocation_handle.ts";
import { bufferParts, type DeviceBuffer } from "../memory/buffer.ts";
import { nativeStream } from "../native_stream.ts";
import type { SharedFence } from "../share/fence.ts";
import type { CudaStream } from "../stream.ts";

/** Options of `message.release`. */
export interface ReleaseOptions {
  /** The stream whose queued work is the last to use the buffers. Default: for each buffer the stream it was received on. */
  readonly after?: CudaStream;
}

/** The parts of a message. */
export interface MessageParts {
  readonly data: unknown;
  readonly buffers: Readonly<Record<string, DeviceBuffer>>;
  readonly events: Readonly<Record<string, CudaEvent>>;
  readonly fences: Readonly<Record<string, SharedFence>>;
  readonly handles: Readonly<Record<string, AllocationHandle>>;
}

const TOKEN: unique symbol = Symbol("IpcMessage");
let make: (parts: MessageParts, handedOver: () => Promise<void>) => IpcMessage;

/**
 * A message from another process. Its buffers are that process's memory, which it keeps until they are released here: by
 * {@linkcode IpcMessage.release}, by `await using`, or one by one by `buffer.free()`. Events, fences and handles belong to
 * you, and stay when the message is released; close each of them when you need it no more.
 *
 * @example
 * ```ts ignore
 * await using message = await channel.receive({ stream });
 * target.copyFrom(message.buffers.frame, { stream });
 * ```
 */
export class IpcMessage implements AsyncDisposable {
  /** What was sent as `data`. */
  readonly data: unknown;
  /** The buffers, by the names that they were sent with. */
  readonly buffers: Readonly<Record<string, DeviceBuffer>>;
  /** The events, by name. */
  readonly events: Readonly<Record<string, CudaEvent>>;
  /** The fences, by name. */
  readonly fences: Readonly<Record<string, SharedFence>>;
  /** The handles, by name. */
  readonly handles: Readonly<Record<string, AllocationHandle>>;
  readonly #handedOver: () => Promise<void>;

  /** Not for users: see `channel.receive`. */
  private constructor(token: typeof TOKEN, parts: MessageParts, handedOver: () => Promise<void>) {
    if (token !== TOKEN) throw new InvalidArgumentError("Cannot construct an IpcMessage: use channel.receive()");
    this.data = parts.data;
    this.buffers = parts.buffers;
    this.events = parts.events;
    this.fences = parts.fences;
    this.handles = parts.handles;
    this.#handedOver = handedOver;
  }

  static {
    make = (parts, handedOver) => new IpcMessage(TOKEN, parts, handedOver);
  }

  /** Whether every buffer in it was released. */
  get isReleased(): boolean {
    return Object.values(this.buffers).every((buffer) => buffer.isFreed);
  }

  /**
   * Releases the buffers: they end here at once, and the sender may use or free their memory when the work that is queued
   * by now is done. Settles when the release was handed over. Releasing twice is allowed.
   */
  async release(options?: ReleaseOptions): Promise<void> {
    const action = "release a message";
    const { after } = checkOptions(action, options, ["after"]);
    if (after !== undefined) nativeStream(after, action);
    for (const buffer of Object.values(this.buffers)) {
      if (buffer.isFreed) continue;
      if (after === undefined) buffer.free();
      else freeAfter(buffer, after);
    }
    await this.#handedOver();
  }

  /** The same as {@linkcode release}. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }
}

/** Also where the stream is another device's: then the buffer's own stream waits for it. */
function freeAfter(buffer: DeviceBuffer, after: CudaStream): void {
  const { allocation, device } = bufferParts(buffer, "release a message");
  if (after.device === device) return buffer.free({ stream: after });
  if (device === null) return buffer.free(); // only the host has used it
  const stream = nativeStream(after, "release a message");
  stream.context.orderStreams(stream.handle, allocation.stream.handle);
  buffer.free();
}

export function newMessage(parts: MessageParts, handedOver: () => Promise<void>): IpcMessage {
  return make(parts, handedOver);
}
