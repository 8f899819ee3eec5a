/**
 * Host memory that the GPU copies from and to by itself. A copy of a JavaScript array goes through it piece by piece:
 * a direct copy to pageable memory would block the host for all queued work, and the array could move or be taken away.
 */
import { addOffset, type Address, createHostView, type HostView, toSize } from "../../ffi/mod.ts";
import { Completion } from "../completion.ts";
import { InvalidArgumentError } from "../errors.ts";
import { pollUntil, turn } from "../polling.ts";
import { reapAfter, reapWhen } from "./reaper.ts";
import type { Context } from "../context.ts";
import { check } from "../driver/check.ts";
import { CU_MEMHOSTALLOC_PORTABLE } from "../driver/enums.ts";
import type { NativeStream } from "../native_stream.ts";

/** Large enough for full bandwidth, small enough to pin without a thought: two pieces overlap. */
const PIECE_BYTES = 4 * 1024 * 1024;
const PIECES = 4;
/** Pieces of one transfer. */
const LANES = 2;

/** One pinned piece. Its user takes it, fills or reads it, and gives it back. */
interface Piece {
  readonly address: Address;
  readonly view: HostView;
}

/** The pieces of one device, and who waits for one. They live as long as the context: pinning costs milliseconds. */
class Staging {
  readonly #context: Context;
  readonly #free: Piece[] = [];
  readonly #waiting: ((piece: Piece) => void)[] = [];
  readonly #made: Piece[] = [];

  constructor(context: Context) {
    this.#context = context;
  }

