/** The handle of a pool or of virtual memory, as the operating system knows it. */
import process from "node:process";
import { type Address, addressFromNumber } from "../../ffi/mod.ts";
import { checkInteger, invalid, type Text } from "../arguments.ts";
import { Closable } from "../closable.ts";
import { InvalidArgumentError, NotSupportedError, ProtocolError } from "../errors.ts";
import { NVIDIA_MAJOR } from "../os/driver_fds.ts";
import { inspectFd } from "../os/fd.ts";
import { copyHandleFrom, IS_WINDOWS } from "../os/windows.ts";
import type { ProcessIdentity } from "../wire/identity.ts";
import { closeOsHandle, keepFromChildren } from "./os_handle.ts";

let adoptFd: (fd: number, poolId: string | undefined) => AllocationHandle;

const TOKEN: unique symbol = Symbol("AllocationHandle");
const FD_MAX = 0x7fff_ffff;

/**
 * A file descriptor that stands for a whole memory pool (or one piece of virtual memory). It belongs to this object and
 * is closed with it; whoever holds a copy can reach the pool's present **and future** allocations, so give it to one
 * trust domain only. Sent by a channel, or with your own means of passing descriptors. On Windows it is a HANDLE, `fd` is
 * its value, and {@linkcode AllocationHandle.fromProcess} copies it.
 *
 * @example
 * ```ts
 * import { Device, MemoryPool } from "@cuda-ipc/cuda-ipc";
 *
 * using device = Device.open(0);
 * using pool = MemoryPool.create(device, { ipc: true });
 * using handle = pool.exportHandle();
 * console.log(handle.fd);
 * ```
 */
export class AllocationHandle extends Closable {
  readonly #fd: number;
  readonly #poolId: string | undefined;

  /** Not for users: see `pool.exportHandle` and {@linkcode AllocationHandle.fromFd}. */
  private constructor(token: typeof TOKEN, fd: number, poolId: string | undefined) {
    super();
    if (token !== TOKEN) {
      throw new InvalidArgumentError(
        "Cannot construct an AllocationHandle: use pool.exportHandle() or AllocationHandle.fromFd()",
      );
    }
    this.#fd = fd;
    this.#poolId = poolId;
    this.protect("AllocationHandle", { release: () => closeOsHandle(fd) });
  }

  static {
    adoptFd = (fd, poolId) => new AllocationHandle(TOKEN, fd, poolId);
  }

  /**
   * Takes over a descriptor that came from another process: it becomes close-on-exec and is closed with this object. On
   * Windows: a HANDLE of this process. A number that a peer sent may be any of our own: use {@linkcode fromProcess} there.
   *
   * @throws {SystemCallError} when it is not open.
   */
  static fromFd(fd: number): AllocationHandle {
    checkInteger("take over a file descriptor", "fd", fd, 0, FD_MAX);
    keepFromChildren(fd);
    return adoptFd(fd, undefined);
  }

  /**
   * Windows only: copies a HANDLE out of the process that has it (`DuplicateHandle`). The exporter sends the value of its
   * handle (`fd`) and keeps that open until this has returned. Both must run as the same user.
   *
   * @param exporter the process, as `descriptor.exporter` names it.
   * @param fd the HANDLE's value there.
   * @throws {NotSupportedError} on Linux, where a descriptor travels over a unix socket.
   * @throws {PeerGoneError} when the process has exited.
   * @throws {SystemCallError} when it has no such handle, or belongs to another user.
   */
  static fromProcess(exporter: ProcessIdentity, fd: number): AllocationHandle {
    const action = "copy a handle of another process";
    if (typeof exporter !== "object" || exporter === null) throw invalid(action, "exporter", exporter, "a descriptor's exporter");
    checkInteger(action, "exporter.pid", exporter.pid, 1, FD_MAX);
    checkInteger(action, "exporter.startTime", exporter.startTime, 0);
    checkInteger(action, "fd", fd, 0, FD_MAX);
    if (!IS_WINDOWS) {
      throw new NotSupportedError(`Cannot ${action} on ${process.platform}: send it over a unix socket and use fromFd()`);
    }
    return adoptFd(copyHandleFrom(exporter, fd), undefined);
  }

  /** The file descriptor (on Windows the HANDLE's value). Still owned by this object. */
  get fd(): number {
    this.checkOpen("use an allocation handle");
    return this.#fd;
  }

  /** The id of the pool that was exported; undefined for a descriptor that came from elsewhere. */
  get poolId(): string | undefined {
    return this.#poolId;
  }

  /** Called once, by `close`. */
  protected override onClose(): void {
    closeOsHandle(this.#fd);
  }

  /** A short name for messages. */
  override toString(): string {
    return `AllocationHandle ${this.#fd}`;
  }
}

/** Owns a handle that the driver has just given; marks it close-on-exec, which the driver does not do for pools. */
export function ownDriverHandle(fd: number, poolId?: string): AllocationHandle {
  const handle = adoptFd(fd, poolId);
  try {
    keepFromChildren(fd);
    return handle;
  } catch (error) {
    handle.close();
    throw error;
  }
}

/** The handle as the driver's import functions take it. */
export function driverHandle(handle: AllocationHandle): Address {
  return addressFromNumber(handle.fd);
}

/** Refuses a descriptor that cannot be the driver's: a character device of NVIDIA's, or the simulator's shared memory. */
export function checkDriverHandle(action: Text, handle: unknown, simulated: boolean): asserts handle is AllocationHandle {
  if (!(handle instanceof AllocationHandle)) throw invalid(action, "handle", handle, "an AllocationHandle");
  if (IS_WINDOWS) return;
  const { kind, deviceMajor } = inspectFd(handle.fd);
  const fits = simulated ? kind === "regular file" : kind === "character device" && deviceMajor === NVIDIA_MAJOR;
  if (!fits) throw new ProtocolError(`Cannot ${action}: file descriptor ${handle.fd} is a ${kind}, not a handle of the driver`);
}
