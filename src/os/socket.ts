/**
 * Unix stream sockets that carry bytes and file descriptors. Every call here returns at once: one that would have to wait
 * says so (undefined, or 0 bytes sent), and `waiter.ts` knows when to try again.
 */
import { addressFromNumber, addressToBigInt, errno, NativeBlock } from "../../ffi/mod.ts";
import { InvalidArgumentError, ProtocolError } from "../errors.ts";
import {
  EACCES,
  EADDRINUSE,
  EAGAIN,
  ECONNABORTED,
  ECONNREFUSED,
  ECONNRESET,
  EINTR,
  ENOENT,
  ENOTCONN,
  ENOTDIR,
  EPERM,
  EPIPE,
  EPROTOTYPE,
  ETOOMANYREFS,
} from "./errno.ts";
import { closeFd, discardFds, inspectPath } from "./fd.ts";
import { absolutePath } from "./file.ts";
import { cString, libc, retryInterrupted, systemError, systemErrorOf } from "./libc.ts";

const AF_UNIX = 1;
const SOCK_STREAM = 1;
const SOCK_NONBLOCK = 0x800;
const SOCK_CLOEXEC = 0x80000;
const SOL_SOCKET = 1;
const SCM_RIGHTS = 1;
const MSG_CTRUNC = 0x8;
const MSG_DONTWAIT = 0x40;
const MSG_NOSIGNAL = 0x4000;
const MSG_CMSG_CLOEXEC = 0x4000_0000;
const SHUT_RD = 0;
const SHUT_WR = 1;

/** sun_path of sockaddr_un holds 108 bytes with the NUL. */
export const MAX_PATH_BYTES = 107;
/** What one message can carry: the kernel's limit. */
export const MAX_FDS = 253;
/** What one call moves at most. */
const CHUNK_BYTES = 65536;
/** More than a listener needs from bind to listen: in between its file looks as if it had been left behind. */
const BIND_TO_LISTEN_US = 2000;

const HINTS: ReadonlyMap<number, string> = new Map([
  [ECONNREFUSED, "Nobody listens there: start the server first"],
  [EPERM, "Permission was refused: check the owner and the mode of the socket and its directory"],
  [EACCES, "Permission was refused: check the owner and the mode of the socket and its directory"],
  [EADDRINUSE, "Another process listens there: choose another path, or stop that process"],
  [ENOTDIR, "A part of the path is not a directory"],
  [EPIPE, "The peer has closed the connection"],
  [ECONNRESET, "The peer has closed the connection"],
  [ETOOMANYREFS, "Too many file descriptors are on their way and not yet received"],
]);
const LISTEN_HINTS: ReadonlyMap<number, string> = new Map([...HINTS, [ENOENT, "The directory does not exist"]]);
const CONNECT_HINTS: ReadonlyMap<number, string> = new Map([
  ...HINTS,
  [ENOENT, "There is no such socket: start the server first"],
]);

/** What one call of `receive` got. The descriptors are close-on-exec and belong to the caller. */
export interface Received {
  readonly bytes: Uint8Array<ArrayBuffer>;
  /** In the order of sending. They came with one of these bytes, not necessarily the first. */
  readonly fds: number[];
}

// ---- addresses

/** struct sockaddr_un for a path, without abstract names. */
function socketAddress(action: string, path: string): Uint8Array<ArrayBuffer> {
  if (typeof path !== "string" || path === "" || path.includes("\0")) {
    throw new InvalidArgumentError(
      `Cannot ${action} ${JSON.stringify(path)}: expected the path of a socket file, not empty and without NUL`,
    );
  }
  const bytes = new TextEncoder().encode(path);
  if (bytes.byteLength > MAX_PATH_BYTES) {
    throw new InvalidArgumentError(
      `Cannot ${action} ${path}: the path has ${bytes.byteLength} bytes, and a socket's at most ${MAX_PATH_BYTES}. ` +
        "Choose a shorter one",
    );
  }
  const address = new Uint8Array(2 + MAX_PATH_BYTES + 1);
  address[0] = AF_UNIX;
  address.set(bytes, 2);
  return address;
}

