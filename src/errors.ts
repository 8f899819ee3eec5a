/**
 * Every error that this module throws. One tree under {@linkcode CudaIpcError}; each class says what the user must do.
 *
 * @module
 */

/** What an error may carry besides its message. */
export interface CudaIpcErrorOptions {
  /** The error behind this one. */
  readonly cause?: unknown;
}

/** The root of the tree: `catch (e) { if (e instanceof CudaIpcError) … }` sees all of them. */
export class CudaIpcError extends Error {
  /** The class's own name, also where code is minified. */
  override readonly name: string = "CudaIpcError";

  /** Makes an error with a message and, where there is one, its cause. */
  constructor(message: string, options?: CudaIpcErrorOptions) {
    super(message, options);
  }
}

/** What a {@linkcode CudaDriverError} knows about the failed call. */
export interface CudaDriverErrorOptions extends CudaIpcErrorOptions {
  /** The CUresult number. */
  readonly code: number;
  /** The result's name in cuda.h, such as `CUDA_ERROR_INVALID_VALUE`. */
  readonly resultName: string;
  /** The driver function, such as `cuMemPoolCreate`. */
  readonly call: string;
  /** The likely cause and what to do, where known. */
  readonly hint?: string;
}

/** Results that cuda.h explains with "the process must be terminated and relaunched", and a failed assertion. */
const LOST_CONTEXT: ReadonlySet<number> = new Set([700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810]);

/** A CUDA driver call failed. */
export class CudaDriverError extends CudaIpcError {
  /** The class's own name. */
  override readonly name: string = "CudaDriverError";
  /** The CUresult number. */
  readonly code: number;
  /** The result's name in cuda.h, such as `CUDA_ERROR_INVALID_VALUE`. */
  readonly resultName: string;
  /** The driver function that failed. */
  readonly call: string;
  /** The likely cause and what to do, where known. */
  readonly hint: string | undefined;

  /** Makes an error for one failed driver call. */
  constructor(message: string, options: CudaDriverErrorOptions) {
    super(message, options);
    this.code = options.code;
    this.resultName = options.resultName;
    this.call = options.call;
    this.hint = options.hint;
  }

  /**
   * Whether the device's context is lost, as after a kernel that failed: all its memory is gone, every further call fails, and only
   * a new process helps. Closing what it had is still allowed.
   */
  get isContextLost(): boolean {
    return LOST_CONTEXT.has(this.code);
  }
}

/** The device, the pool's `maxBytes` or the host has no memory left for the request: free something and try again. */
export class OutOfMemoryError extends CudaDriverError {
  /** The class's own name. */
  override readonly name: string = "OutOfMemoryError";
}

/** There is no CUDA driver here, or it cannot be used: install one, or choose the simulator by name. */
export class DriverNotFoundError extends CudaIpcError {
  /** The class's own name. */
  override readonly name: string = "DriverNotFoundError";
}

/** An argument has the wrong type or lies outside its range: change the call. The driver was not called. */
export class InvalidArgumentError extends CudaIpcError {
  /** The class's own name. */
  override readonly name: string = "InvalidArgumentError";
}

/** The object was closed, freed or released before: do not use it any more. */
export class ClosedError extends CudaIpcError {
  /** The class's own name. */
  override readonly name: string = "ClosedError";
}

/** The driver shares this only between processes, and both ends are the same one: use the original object. */
export class SameProcessError extends CudaIpcError {
  /** The class's own name. */
  override readonly name: string = "SameProcessError";
}

/** This device, driver, platform or kind of object cannot do it; the message says why and what can be done instead. */
export class NotSupportedError extends CudaIpcError {
  /** The class's own name. */
  override readonly name: string = "NotSupportedError";
}

/** The memory lies on a device which this process does not see: check CUDA_VISIBLE_DEVICES. */
export class DeviceNotVisibleError extends CudaIpcError {
  /** The class's own name. */
  override readonly name: string = "DeviceNotVisibleError";
}

/** A pool allocation too large to be imported: the driver would kill the importing process. Nothing was imported. */
export class ImportLimitError extends CudaIpcError {
  /** The class's own name. */
  override readonly name: string = "ImportLimitError";
}

/** The channel was closed, from here or by the peer: connect again. */
export class ChannelClosedError extends CudaIpcError {
  /** The class's own name. */
  override readonly name: string = "ChannelClosedError";
}

/** The peer's process has exited, and what it owed will never come. */
export class PeerGoneError extends CudaIpcError {
  /** The class's own name. */
  override readonly name: string = "PeerGoneError";
}

/** The peer was refused, by user id or by `authorize`, or it refused us. */
export class PeerRejectedError extends CudaIpcError {
  /** The class's own name. */
  override readonly name: string = "PeerRejectedError";
}

/** What arrived from another process is not what was agreed: truncated, forged, of another version, or garbage. */
export class ProtocolError extends CudaIpcError {
  /** The class's own name. */
  override readonly name: string = "ProtocolError";
}

/** What a {@linkcode SystemCallError} knows about the failed call. */
export interface SystemCallErrorOptions extends CudaIpcErrorOptions {
  /** The operating system's error number. */
  readonly errno: number;
  /** Its name, such as `ECONNREFUSED`. */
  readonly errnoName: string;
  /** The function of the C library, such as `connect`. */
  readonly call: string;
}

/** A call to the operating system failed. */
export class SystemCallError extends CudaIpcError {
  /** The class's own name. */
  override readonly name: string = "SystemCallError";
  /** The operating system's error number. */
  readonly errno: number;
  /** Its name, such as `ECONNREFUSED`. */
  readonly errnoName: string;
  /** The function of the C library that failed. */
  readonly call: string;

  /** Makes an error for one failed system call. */
  constructor(message: string, options: SystemCallErrorOptions) {
    super(message, options);
    this.errno = options.errno;
    this.errnoName = options.errnoName;
    this.call = options.call;
  }
}

/** A shared library could not be opened from any candidate. Becomes {@linkcode DriverNotFoundError} for libcuda. */
export class LibraryNotFoundError extends CudaIpcError {
  /** The class's own name. */
  override readonly name: string = "LibraryNotFoundError";
  /** Each candidate with the loader's answer. */
  readonly attempts: readonly string[];

  /** Makes an error that lists every attempt. */
  constructor(message: string, options: CudaIpcErrorOptions & { readonly attempts: readonly string[] }) {
    super(message, options);
    this.attempts = options.attempts;
  }
}