  /** A piece now, or undefined when all are in use. */
  takeNow(): Piece | undefined {
    if (this.#waiting.length > 0) return undefined;
    return this.#free.pop() ?? (this.#made.length < PIECES ? this.#make() : undefined);
  }

  /** A piece as soon as one is free, in the order of asking. */
  take(signal: AbortSignal | undefined): Promise<Piece> {
    return new Promise((resolve, reject) => {
      const onPiece = (piece: Piece) => {
        signal?.removeEventListener("abort", onAbort);
        resolve(piece);
      };
      const onAbort = () => {
        this.#waiting.splice(this.#waiting.indexOf(onPiece), 1);
        reject(signal!.reason);
      };
      signal?.addEventListener("abort", onAbort, { once: true });
      this.#waiting.push(onPiece);
    });
  }

  giveBack(piece: Piece): void {
    const next = this.#waiting.shift();
    if (next !== undefined) next(piece);
    else this.#free.push(piece);
  }

  /** A piece beside the counted ones, for a blocking copy that cannot wait for the others. */
  takeForBlocking(): Piece {
    return this.takeNow() ?? this.#make();
  }

  #make(): Piece {
    const { driver } = this.#context;
    this.#context.makeCurrent();
    check(driver.memHostAlloc(toSize(PIECE_BYTES), CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc", "staging memory");
    const address = driver.out.readAddress(0);
    const piece = { address, view: createHostView(address, PIECE_BYTES) };
    this.#made.push(piece);
    return piece;
  }

  /** Before the context goes. No transfer is under way then: each holds its stream, and the stream the context. */
  free(): void {
    for (const { address, view } of this.#made) {
      view.detach();
      check(this.#context.driver.memFreeHost(address), "cuMemFreeHost", "staging memory");
    }
  }
}

const stagings = new WeakMap<Context, Staging>();

function stagingOf(context: Context): Staging {
  let staging = stagings.get(context);
  if (staging === undefined) {
    const made = staging = new Staging(context);
    stagings.set(context, staging);
    context.beforeRelease(() => {
      stagings.delete(context);
      made.free();
    });
  }
  return staging;
}

/** A piece with a copy under way. */
interface Lane {
  readonly piece: Piece;
  readonly completion: Completion;
  byteOffset: number;
  byteLength: number;
}

/** One transfer: up to two pieces, so that the host fills or empties one while the GPU copies the other. */
class Transfer {
  readonly #staging: Staging;
  readonly #stream: NativeStream;
  readonly #signal: AbortSignal | undefined;
  readonly #lanes: Lane[] = [];
  #next = 0;

  constructor(stream: NativeStream, signal: AbortSignal | undefined) {
    this.#staging = stagingOf(stream.context);
    this.#stream = stream;
    this.#signal = signal;
    stream.hold();
  }

  /**
   * The lane whose copy began first; its copy is done. A new one while there are fewer than two. Whoever has one does
   * not wait for a second: transfers that all wait for each other's pieces would never end.
   */
  async nextLane(): Promise<Lane> {
    if (this.#lanes.length < LANES) {
      const piece = this.#staging.takeNow() ?? (this.#lanes.length === 0 ? await this.#staging.take(this.#signal) : undefined);
      if (piece !== undefined) return this.#addLane(piece);
    }
    const lane = this.#lanes[this.#next];
    this.#next = (this.#next + 1) % this.#lanes.length;
    await turn();
    await pollUntil(() => lane.completion.isDone(), this.#signal);
    return lane;
  }

  #addLane(piece: Piece): Lane {
    const lane = { piece, completion: new Completion(this.#stream), byteOffset: 0, byteLength: 0 };
    this.#lanes.push(lane);
    this.#next = 0; // the others began before it
    return lane;
  }

  /** The lanes with a copy still to be looked at, oldest first. */
  async *remaining(): AsyncIterable<Lane> {
    await turn();
    for (let i = 0; i < this.#lanes.length; i++) {
      const lane = this.#lanes[(this.#next + i) % this.#lanes.length];
      await pollUntil(() => lane.completion.isDone(), this.#signal);
      yield lane;
    }
  }

  /** Gives the pieces back; after an error or an abort the GPU may still copy, so they wait for it. */
  end(): void {
    for (const { piece, completion } of this.#lanes) {
      reapWhen(() => completion.isDone(), () => {
        completion.release();
        this.#staging.giveBack(piece);
      });
    }
    this.#stream.release();
  }
}

/** Copies an array to device memory, in stream order with what the stream has queued when each piece is queued. */
export async function copyToDevice(
  destination: Address,
  source: Uint8Array,
  stream: NativeStream,
  signal: AbortSignal | undefined,
): Promise<void> {
  const total = source.byteLength;
  const { driver } = stream.context;
  const transfer = new Transfer(stream, signal);
  try {
    for (let byteOffset = 0; byteOffset < total; byteOffset += PIECE_BYTES) {
      const lane = await transfer.nextLane();
      if (source.byteLength !== total) {
        throw new InvalidArgumentError("Cannot write to a buffer: the array was transferred away before the write was done");
      }
      const part = source.subarray(byteOffset, byteOffset + PIECE_BYTES);
      lane.piece.view.bytes.set(part);
      const to = addOffset(destination, byteOffset);
      check(driver.memcpyAsync(to, lane.piece.address, toSize(part.byteLength), stream.handle), "cuMemcpyAsync", stream);
      lane.completion.mark();
    }
    for await (const _ of transfer.remaining());
  } finally {
    transfer.end();
  }
}

/** Copies device memory into an array. */
export async function copyFromDevice(
  source: Address,
  destination: Uint8Array,
  stream: NativeStream,
  signal: AbortSignal | undefined,
): Promise<void> {
  const total = destination.byteLength;
  const { driver } = stream.context;
  const transfer = new Transfer(stream, signal);
  const empty = (lane: Lane) => {
    if (destination.byteLength !== total) {
      throw new InvalidArgumentError("Cannot read a buffer: the array was transferred away before the read was done");
    }
    destination.set(lane.piece.view.bytes.subarray(0, lane.byteLength), lane.byteOffset);
    lane.byteLength = 0;
  };
  try {
    for (let byteOffset = 0; byteOffset < total; byteOffset += PIECE_BYTES) {
      const lane = await transfer.nextLane();
      empty(lane);
      lane.byteOffset = byteOffset;
      lane.byteLength = Math.min(PIECE_BYTES, total - byteOffset);
      const from = addOffset(source, byteOffset);
      check(
        driver.memcpyAsync(lane.piece.address, from, toSize(lane.byteLength), stream.handle),
        "cuMemcpyAsync",
        stream,
      );
      lane.completion.mark();
    }
    for await (const lane of transfer.remaining()) empty(lane);
  } finally {
    transfer.end();
  }
}

/** The same, blocking the thread. */
export function copyToDeviceSync(destination: Address, source: Uint8Array, stream: NativeStream): void {
  const { driver } = stream.context;
  withPiece(stream, (piece) => {
    for (let byteOffset = 0; byteOffset < source.byteLength; byteOffset += PIECE_BYTES) {
      const part = source.subarray(byteOffset, byteOffset + PIECE_BYTES);
      piece.view.bytes.set(part);
      const to = addOffset(destination, byteOffset);
      check(driver.memcpyAsync(to, piece.address, toSize(part.byteLength), stream.handle), "cuMemcpyAsync", stream);
      check(driver.streamSynchronize(stream.handle), "cuStreamSynchronize", stream);
    }
  });
}

/** The same, blocking the thread. */
export function copyFromDeviceSync(source: Address, destination: Uint8Array, stream: NativeStream): void {
  const { driver } = stream.context;
  withPiece(stream, (piece) => {
    for (let byteOffset = 0; byteOffset < destination.byteLength; byteOffset += PIECE_BYTES) {
      const byteLength = Math.min(PIECE_BYTES, destination.byteLength - byteOffset);
      const from = addOffset(source, byteOffset);
      check(driver.memcpyAsync(piece.address, from, toSize(byteLength), stream.handle), "cuMemcpyAsync", stream);
      check(driver.streamSynchronize(stream.handle), "cuStreamSynchronize", stream);
      destination.set(piece.view.bytes.subarray(0, byteLength), byteOffset);
    }
  });
}

function withPiece(stream: NativeStream, body: (piece: Piece) => void): void {
  const staging = stagingOf(stream.context);
  const piece = staging.takeForBlocking();
  try {
    body(piece);
  } finally {
    reapAfter([stream], () => staging.giveBack(piece));
  }
}
