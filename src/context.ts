/** A device's primary context, counted, and which context is current on this thread. */
import type { Text } from "./arguments.ts";
import type { Address } from "../ffi/mod.ts";
import { addressFromNumber } from "../ffi/mod.ts";
import { check } from "./driver/check.ts";
import type { CudaDriver } from "./driver/driver.ts";
import { CU_EVENT_DISABLE_TIMING } from "./driver/enums.ts";

/** What a context knows of its streams. */
interface ContextStream {
  readonly handle: Address;
  hasWork(): boolean;
}

/** Told of each stream that is made and given back. */
export interface StreamObserver {
  added(driver: CudaDriver, handle: Address): void;
  removed(handle: Address): void;
}
let streamObserver: StreamObserver | undefined;

/** For the layer that keeps what a thread leaves behind. */
export function observeStreams(observer: StreamObserver): void {
  streamObserver = observer;
}

// One word for each thread: every Worker has its own copy of this module.
let current: Context | undefined;

/** The primary context of one device, for this thread. Retained while somebody holds it. */
export class Context {
  readonly driver: CudaDriver;
  readonly ordinal: number;
  /** The CUdevice. */
  readonly device: number;
  #handle: Address | undefined;
  #holders = 0;
  #order: Address | undefined;
  readonly #beforeRelease: (() => void)[] = [];
  readonly #streams = new Set<ContextStream>();

  constructor(driver: CudaDriver, ordinal: number, device: number) {
    this.driver = driver;
    this.ordinal = ordinal;
    this.device = device;
  }

  /** The CUcontext. The caller holds the context. */
  get handle(): Address {
    return this.#handle!;
  }

  hold(): void {
    if (this.#holders === 0) {
      check(this.driver.devicePrimaryCtxRetain(this.device), "cuDevicePrimaryCtxRetain", this);
      this.#handle = this.driver.out.readAddress(0);
    }
    this.#holders++;
  }

  release(): void {
    if (--this.#holders > 0) return;
    for (const end of this.#beforeRelease.splice(0)) end();
    if (this.#order !== undefined) {
      check(this.driver.eventDestroy(this.#order), "cuEventDestroy", this);
      this.#order = undefined;
    }
    if (current === this) {
      current = undefined;
      check(this.driver.ctxSetCurrent(addressFromNumber(0)), "cuCtxSetCurrent", this);
    }
    this.#handle = undefined;
    check(this.driver.devicePrimaryCtxRelease(this.device), "cuDevicePrimaryCtxRelease", this);
  }

  /** Registers what must be given back before the context goes. */
  beforeRelease(end: () => void): void {
    this.#beforeRelease.push(end);
  }

  addStream(stream: ContextStream): void {
    this.#streams.add(stream);
    streamObserver?.added(this.driver, stream.handle);
  }

  removeStream(stream: ContextStream): void {
    this.#streams.delete(stream);
    streamObserver?.removed(stream.handle);
  }

  /** Whether no stream of this thread has work queued on the device. */
  isIdle(): boolean {
    for (const stream of this.#streams) if (stream.hasWork()) return false;
    return true;
  }

  /** Before every call that needs a current context. */
  makeCurrent(): void {
    if (current !== this) this.#setCurrent();
  }

  #setCurrent(): void {
    check(this.driver.ctxSetCurrent(this.#handle!), "cuCtxSetCurrent", this);
    current = this;
  }

  /** Work queued on `later` from now on runs behind what `earlier` has queued by now. Neither host waits. */
  orderStreams(earlier: Address, later: Address): void {
    this.makeCurrent();
    if (this.#order === undefined) {
      check(this.driver.eventCreate(CU_EVENT_DISABLE_TIMING), "cuEventCreate", this);
      this.#order = this.driver.out.readAddress(0);
    }
    // A wait keeps the recording that it saw, so one event serves all
    check(this.driver.eventRecord(this.#order, earlier), "cuEventRecord", this);
    check(this.driver.streamWaitEvent(later, this.#order, 0), "cuStreamWaitEvent", this);
  }

  toString(): string {
    return `device ${this.ordinal}`;
  }
}

/** Gives the Context of an open Device, else throws InvalidArgumentError or ClosedError. */
type ContextAccess = (value: unknown, action: Text) => Context;
let access: ContextAccess;

/** device.ts lends its view into Device, so that the modules below it need not import it. */
export function provideContextAccess(provided: ContextAccess): void {
  access = provided;
}

export function contextOf(device: unknown, action: Text): Context {
  return access(device, action);
}
