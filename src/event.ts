/** GPU events: marks in a stream's work, which other streams, the host and other processes can wait for. */
import type { Address } from "../ffi/mod.ts";
import { Action, checkBoolean, checkOptions, checkSignal, invalid, type Text } from "./arguments.ts";
import { Closable, type WaitOptions } from "./closable.ts";
import { type Context, contextOf } from "./context.ts";
import type { Device } from "./device.ts";
import { check } from "./driver/check.ts";
import { CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS } from "./driver/enums.ts";
import { CUDA_ERROR_NOT_READY } from "./driver/results.ts";
import { DeviceNotVisibleError, InvalidArgumentError, NotSupportedError, PeerGoneError, SameProcessError } from "./errors.ts";
import { nativeStream } from "./native_stream.ts";
import { ownIdentity } from "./os/process.ts";
import { ProcessWatch } from "./os/process_watch.ts";
import { pollUntil } from "./polling.ts";
import type { CudaStream, StreamDependency } from "./stream.ts";
import { EventDescriptor } from "./wire/descriptor.ts";
import { isSameProcess } from "./wire/identity.ts";

/** What kind of event to make. */
export interface EventOptions {
  /** Other processes can open it. Excludes `timing`. Default: false. */
  readonly ipc?: boolean;
  /** It measures time. Default: false. */
  readonly timing?: boolean;
}

/** The driver's event; also what remains of a CudaEvent that was not closed. */
class NativeEvent {
  readonly context: Context;
  readonly handle: Address;

  constructor(context: Context, handle: Address) {
    this.context = context;
    this.handle = handle;
    context.hold();
  }

  release(): void {
    this.context.makeCurrent();
    const result = this.context.driver.eventDestroy(this.handle);
    this.context.release();
    check(result, "cuEventDestroy", this.context);
  }
}

let createEvent: typeof newEvent;

const TOKEN: unique symbol = Symbol("CudaEvent");

/**
 * A mark in a stream's work. Made by `device.createEvent` or `stream.record`, or imported from another process. Belongs
 * to whoever made it; closing it while work waits for it is allowed.
 *
 * An event that was never recorded counts as done.
 *
 * @example
 * ```ts
 * import { Device } from "@cuda-ipc/cuda-ipc";
 *
 * using device = Device.open(0);
 * using stream = device.createStream();
 * using event = device.createEvent();
 * event.record(stream);
 * await event.finished();
 * ```
 */
export class CudaEvent extends Closable implements StreamDependency {
  readonly #device: Device;
  readonly #native: NativeEvent;
  readonly #ipc: boolean;
  readonly #timing: boolean;
  /** Only for an imported event. */
  readonly #exporter: ProcessWatch | undefined;
  #descriptor: EventDescriptor | undefined;

  /** Not for users: see `device.createEvent`, `stream.record` and {@linkcode CudaEvent.import}. */
  private constructor(
    token: typeof TOKEN,
    device: Device,
    native: NativeEvent,
    kind: { ipc: boolean; timing: boolean; descriptor?: EventDescriptor; exporter?: ProcessWatch },
  ) {
    super();
    if (token !== TOKEN) {
      throw new InvalidArgumentError("Cannot construct a CudaEvent: use device.createEvent() or CudaEvent.import()");
    }
    this.#device = device;
    this.#native = native;
    this.#ipc = kind.ipc;
    this.#timing = kind.timing;
    this.#descriptor = kind.descriptor;
    this.#exporter = kind.exporter;
    const { exporter } = kind;
    this.protect("CudaEvent", {
      release() {
        exporter?.close();
        native.release();
      },
    });
  }

