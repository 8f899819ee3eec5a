/**
 * Buffers that are sent on. Their owner must know of every process that holds one, since the process in the middle may die:
 * so it is told, and answers, before the buffer goes out.
 */
import { CudaIpcError, PeerGoneError } from "../errors.ts";
import type { ForwardedJson, ForwardJson, ForwardReleasedJson } from "../wire/messages.ts";
import type { Claim } from "./lease.ts";
import type { Link } from "./link.ts";
import type { Outbox } from "./outbox.ts";
import type { PeerProcess } from "./peer_process.ts";
import { type Forwarded, holdBehind, type ReceivedHold } from "./received.ts";
import type { Slot } from "./words.ts";

interface Asked {
  readonly resolve: (forwarded: Forwarded) => void;
  readonly reject: (error: unknown) => void;
}

/** A claim that the peer has told us of, and the one that we have told our own owner of. */
interface Told {
  readonly claim: Claim;
  upstream: Forwarded | undefined;
}

export class Forwarding {
  readonly #link: Link;
  readonly #outbox: Outbox;
  readonly #asked = new Map<number, Asked>();
  readonly #told = new Map<number, Told>();
  #nextRequest = 1;
  #end: unknown;

  constructor(link: Link, outbox: Outbox) {
    this.#link = link;
    this.#outbox = outbox;
  }

  /** Tells the peer, whose buffer it is or who got it itself, that `process` holds it too. */
  forward(hold: ReceivedHold, process: PeerProcess, slot: Slot): Promise<Forwarded> {
    if (this.#end !== undefined) {
      return Promise.reject(
        new PeerGoneError("Cannot send a buffer on: the channel that it came over has ended, so that its owner cannot be told"),
      );
    }
    const request = this.#nextRequest++;
    const link = this.#link;
    return new Promise((resolve, reject) => {
      this.#asked.set(request, { resolve, reject });
      link.send("forward", {
        request,
        message: hold.messageId,
        buffer: hold.index,
        process: link.processId(process),
        release: link.slotJson(slot),
      });
    });
  }

  /** The peer's answer. */
  onForwarded({ request, refusal }: ForwardedJson): void {
    const asked = this.#asked.get(request);
    this.#asked.delete(request);
    if (refusal !== null) {
      asked?.reject(new CudaIpcError(`Cannot send a buffer on: the process that it came from refused: ${refusal}`));
    } else {
      asked?.resolve({
        onReleased: () => {
          if (this.#link.transport.isOpen) this.#link.send("forwardReleased", { requests: [request] });
        },
      });
    }
  }

  /** The peer tells us of a third process. */
  async onForward({ request, message, buffer, process: id, release }: ForwardJson): Promise<void> {
    const process = this.#link.peerProcess(id);
    const slot = this.#link.peerBlocks.slot(release);
    const hold = this.#outbox.holdOf(message, buffer);
    if (hold === undefined) return this.#answer(request, "the buffer was released before");
    const claim = hold.add(slot, process, () => this.#told.delete(request));
    const told: Told = { claim, upstream: undefined };
    if (!claim.isEnded) this.#told.set(request, told);
    try {
      told.upstream = await holdBehind(hold.allocation)?.forward(process, slot);
      this.#answer(request, null);
    } catch (error) {
      claim.cancel();
      this.#answer(request, error instanceof Error ? error.message : String(error));
    }
  }

  #answer(request: number, refusal: string | null): void {
    if (this.#link.transport.isOpen) this.#link.send("forwarded", { request, refusal });
  }

  /** Third processes have said that they are done. */
  onForwardReleased({ requests }: ForwardReleasedJson): void {
    for (const request of requests) {
      const told = this.#told.get(request);
      told?.claim.watchWord();
      told?.upstream?.onReleased();
    }
  }

  /** No answer comes any more. */
  end(error: unknown): void {
    this.#end = error;
    for (const { reject } of this.#asked.values()) reject(error);
    this.#asked.clear();
  }
}
