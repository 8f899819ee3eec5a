/** Work that needs the process at the other end of a channel. */
import { setTimeout as sleep } from "node:timers/promises";
import type { IpcChannel } from "../../channel/channel.ts";
import { InvalidArgumentError, PeerGoneError, ProtocolError } from "../../errors.ts";
import type { Side } from "./report.ts";

/** How long a channel needs to tell a peer that has died from one that has only closed its socket, and more. */
const SETTLE_MS = 700;

/**
 * Does what needs the peer. `gone` aborts when the peer has died or closed the channel before its time; where the work
 * fails because of that, the error says so, whatever was noticed first.
 */
export async function withPeer<T>(side: Side, channel: IpcChannel, work: (gone: AbortSignal) => Promise<T>): Promise<T> {
  const gone = new AbortController();
  const goneError = (cause?: unknown) =>
    new PeerGoneError(`Cannot go on: the ${side}, process ${channel.peer.pid}, has gone before the work was done`, { cause });
  const ended = channel.closed.then((reason) => {
    if (reason !== "closed" && reason !== "protocol-error") gone.abort(goneError());
  });
  try {
    return await work(gone.signal);
  } catch (error) {
    // What was wrong with the file or with the peer's words is not the peer's death
    if (error instanceof InvalidArgumentError || error instanceof ProtocolError) throw error;
    // Socket, driver and pidfd tell of a death one after the other
    await Promise.race([ended, sleep(SETTLE_MS)]);
    throw gone.signal.aborted ? goneError(error) : error;
  }
}
