/** The greeting: who speaks, and whether the two sides understand each other. */
import { PeerRejectedError, ProtocolError } from "../errors.ts";
import { discardFds } from "../os/fd.ts";
import { openPeerPidfd, openPidfd, ownIdentity, type PeerCredentials, peerCredentials, pidOfPidfd } from "../os/process.ts";
import { currentRuntime, runtimeVersion } from "../os/runtime.ts";
import { encodeFrame, type Frame, type FrameType } from "../wire/frame.ts";
import { type Hello, readHello, readReject, type Window } from "../wire/messages.ts";
import { PeerProcess } from "./peer_process.ts";
import { Transport } from "./transport.ts";

/** Who is at the other end of a channel. */
export interface Peer {
  /** Its process id as the kernel says, 0 where it is not visible from here (another pid namespace). */
  readonly pid: number;
  /** Its user id as the kernel says. */
  readonly uid: number;
  /** Name and version of its runtime, as it says itself. */
  readonly runtime: string;
  /** The devices that it uses on the channel, as it says itself. */
  readonly deviceUuids: readonly string[];
}

/** A connection after its greeting. */
export interface Greeted {
  readonly transport: Transport;
  readonly peer: Peer;
  readonly process: PeerProcess;
  readonly hello: Hello;
}

/** A peer may have this much on its way to us before we take it. */
export const OUR_WINDOW: Window = { messages: 64, bytes: 32 * 1024 * 1024, fds: 256 };
/** Before a server knows the peer it reads no frame longer than this. */
export const MAX_GREETING_BYTES = 64 * 1024;
/** A connection that has not greeted by then is closed. */
export const GREETING_TIMEOUT_MS = 10_000;

function ourHello(deviceUuids: readonly string[]): Hello {
  return {
    runtime: `${currentRuntime()} ${runtimeVersion()}`,
    identity: ownIdentity(),
    deviceUuids,
    capabilities: ["fences", "forward"],
    window: OUR_WINDOW,
  };
}

/** Our greeting, with a pidfd of ourselves for a peer whose kernel cannot give it one. */
export function sendGreeting(transport: Transport, type: "hello" | "welcome", deviceUuids: readonly string[]): void {
  const pidfd = openPidfd(ownIdentity().pid);
  const fds = pidfd === undefined ? [] : [pidfd];
  transport.send(encodeFrame(type, ourHello(deviceUuids), fds.length), fds);
}

export function sendRejection(transport: Transport, reason: string): void {
  transport.send(encodeFrame("reject", { reason }));
}

/** A connection whose first frame is awaited. */
export interface Awaited {
  readonly transport: Transport;
  /** The first frame, or what came instead. */
  readonly first: Promise<Frame>;
  /** Gives later frames and the end to somebody else. Those that came meanwhile come first. */
  handOver(onFrame: (frame: Frame) => void, onEnd: (error: unknown) => void): void;
}

/** Begins to read a socket, which is taken over. */
export function awaitGreeting(socket: number, maxFrameBytes: number): Awaited {
  const early: Frame[] = [];
  let ended: { error: unknown } | undefined;
  let resolve: (frame: Frame) => void;
  let reject: (error: unknown) => void;
  const first = new Promise<Frame>((onFrame, onError) => {
    resolve = onFrame;
    reject = onError;
  });
  first.catch(() => {});
  let isFirst = true;
  let onFrame = (frame: Frame): void => {
    if (isFirst) {
      isFirst = false;
      resolve(frame);
    } else early.push(frame);
  };
  let onEnd = (error: unknown): void => {
    ended = { error };
    reject(error ?? new ProtocolError("Cannot greet the peer: it has closed the connection"));
  };
  const transport = new Transport(socket, maxFrameBytes, {
    onFrame: (frame) => onFrame(frame),
    onEnd: (error) => onEnd(error),
  });
  transport.start();
  return {
    transport,
    first,
    handOver(newOnFrame, newOnEnd) {
      transport.allowLargeFrames();
      onFrame = newOnFrame;
      onEnd = newOnEnd;
      for (const frame of early.splice(0)) {
        if (transport.isOpen) newOnFrame(frame);
        else discardFds(...frame.fds);
      }
      if (ended !== undefined) newOnEnd(ended.error);
    },
  };
}

/** Reads a peer's greeting and finds out which process it is. Takes the frame's descriptors over. */
export function readGreeting(transport: Transport, frame: Frame, expected: FrameType): Omit<Greeted, "transport"> {
  const fds = [...frame.fds];
  try {
    if (frame.type === "reject") throw new PeerRejectedError(`Cannot connect: the peer refused: ${readReject(frame.json)}`);
    if (frame.type !== expected) {
      throw new ProtocolError(`Cannot greet the peer: its first frame is ${frame.type ?? "unknown"}, expected ${expected}`);
    }
    const hello = readHello(frame.json);
    const credentials = peerCredentials(transport.socket);
    checkIdentity(hello, credentials);
    if (fds.length > 1) throw new ProtocolError(`Cannot greet the peer: it sent ${fds.length} file descriptors, expected 1`);
    const pidfd = openPeerPidfd(transport.socket) ?? checkedPidfd(fds, credentials);
    const { runtime, deviceUuids } = hello;
    return {
      hello,
      peer: Object.freeze({ pid: credentials.pid, uid: credentials.uid, runtime, deviceUuids: Object.freeze(deviceUuids) }),
      process: new PeerProcess(hello.identity, pidfd),
    };
  } finally {
    discardFds(...fds);
  }
}

/** What the peer says of itself must not contradict the kernel, where the kernel's word means the same. */
function checkIdentity({ identity }: Hello, { pid }: PeerCredentials): void {
  const own = ownIdentity();
  if (identity.bootId !== own.bootId) {
    throw new ProtocolError("Cannot greet the peer: it says that it runs on another machine or booted before this one");
  }
  if (identity.pidNamespace === own.pidNamespace && pid !== 0 && identity.pid !== pid) {
    throw new ProtocolError(`Cannot greet the peer: it says that it is process ${identity.pid}, the kernel says ${pid}`);
  }
}

/** Takes the peer's own pidfd out of `fds` if it is one of the peer. */
function checkedPidfd(fds: number[], { pid }: PeerCredentials): number | undefined {
  const [fd] = fds;
  if (fd === undefined) return undefined;
  const named = pidOfPidfd(fd);
  if (pid !== 0 && named !== pid) {
    throw new ProtocolError(`Cannot greet the peer: it sent a pidfd of process ${named}, the kernel says that it is ${pid}`);
  }
  fds.shift();
  return fd;
}
