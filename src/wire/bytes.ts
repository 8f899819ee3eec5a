/** Bytes that somebody else may hold. */

/** A copy, which no other holder or thread can write to while it is read; null where the value is no Uint8Array. */
export function copyBytes(value: unknown): Uint8Array<ArrayBuffer> | null {
  // isView too: an object can have the prototype without being a view
  if (!ArrayBuffer.isView(value) || !(value instanceof Uint8Array)) return null;
  return value.byteLength === 0 ? new Uint8Array() : new Uint8Array(value); // a detached one has 0 bytes and no copy
}