  /** For `device.createEvent` and `stream.record`. */
  static {
    createEvent = (device, context, options, action) => {
      const given = checkOptions(action, options, ["ipc", "timing"]);
      const ipc = checkBoolean(action, "ipc", given.ipc, false);
      const timing = checkBoolean(action, "timing", given.timing, false);
      if (ipc && timing) {
        throw new InvalidArgumentError(
          `Cannot ${action}: ipc and timing exclude each other in the driver. Measure with a second event of this process`,
        );
      }
      context.hold();
      try {
        context.makeCurrent();
        const flags = (ipc ? CU_EVENT_INTERPROCESS : 0) | (timing ? 0 : CU_EVENT_DISABLE_TIMING);
        check(context.driver.eventCreate(flags), "cuEventCreate", context);
        return new CudaEvent(TOKEN, device, new NativeEvent(context, context.driver.out.readAddress(0)), { ipc, timing });
      } finally {
        context.release();
      }
    };
  }

  /**
   * Opens an event of another process (`cuIpcOpenEventHandle`). What it waits for is what the exporter recorded last at
   * the time of each use. The import is closed by its holder; it works on when the exporter has closed its own.
   *
   * An unfinished event of a process that died stays unfinished for ever, so `finished()` and `wait` end with
   * {@linkcode PeerGoneError} then. A death between the check and the wait on the stream cannot be seen: prefer fences.
   *
   * @throws {SameProcessError} when this process exported it: use the event itself.
   * @throws {DeviceNotVisibleError} when it belongs to another device.
   * @throws {ProtocolError} when the bytes of the descriptor are damaged (at `EventDescriptor.fromBytes`).
   */
  static import(device: Device, descriptor: EventDescriptor): CudaEvent {
    const context = contextOf(device, "import an event");
    const action = new Action("import an event on", context);
    if (!(descriptor instanceof EventDescriptor)) throw invalid(action, "descriptor", descriptor, "an EventDescriptor");
    if (isSameProcess(descriptor.exporter, ownIdentity())) {
      throw new SameProcessError(`Cannot ${action}: it was exported by this process. Use the CudaEvent itself`);
    }
    if (descriptor.deviceUuid !== device.uuid) {
      throw new DeviceNotVisibleError(
        `Cannot ${action}: the event belongs to ${descriptor.deviceUuid}, this is ${device.uuid}. Import it on its own device`,
      );
    }
    const exporter = new ProcessWatch(descriptor.exporter);
    try {
      context.hold();
      try {
        context.makeCurrent();
        check(context.driver.ipcOpenEventHandle(descriptor.opaque), "cuIpcOpenEventHandle", context);
        const native = new NativeEvent(context, context.driver.out.readAddress(0));
        return new CudaEvent(TOKEN, device, native, { ipc: true, timing: false, descriptor, exporter });
      } finally {
        context.release();
      }
    } catch (error) {
      exporter.close();
      throw error;
    }
  }

  /** The device whose work it marks. */
  get device(): Device {
    return this.#device;
  }

  /** Whether it came from another process. */
  get isImported(): boolean {
    return this.#exporter !== undefined;
  }

  /** Marks what the stream has queued by now (`cuEventRecord`). An importer may record too. */
  record(stream: CudaStream): void {
    this.checkOpen("record an event");
    const native = nativeStream(stream, "record an event");
    if (native.context !== this.#native.context) {
      throw new InvalidArgumentError(
        `Cannot record ${this}: the stream belongs to ${native.context}. Use a stream of the event's device, or an event of its own`,
      );
    }
    this.#native.context.makeCurrent();
    check(this.#native.context.driver.eventRecord(this.#native.handle, native.handle), "cuEventRecord", this);
  }

  /** Whether the marked work is done (`cuEventQuery`). True for an event that was never recorded. */
  get isDone(): boolean {
    this.checkOpen("query an event");
    const result = this.#native.context.driver.eventQuery(this.#native.handle);
    if (result === CUDA_ERROR_NOT_READY) return false;
    check(result, "cuEventQuery", this);
    return true;
  }

