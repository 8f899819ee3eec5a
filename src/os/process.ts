/** Processes: who we are, who a peer is, and whether one has exited. */
import { errno, NativeBlock, toSize } from "../../ffi/mod.ts";
import { InvalidArgumentError, NotSupportedError, ProtocolError } from "../errors.ts";
import type { ProcessIdentity } from "../wire/identity.ts";
import { EBADF, ENOPROTOOPT, ENOSYS, ESRCH } from "./errno.ts";
import { inspectPath } from "./fd.ts";
import { readTextFile } from "./file.ts";
import { libc, retryInterrupted, systemError, systemErrorOf } from "./libc.ts";
import { IS_WINDOWS, readWindowsIdentity } from "./windows.ts";

export type { ProcessIdentity } from "../wire/identity.ts";

const SYS_PIDFD_OPEN = 434; // the same number on every architecture
const SOL_SOCKET = 1;
const SO_PEERCRED = 17;
const SO_PEERPIDFD = 77;
const PID_MAX = 0x7fff_ffff;
const POLLIN = 1;
const POLLNVAL = 0x20;

/** Whoever opened or accepted the connection, as the kernel knows it. */
export interface PeerCredentials {
  /** 0 when the peer's process is not visible from our pid namespace. */
  readonly pid: number;
  readonly uid: number;
  readonly gid: number;
}

// A struct of up to 16 bytes (ucred, pollfd), and its length
const VALUE = 0;
const LENGTH = 16;
let block: NativeBlock | undefined;
function scratch(): NativeBlock {
  return block ??= new NativeBlock(24);
}

let own: ProcessIdentity | undefined;

/** Who this process is. A child that was forked without exec gets its own answer, not its parent's. */
export function ownIdentity(): ProcessIdentity {
  if (IS_WINDOWS) return own ??= readWindowsIdentity(); // nothing forks there
  const pid = libc().getpid();
  if (own?.pid !== pid) own = readIdentity(pid);
  return own;
}

/** This process's user, as `SO_PEERCRED` tells it to others. In Deno `process.geteuid` would need a permission of its own. */
export function ownUid(): number {
  return libc().geteuid();
}

function readIdentity(pid: number): ProcessIdentity {
  const bootId = readTextFile("/proc/sys/kernel/random/boot_id")?.trim();
  const startTime = processStartTime("self");
  const namespace = inspectPath("/proc/self/ns/pid");
  if (bootId === undefined || startTime === undefined || namespace === undefined) {
    throw new NotSupportedError("Cannot tell who this process is: /proc is not mounted here");
  }
  return { bootId, pid, pidNamespace: namespace.inode, startTime };
}

/**
 * When a process of our pid namespace was started, in clock ticks since boot; undefined when there is none. Together with the
 * pid it names one process.
 */
export function processStartTime(pid: number | "self"): number | undefined {
  const stat = readTextFile(`/proc/${pid}/stat`);
  if (stat === undefined) return undefined;
  // The program's name, second in the line, may contain anything, ")" included
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return Number(fields[22 - 3]);
}

/** A descriptor for a process, which the caller owns. Undefined when no process has this pid. */
export function openPidfd(pid: number): number | undefined {
  if (!Number.isInteger(pid) || pid < 1 || pid > PID_MAX) {
    throw new InvalidArgumentError(`Cannot watch a process: its pid is ${pid}, expected an integer from 1 to ${PID_MAX}`);
  }
  const fd = Number(libc().syscall(toSize(SYS_PIDFD_OPEN), toSize(pid), toSize(0)));
  if (fd >= 0) return fd;
  const code = errno();
  if (code === ESRCH) return undefined;
  throw systemErrorOf(code, "pidfd_open", `Cannot watch process ${pid}`);
}

/**
 * A descriptor for the process that opened or accepted the other end of a connection; the caller owns it. Undefined where
 * the kernel cannot tell: one older than 6.5, or the peer's process has gone and been collected by its parent.
 */
export function openPeerPidfd(socket: number): number | undefined {
  const block = scratch();
  const code = readSocketOption(socket, SO_PEERPIDFD, 4);
  if (code === 0) return block.readI32(VALUE);
  if (code === ENOPROTOOPT || code === ENOSYS || code === ESRCH) return undefined;
  throw systemErrorOf(code, "getsockopt", `Cannot watch the peer of socket ${socket}`);
}

/** Who opened or accepted the other end of a connection. */
export function peerCredentials(socket: number): PeerCredentials {
  const code = readSocketOption(socket, SO_PEERCRED, 12);
  if (code !== 0) throw systemErrorOf(code, "getsockopt", `Cannot ask who the peer of socket ${socket} is`);
  const block = scratch();
  return { pid: block.readI32(VALUE), uid: block.readU32(VALUE + 4), gid: block.readU32(VALUE + 8) };
}

/** Leaves the value in the scratch block; returns 0 or the errno. */
function readSocketOption(socket: number, option: number, byteLength: number): number {
  const block = scratch();
  block.view.setUint32(LENGTH, byteLength, true);
  const result = libc().getsockopt(
    socket,
    SOL_SOCKET,
    option,
    block.addressAt(VALUE),
    block.addressAt(LENGTH),
  );
  return result === 0 ? 0 : errno();
}

/** Whether the process behind a pidfd has exited; a zombie has. Never waits. */
export function hasExited(pidfd: number): boolean {
  const block = scratch();
  block.view.setInt32(VALUE, pidfd, true);
  block.view.setInt16(VALUE + 4, POLLIN, true);
  block.view.setInt16(VALUE + 6, 0, true);
  const count = retryInterrupted(() => libc().poll(block.addressAt(VALUE), toSize(1), 0));
  if (count < 0) throw systemError("poll", `Cannot ask whether the process of pidfd ${pidfd} has exited`);
  const events = block.view.getInt16(VALUE + 6, true);
  if (events & POLLNVAL) throw systemErrorOf(EBADF, "poll", `Cannot ask whether a process has exited: pidfd ${pidfd} is closed`);
  return (events & POLLIN) !== 0;
}

/**
 * The pid behind a descriptor that a peer says is a pidfd: 0 when the process is not visible from our pid namespace, -1 when
 * it has gone. Throws ProtocolError when the descriptor is something else.
 */
export function pidOfPidfd(fd: number): number {
  const match = /^Pid:\s*(-?\d+)$/m.exec(readTextFile(`/proc/self/fdinfo/${fd}`) ?? "");
  if (match === null) throw new ProtocolError(`Cannot use file descriptor ${fd} as a pidfd: it is not one`);
  return Number(match[1]);
}
