/** One connection as both directions of a channel see it: what was announced over it, and whether it still stands. */
import type { Device } from "../device.ts";
import { ProtocolError } from "../errors.ts";
import { discardFds, duplicateFd } from "../os/fd.ts";
import type { FenceBlock } from "../share/fence_block.ts";
import { encodeFrame, type FrameType } from "../wire/frame.ts";
import type { MemoryKind } from "../wire/descriptor.ts";
import type { ProcessJson, Window, WordValue } from "../wire/messages.ts";
import type { Greeted, Peer } from "./handshake.ts";
import { PeerProcess } from "./peer_process.ts";
import { type AnyNativePool, PeerPools, poolFd } from "./pools.ts";
import type { Outgoing, Transport } from "./transport.ts";
import { PeerBlocks, type Slot, WordPool } from "./words.ts";

/** What a peer may make us watch. */
const MAX_PROCESSES = 256;

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
  readonly #blockIds = new Map<FenceBlock, number>();
  readonly #poolIds = new WeakMap<AnyNativePool, number>();
  #pools = 0;
  readonly #processIds = new Map<PeerProcess, number>();

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

  /** The number of a block that the peer has mapped or is about to. It is kept until the link ends. */
  blockId(block: FenceBlock): number {
    let id = this.#blockIds.get(block);
    if (id === undefined) {
      const fd = duplicateFd(block.fd);
      this.#blockIds.set(block, id = this.#blockIds.size);
      block.hold();
      this.send("block", { id, byteLength: block.byteLength }, [fd]);
    }
    return id;
  }

  /** A slot as the peer knows it. */
  slotJson({ word, value }: Slot): WordValue {
    return { block: this.blockId(word.block), word: word.index, value: Number(value) };
  }

  /** The number of a pool that the peer can import. */
  poolId(pool: AnyNativePool, memoryKind: MemoryKind, deviceUuid: string): number {
    let id = this.#poolIds.get(pool);
    if (id === undefined) {
      const fd = poolFd(pool);
      this.#poolIds.set(pool, id = this.#pools++);
      this.send("pool", { id, memoryKind, deviceUuid, poolId: pool.id }, [fd]);
    }
    return id;
  }

  /** The number of a third process that the peer can watch. */
  processId(process: PeerProcess): number {
    let id = this.#processIds.get(process);
    if (id === undefined) {
      const fd = process.duplicatePidfd();
      this.#processIds.set(process, id = this.#processIds.size);
      process.hold();
      this.send("process", { id, identity: process.identity }, [fd]);
    }
    return id;
  }

  /** Takes the pidfd over. */
  addProcess({ id, identity }: ProcessJson, pidfd: number): void {
    if (this.#peerProcesses.has(id) || this.#peerProcesses.size >= MAX_PROCESSES) {
      discardFds(pidfd);
      throw new ProtocolError(`Cannot take process ${id} from the peer: expected a new number, at most ${MAX_PROCESSES} of them`);
    }
    this.#peerProcesses.set(id, new PeerProcess(identity, pidfd));
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
    for (const block of this.#blockIds.keys()) block.release();
    for (const process of this.#processIds.keys()) process.release();
    for (const process of this.#peerProcesses.values()) process.release();
    this.process.release();
  }
}
