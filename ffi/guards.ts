/** Checks that stand before a native call, because both runtimes would crash or corrupt memory instead. */
import { InvalidArgumentError } from "../src/errors.ts";

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