function createSocket(action: string): number {
  const fd = libc().socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) throw systemError("socket", action);
  return fd;
}

// ---- listening

export interface ListenOptions {
  /** Who may connect, as the file's mode; less what the umask forbids. */
  readonly mode?: number;
  /** How many connections the kernel keeps until they are accepted. */
  readonly backlog?: number;
}

/** A socket that listens at a path. */
export class Listener {
  readonly fd: number;
  readonly path: string;
  /** The process may change its directory meanwhile. */
  readonly #absolutePath: string;
  /** Which file we made: by now another may stand at our path. */
  readonly #identity: string | undefined;
  #closed = false;

  private constructor(fd: number, path: string, identity: string | undefined) {
    this.fd = fd;
    this.path = path;
    this.#absolutePath = absolutePath(path);
    this.#identity = identity;
  }

  /** Listens at `path`. A socket file that was left behind is replaced, but only when nobody listens there. */
  static open(path: string, { mode = 0o600, backlog = 128 }: ListenOptions = {}): Listener {
    const action = `Cannot listen at ${path}`;
    const address = socketAddress("listen at", path);
    const fd = createSocket(action);
    try {
      // Before bind, so that there is no moment at which the file is open to others
      if (libc().fchmod(fd, mode) !== 0) throw systemError("fchmod", action);
      if (libc().bind(fd, address, address.byteLength) !== 0) {
        const code = errno();
        if (code !== EADDRINUSE) throw systemErrorOf(code, "bind", action, LISTEN_HINTS);
        removeStaleSocket(path, address, action);
        if (libc().bind(fd, address, address.byteLength) !== 0) throw systemError("bind", action, LISTEN_HINTS);
      }
      try {
        const identity = inspectPath(path, { nofollow: true })?.identity;
        if (libc().listen(fd, backlog) !== 0) throw systemError("listen", action);
        return new Listener(fd, path, identity);
      } catch (error) {
        libc().unlink(cString(path));
        throw error;
      }
    } catch (error) {
      discardFds(fd);
      throw error;
    }
  }

  /** The next connection, which the caller owns; undefined when there is none now. */
  accept(): number | undefined {
    const none = addressFromNumber(0);
    for (;;) {
      const fd = libc().accept4(this.fd, none, none, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd >= 0) return fd;
      const code = errno();
      if (code === EAGAIN) return undefined;
      // The peer has given up meanwhile: that is no error of ours
      if (code !== ECONNABORTED && code !== EINTR) throw systemErrorOf(code, "accept", `Cannot accept at ${this.path}`);
    }
  }

