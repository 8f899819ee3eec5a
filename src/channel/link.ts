/** One connection as both directions of a channel see it: what was announced over it, and whether it still stands. */
import type { Device } from "../device.ts";
import { ProtocolError } from "../errors.ts";
import { discardFds, duplicateFd } from "../os/fd.ts";
import { FenceBlock } from "../share/fence_block.ts";
import { encodeFrame, type FrameType } from "../wire/frame.ts";
import type { MemoryKind } from "../wire/descriptor.ts";
import { type ForgetJson, MAX_ANNOUNCED, type ProcessJson, type Window, type WordValue } from "../wire/messages.ts";
import type { Greeted, Peer } from "./handshake.ts";
import { PeerProcess } from "./peer_process.ts";
import { type AnyNativePool, PeerPools, poolFd } from "./pools.ts";
import type { Outgoing, Transport } from "./transport.ts";
import { PeerBlocks, type Slot, WordPool } from "./words.ts";

/** Things of a kind that we keep announced: half of what the peer must keep. */
export const MAX_KEPT: number = MAX_ANNOUNCED / 2;

/** What was announced and not forgotten, the least recently used first. */
class Announcements<T extends object> {
  readonly kind: keyof ForgetJson;
  readonly #ids = new Map<T, number>();
  #next = 0;

  constructor(kind: keyof ForgetJson) {
    this.kind = kind;
  }

  get things(): Iterable<T> {
    return this.#ids.keys();
  }

  /** The thing's number, and what has to be forgotten for it. */
  idOf(thing: T, announce: (id: number) => void): { id: number; forgotten?: { thing: T; id: number } } {
    const known = this.#ids.get(thing);
    if (known !== undefined) {
      this.#ids.delete(thing);
      this.#ids.set(thing, known);
      return { id: known };
    }
    const id = this.#next;
    announce(id);
    this.#next++;
    this.#ids.set(thing, id);
    if (this.#ids.size <= MAX_KEPT) return { id };
    const [[oldest, oldId]] = this.#ids;
    this.#ids.delete(oldest);
    return { id, forgotten: { thing: oldest, id: oldId } };
  }
}

/** Blocks and processes are held while they are announced; pools are not. */
function release(thing: object): void {
  if (thing instanceof FenceBlock || thing instanceof PeerProcess) thing.release();
}

export class Link {
  readonly transport: Transport;
  readonly peer: Peer;
  readonly process: PeerProcess;
  /** What the peer lets us have on its way. */
  readonly window: Window;
  readonly capabilities: readonly string[];
  readonly devices: readonly Device[];
  /** Ours, for what we send. */
  readonly words: WordPool = new WordPool();
  readonly peerBlocks: PeerBlocks = new PeerBlocks();
  readonly peerPools: PeerPools = new PeerPools();
  readonly #peerProcesses = new Map<number, PeerProcess>();
  readonly #blocks = new Announcements<FenceBlock>("blocks");
  readonly #pools = new Announcements<AnyNativePool>("pools");
  readonly #processes = new Announcements<PeerProcess>("processes");
  /** Sends a frame behind all messages that wait. */
  sendBehind: (bytes: Uint8Array) => void = (bytes) => this.transport.send(bytes);

  constructor({ transport, peer, process, hello }: Greeted, devices: readonly Device[]) {
    this.transport = transport;
    this.peer = peer;
    this.process = process;
    this.window = hello.window;
    this.capabilities = hello.capabilities;
    this.devices = devices;
  }

  /** Sends a frame. The descriptors are taken over. */
  send(
    type: FrameType,
    json: unknown,
    fds: readonly number[] = [],
    settle?: (error?: unknown) => void,
  ): Outgoing {
    return this.transport.send(encodeFrame(type, json, fds.length), fds, settle);
  }

  /** The number of a block that the peer has mapped or is about to. */
  blockId(block: FenceBlock): number {
    return this.#announce(this.#blocks, block, (id) => {
      const fd = duplicateFd(block.fd);
      block.hold();
      this.send("block", { id, byteLength: block.byteLength }, [fd]);
    });
  }

  #announce<T extends object>(announcements: Announcements<T>, thing: T, announce: (id: number) => void): number {
    const { id, forgotten } = announcements.idOf(thing, announce);
    if (forgotten !== undefined) {
      release(forgotten.thing);
      this.sendBehind(encodeFrame("forget", { blocks: [], pools: [], processes: [], [announcements.kind]: [forgotten.id] }));
    }
    return id;
  }

  /** A slot as the peer knows it. */
  slotJson({ word, value }: Slot): WordValue {
    return { block: this.blockId(word.block), word: word.index, value: Number(value) };
  }

  /** The number of a pool that the peer can import. */
  poolId(pool: AnyNativePool, memoryKind: MemoryKind, deviceUuid: string): number {
    return this.#announce(this.#pools, pool, (id) => {
      this.send("pool", { id, memoryKind, deviceUuid, poolId: pool.id }, [poolFd(pool)]);
    });
  }

  /** The number of a third process that the peer can watch. */
  processId(process: PeerProcess): number {
    return this.#announce(this.#processes, process, (id) => {
      const fd = process.duplicatePidfd();
      process.hold();
      this.send("process", { id, identity: process.identity }, [fd]);
    });
  }

  /** Takes the pidfd over. */
  addProcess({ id, identity }: ProcessJson, pidfd: number): void {
    if (this.#peerProcesses.has(id) || this.#peerProcesses.size >= MAX_ANNOUNCED) {
      discardFds(pidfd);
      throw new ProtocolError(`Cannot take process ${id} from the peer: expected a new number, at most ${MAX_ANNOUNCED} of them`);
    }
    this.#peerProcesses.set(id, new PeerProcess(identity, pidfd));
  }

  /** What the peer will not name any more. */
  forget({ blocks, pools, processes }: ForgetJson): void {
    for (const id of blocks) this.peerBlocks.forget(id);
    for (const id of pools) this.peerPools.forget(id);
    for (const id of processes) {
      this.#peerProcesses.get(id)?.release();
      this.#peerProcesses.delete(id);
    }
  }

  peerProcess(id: number): PeerProcess {
    const process = this.#peerProcesses.get(id);
    if (process === undefined) throw new ProtocolError(`Cannot use process ${id}: the peer has announced no such process`);
    return process;
  }

  /** Lets go of all that only the connection needed. */
  close(): void {
    this.transport.close();
    this.peerPools.close();
    this.peerBlocks.close();
    this.words.close();
    for (const block of this.#blocks.things) block.release();
    for (const process of this.#processes.things) process.release();
    for (const process of this.#peerProcesses.values()) process.release();
    this.process.release();
  }
}
