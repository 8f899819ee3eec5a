/** Commands and answers as lines of JSON that keep bigints and bytes. */
import { Buffer } from "node:buffer";

export function encode(value: unknown): string {
  return JSON.stringify(value, (_key, item) => {
    if (typeof item === "bigint") return { bigint: String(item) };
    if (item instanceof Uint8Array) return { base64: Buffer.from(item).toString("base64") };
    return item;
  });
}

export function decode(text: string): unknown {
  return JSON.parse(text, (_key, item) => {
    if (typeof item?.bigint === "string") return BigInt(item.bigint);
    if (typeof item?.base64 === "string") return new Uint8Array(Buffer.from(item.base64, "base64"));
    return item;
  });
}
