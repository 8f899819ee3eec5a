/** Checks that stand before a native call, because a runtime would crash, corrupt memory or change the value instead. */
import { InvalidArgumentError } from "../src/errors.ts";
import type { Signature } from "./types.ts";

/** What C reads as size_t: both runtimes would turn -1 into 2^64 - 1, and NaN or a fraction into something else. */
export function checkSize(what: string, value: number): void {
  if (!Number.isSafeInteger(value) || value < 0) {
    throw new InvalidArgumentError(`Cannot use ${what} ${String(value)}: expected an integer from 0 to 2^53 - 1`);
  }
}

/** Refuses declarations that one of the runtimes could not keep, in both. */
export function checkSignature(name: string, { args, nonblocking }: Signature): void {
  const at = args.indexOf("struct64");
  if (at >= 0 && (at !== 1 || args.length > 3)) {
    throw new InvalidArgumentError(`Cannot declare ${name}: a struct by value must be the second of at most three arguments`);
  }
  // on another thread C may still read the bytes when JavaScript has freed or detached them
  if (nonblocking && args.some((type) => type === "bytes" || type === "struct64")) {
    throw new InvalidArgumentError(
      `Cannot declare ${name}: a nonblocking call takes no bytes. Pass the address of a native block`,
    );
  }
}

/** An empty or detached view gives C a meaningless address. */
export function checkedBytes(call: string, value: unknown): Uint8Array {
  if (!(value instanceof Uint8Array)) throw new InvalidArgumentError(`Cannot call ${call}: expected a Uint8Array`);
  if (value.byteLength === 0) throw new InvalidArgumentError(`Cannot call ${call}: the Uint8Array is empty or detached`);
  return value;
}

/** A struct by value is copied by length that nobody else checks. */
export function checkedStruct(call: string, value: unknown): Uint8Array {
  const bytes = checkedBytes(call, value);
  if (bytes.byteLength !== 64) {
    throw new InvalidArgumentError(`Cannot call ${call}: the struct has ${bytes.byteLength} bytes, expected 64`);
  }
  return bytes;
}