  /** Stops listening and removes the socket file, if it is still ours. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    try {
      const identity = inspectPath(this.#absolutePath, { nofollow: true })?.identity;
      if (identity !== undefined && identity === this.#identity) libc().unlink(cString(this.#absolutePath));
    } finally {
      closeFd(this.fd);
    }
  }
}

/** Removes the socket file at `path` unless somebody listens there, also when others try the same at this moment. */
function removeStaleSocket(path: string, address: Uint8Array, action: string): void {
  const stale = inspectPath(path, { nofollow: true });
  if (stale === undefined) return;
  if (stale.kind !== "socket") {
    const hint = `A file of another kind (${stale.kind}) is there: choose another path`;
    throw systemErrorOf(EADDRINUSE, "bind", action, new Map([[EADDRINUSE, hint]]));
  }
  if (isListening(address, action)) throw systemErrorOf(EADDRINUSE, "bind", action, HINTS);
  libc().usleep(BIND_TO_LISTEN_US);
  if (isListening(address, action)) throw systemErrorOf(EADDRINUSE, "bind", action, HINTS);
  // Moved aside first, since what stands at the path may by now be the socket of someone who was faster
  const aside = `${path}.${libc().getpid()}.stale`;
  if (libc().rename(cString(path), cString(aside)) !== 0) {
    const code = errno();
    if (code === ENOENT) return;
    throw systemErrorOf(code, "rename", action, HINTS);
  }
  try {
    if (inspectPath(aside, { nofollow: true })?.identity !== stale.identity) {
      libc().link(cString(aside), cString(path));
      throw systemErrorOf(EADDRINUSE, "bind", action, HINTS);
    }
  } finally {
    libc().unlink(cString(aside));
  }
}

/** Whether a connection would be accepted, now or when there is room in the backlog. */
function isListening(address: Uint8Array, action: string): boolean {
  const fd = createSocket(action);
  const code = libc().connect(fd, address, address.byteLength) === 0 ? 0 : errno();
  discardFds(fd);
  if (code === ECONNREFUSED || code === ENOENT) return false;
  if (code === 0 || code === EAGAIN || code === EPROTOTYPE) return true; // EPROTOTYPE: a datagram socket
  throw systemErrorOf(code, "connect", action, HINTS);
}

// ---- connections

/** Connects to `path`. The caller owns the socket. Undefined while the listener's backlog is full: try again later. */
export function connectSocket(path: string): number | undefined {
  const action = `Cannot connect to ${path}`;
  const address = socketAddress("connect to", path);
  const fd = createSocket(action);
  if (libc().connect(fd, address, address.byteLength) === 0) return fd;
  const code = errno();
  discardFds(fd);
  if (code === EAGAIN) return undefined;
  const kind = code === ECONNREFUSED ? inspectPath(path)?.kind : undefined;
  const isSocket = kind === undefined || kind === "socket";
  const hints = isSocket ? CONNECT_HINTS : new Map([[code, `A ${kind} is there: give the path of a server's socket`]]);
  throw systemErrorOf(code, "connect", action, hints);
}

// One block: struct msghdr, one struct iovec, the control data, the bytes
const MSGHDR = { iov: 16, iovCount: 24, control: 32, controlBytes: 40, flags: 48 };
const IOVEC = { base: 56, byteLength: 64 };
const CMSG_HEADER_BYTES = 16;
const CONTROL = 72;
const DATA = CONTROL + CMSG_HEADER_BYTES + 4 * MAX_FDS + 4; // aligned to 8

let messageBlock: NativeBlock | undefined;

function message(byteLength: number, controlBytes: number): NativeBlock {
  const block = messageBlock ??= createMessageBlock();
  block.writeU64(IOVEC.byteLength, BigInt(byteLength));
  block.writeU64(MSGHDR.control, controlBytes === 0 ? 0n : addressToBigInt(block.addressAt(CONTROL)));
  block.writeU64(MSGHDR.controlBytes, BigInt(controlBytes));
  block.view.setInt32(MSGHDR.flags, 0, true);
  return block;
}

function createMessageBlock(): NativeBlock {
  const block = new NativeBlock(DATA + CHUNK_BYTES);
  block.writeU64(MSGHDR.iov, addressToBigInt(block.addressAt(IOVEC.base)));
  block.writeU64(MSGHDR.iovCount, 1n);
  block.writeU64(IOVEC.base, addressToBigInt(block.addressAt(DATA)));
  return block;
}

/**
 * Sends as many of the bytes as there is room for and returns their number; 0 when there is none now. The descriptors go with
 * the first byte: when the result is above 0 the peer gets them, and the caller may close its own.
 */
export function sendBytes(socket: number, bytes: Uint8Array, fds: readonly number[] = []): number {
  if (bytes.byteLength === 0) throw new InvalidArgumentError(`Cannot send on socket ${socket}: there are no bytes to send`);
  if (fds.length > MAX_FDS) {
    throw new InvalidArgumentError(
      `Cannot send ${fds.length} file descriptors on socket ${socket}: one message takes at most ${MAX_FDS}`,
    );
  }
  const count = Math.min(bytes.byteLength, CHUNK_BYTES);
  const block = message(count, fds.length === 0 ? 0 : CMSG_HEADER_BYTES + 4 * fds.length);
  block.bytes.set(count === bytes.byteLength ? bytes : bytes.subarray(0, count), DATA);
  if (fds.length > 0) {
    block.writeU64(CONTROL, BigInt(CMSG_HEADER_BYTES + 4 * fds.length));
    block.view.setInt32(CONTROL + 8, SOL_SOCKET, true);
    block.view.setInt32(CONTROL + 12, SCM_RIGHTS, true);
    fds.forEach((fd, index) => block.view.setInt32(CONTROL + CMSG_HEADER_BYTES + 4 * index, fd, true));
  }
  const sent = retryInterrupted(() => libc().sendmsg(socket, block.addressAt(0), MSG_NOSIGNAL | MSG_DONTWAIT));
  if (sent >= 0) return sent;
  const code = errno();
  if (code === EAGAIN) return 0;
  throw systemErrorOf(code, "sendmsg", `Cannot send on socket ${socket}`, HINTS);
}

/**
 * Takes what has arrived: up to 64 KiB, and at most `maxFds` descriptors. Undefined when nothing is there now, null at the
 * end. Throws ProtocolError when descriptors were lost on the way, because more came than `maxFds` or than this process may
 * open: those that came are closed, and the connection is of no use any more.
 */
export function receiveBytes(socket: number, maxFds: number = MAX_FDS): Received | null | undefined {
  // Exactly the length: with its padding the kernel would find room for one more
  const block = message(CHUNK_BYTES, CMSG_HEADER_BYTES + 4 * maxFds);
  const count = retryInterrupted(() => libc().recvmsg(socket, block.addressAt(0), MSG_CMSG_CLOEXEC | MSG_DONTWAIT));
  if (count < 0) {
    const code = errno();
    if (code === EAGAIN) return undefined;
    if (code === ECONNRESET) return null; // the peer has closed with bytes of ours unread: nothing more will come
    throw systemErrorOf(code, "recvmsg", `Cannot receive on socket ${socket}`);
  }
  const fds = receivedFds(block);
  if (block.view.getInt32(MSGHDR.flags, true) & MSG_CTRUNC) {
    discardFds(...fds);
    throw new ProtocolError(
      `Cannot receive on socket ${socket}: file descriptors were lost, because ` +
        (fds.length < maxFds
          ? "this process may not open more of them. Close some, or raise the limit (ulimit -n)"
          : `the peer sent more than ${maxFds} with one message`),
    );
  }
  return count === 0 ? null : { bytes: block.bytes.slice(DATA, DATA + count), fds };
}

function receivedFds(block: NativeBlock): number[] {
  const fds: number[] = [];
  const end = CONTROL + block.readNumber(MSGHDR.controlBytes);
  for (let at = CONTROL; at + CMSG_HEADER_BYTES <= end;) {
    const byteLength = block.readNumber(at);
    if (byteLength < CMSG_HEADER_BYTES || at + byteLength > end) break;
    if (block.readI32(at + 8) === SOL_SOCKET && block.readI32(at + 12) === SCM_RIGHTS) {
      for (let fd = at + CMSG_HEADER_BYTES; fd + 4 <= at + byteLength; fd += 4) fds.push(block.readI32(fd));
    }
    at += Math.ceil(byteLength / 8) * 8;
  }
  return fds;
}

/** Tells the peer that no more bytes will come; receiving goes on. */
export function shutdownSending(socket: number): void {
  shutdown(socket, SHUT_WR, "sending");
}

/** Lets the peer send nothing more; what it has sent can still be received. */
export function shutdownReceiving(socket: number): void {
  shutdown(socket, SHUT_RD, "receiving");
}

function shutdown(socket: number, how: number, what: string): void {
  if (libc().shutdown(socket, how) === 0) return;
  const code = errno();
  if (code !== ENOTCONN) throw systemErrorOf(code, "shutdown", `Cannot end ${what} on socket ${socket}`);
}