  /**
   * Blocks this thread, and with it the event loop, until the marked work is done (`cuEventSynchronize`).
   * {@linkcode finished} does not block. Refused for an imported event, whose exporter's death would make it a hang.
   */
  synchronize(): void {
    this.checkOpen("synchronize with an event");
    if (this.#exporter !== undefined) {
      throw new NotSupportedError(
        `Cannot synchronize with ${this}: it is imported, and would block for ever if its exporter died. Use await finished()`,
      );
    }
    check(this.#native.context.driver.eventSynchronize(this.#native.handle), "cuEventSynchronize", this);
  }

  /**
   * Resolves when the marked work is done; the event loop goes on.
   *
   * @throws {PeerGoneError} when the event is imported and its exporter died with the work unfinished.
   */
  async finished(options?: WaitOptions): Promise<void> {
    this.checkOpen("wait for an event");
    const signal = checkSignal("wait for an event", checkOptions("wait for an event", options, ["signal"]).signal);
    await pollUntil(() => {
      if (this.isDone) return true;
      this.#checkExporter("wait for");
      return false;
    }, signal);
  }

  /** The time from `start` to this event in ms (`cuEventElapsedTime`). Both have `timing` and are done. */
  elapsedMsSince(start: CudaEvent): number {
    this.checkOpen("measure time");
    if (!(start instanceof CudaEvent)) throw invalid("measure time", "start", start, "a CudaEvent");
    start.checkOpen("measure time");
    if (!this.#timing || !start.#timing) {
      throw new InvalidArgumentError("Cannot measure time: both events need { timing: true } at their creation");
    }
    const { driver } = this.#native.context;
    check(driver.eventElapsedTime(start.#native.handle, this.#native.handle), "cuEventElapsedTime", this);
    return driver.out.view.getFloat32(0, true);
  }

  /**
   * What another process needs to import the event (`cuIpcGetEventHandle`), made once. Of an imported event it is what
   * it came from, so that it may be sent on.
   *
   * @throws {InvalidArgumentError} when the event was made without `ipc`.
   */
  get ipcDescriptor(): EventDescriptor {
    this.checkOpen("export an event");
    return this.#descriptor ??= this.#export();
  }

  #export(): EventDescriptor {
    if (!this.#ipc) {
      throw new InvalidArgumentError("Cannot export an event: it was made without { ipc: true }");
    }
    const { context, handle } = this.#native;
    context.makeCurrent();
    check(context.driver.ipcGetEventHandle(handle), "cuIpcGetEventHandle", this);
    return new EventDescriptor({
      deviceUuid: this.#device.uuid,
      exporter: ownIdentity(),
      opaque: context.driver.out.bytes.slice(0, 64),
    });
  }

  /** Makes later work of `stream` wait for the marked work (`cuStreamWaitEvent`). `stream.wait(event)` calls it. */
  orderBefore(stream: CudaStream): void {
    this.checkOpen("wait for an event");
    const native = nativeStream(stream, "wait for an event");
    if (this.#exporter !== undefined && !this.isDone) this.#checkExporter("make a stream wait for");
    native.context.makeCurrent();
    check(native.context.driver.streamWaitEvent(native.handle, this.#native.handle, 0), "cuStreamWaitEvent", this);
  }

  #checkExporter(action: Text): void {
    if (this.#exporter?.hasExited() && !this.isDone) {
      throw new PeerGoneError(
        `Cannot ${action} ${this}: its exporter, process ${this.#exporter.pid}, has exited with it unfinished`,
      );
    }
  }

  /** Called once, by `close`. */
  protected override onClose(): void {
    this.#exporter?.close();
    this.#native.release();
  }

  /** A short name for messages. */
  override toString(): string {
    return `CudaEvent of ${this.#native.context}${this.isImported ? " (imported)" : ""}`;
  }
}

/** Makes an event; `action` says for whom, in messages. */
export function newEvent(device: Device, context: Context, options: EventOptions | undefined, action: Text): CudaEvent {
  return createEvent(device, context, options, action);
}
