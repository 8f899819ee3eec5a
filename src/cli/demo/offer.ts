/** What the demo's two sides say to each other beside the buffer. */
import { ProtocolError } from "../../errors.ts";

/** A part of the buffer, and what the consumer shall fill it with. */
export interface Mark {
  readonly byteOffset: number;
  readonly byteLength: number;
  readonly value: number;
}

/** The producer's first message. */
export interface Offer {
  readonly mark: Mark;
}

/** The consumer's answer: what it has seen. */
export interface Result {
  readonly digest: string;
}

/** The producer's last message: whether all is as it should be. */
export interface Verdict {
  readonly agreed: boolean;
}

/** The mark of an offer. Whether it lies in the buffer and fits a byte, `subarray` and `fill` check. */
export function readMark(data: unknown): Mark {
  const mark = (data as Partial<Offer> | null | undefined)?.mark;
  if (typeof mark !== "object" || mark === null) throw new ProtocolError("Cannot read the producer's offer: it has no mark");
  return mark;
}
