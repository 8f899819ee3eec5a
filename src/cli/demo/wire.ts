/** What the demo's two sides say to each other: lines of JSON over a unix socket, file descriptors beside them, all counted. */
import { setTimeout as sleep } from "node:timers/promises";
import { shown } from "../../arguments.ts";
import { ProtocolError, SystemCallError } from "../../errors.ts";
import { connect, UnixServer } from "../../os/connection.ts";
import { ECONNREFUSED, ENOENT } from "../../os/errno.ts";
import { closeFd, discardFds } from "../../os/fd.ts";
import { receiveBytes, sendBytes } from "../../os/socket.ts";
import { waitReadable, waitWritable } from "../../os/waiter.ts";
import type { Peer } from "./peer.ts";

const MAX_MESSAGE_BYTES = 4096;
const NEWLINE = 10;
/** The two sides may be started in any order, within this time. */
const CONNECT_MS = 10_000;
const RETRY_MS = 20;

/** A part of the buffer, and what the consumer shall fill it with. */
export interface Mark {
  readonly byteOffset: number;
  readonly byteLength: number;
  readonly value: number;
}

export interface Message {
  readonly fields: Readonly<Record<string, unknown>>;
  /** The receiver's to close. */
  readonly fds: readonly number[];
}

/** One connection. */
export class Wire implements Disposable {
  readonly socket: number;
  sentBytes = 0;
  receivedBytes = 0;
  #arrived = new Uint8Array(0);
  #fds: number[] = [];

  private constructor(socket: number) {
    this.socket = socket;
  }

  /** Waits at `path` for one peer. */
  static async accept(path: string, signal?: AbortSignal): Promise<Wire> {
    const server = UnixServer.listen(path);
    try {
      return new Wire((await server.accept({ signal }))!); // null only for a closed server
    } finally {
      server.close();
    }
  }

  /** Connects to the peer that waits at `path`, or will soon. */
  static async connect(path: string): Promise<Wire> {
    for (const end = performance.now() + CONNECT_MS;;) {
      try {
        return new Wire(await connect(path));
      } catch (error) {
        const early = error instanceof SystemCallError && (error.errno === ENOENT || error.errno === ECONNREFUSED);
        if (!early || performance.now() > end) throw error;
        await sleep(RETRY_MS);
      }
    }
  }

  async send(type: string, fields: Record<string, unknown> = {}, fds: readonly number[] = []): Promise<void> {
    let bytes = new TextEncoder().encode(JSON.stringify({ type, ...fields }) + "\n");
    while (bytes.byteLength > 0) {
      const count = sendBytes(this.socket, bytes, fds);
      if (count === 0) await waitWritable(this.socket);
      else fds = [];
      bytes = bytes.subarray(count);
      this.sentBytes += count;
    }
  }

  /** The next message, which must be of this type and bring this number of descriptors. */
  async receive(type: string, peer: Peer, fdCount = 0): Promise<Message> {
    const line = await this.#line(peer);
    const { type: given, ...fields } = parse(line);
    if (given !== type) {
      throw new ProtocolError(`Cannot read the peer's message: its type is ${shown(given)}, expected ${shown(type)}`);
    }
    if (this.#fds.length !== fdCount) {
      throw new ProtocolError(
        `Cannot read the peer's message "${type}": it has ${this.#fds.length} file descriptors, expected ${fdCount}`,
      );
    }
    return { fields, fds: this.#fds.splice(0) };
  }

  async #line(peer: Peer): Promise<string> {
    for (;;) {
      const end = this.#arrived.indexOf(NEWLINE);
      if (end >= 0) {
        const line = new TextDecoder().decode(this.#arrived.subarray(0, end));
        this.#arrived = this.#arrived.slice(end + 1);
        return line;
      }
      if (this.#arrived.byteLength > MAX_MESSAGE_BYTES) {
        throw new ProtocolError(`Cannot read the peer's message: it has more than ${MAX_MESSAGE_BYTES} bytes`);
      }
      const received = receiveBytes(this.socket);
      if (received === null) throw peer.goneError();
      if (received === undefined) {
        await waitReadable(this.socket);
      } else {
        this.receivedBytes += received.bytes.byteLength;
        this.#fds.push(...received.fds);
        this.#arrived = joined(this.#arrived, received.bytes);
      }
    }
  }

  [Symbol.dispose](): void {
    discardFds(...this.#fds);
    closeFd(this.socket);
  }
}

function joined(first: Uint8Array, second: Uint8Array): Uint8Array<ArrayBuffer> {
  const both = new Uint8Array(first.byteLength + second.byteLength);
  both.set(first);
  both.set(second, first.byteLength);
  return both;
}

function parse(line: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(line);
    if (typeof value === "object" && value !== null) return value as Record<string, unknown>;
  } catch {
    // told below
  }
  throw new ProtocolError("Cannot read the peer's message: it is no JSON object");
}

/** The mark of an offer. Whether it lies in the buffer and fits a byte, `subarray` and `fill` check. */
export function readMark(value: unknown): Mark {
  if (typeof value !== "object" || value === null) throw new ProtocolError("Cannot read the offer: it has no mark");
  return value as Mark;
}
