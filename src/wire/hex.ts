/** Bytes and UUIDs as text. */

/** Two lower-case digits for each byte. */
export function toHex(bytes: Uint8Array): string {
  return bytes.toHex();
}

/** The bytes of lower-case hexadecimal text, or null where it is none. */
export function fromHex(text: string): Uint8Array | null {
  if (text.length % 2 !== 0 || !/^[0-9a-f]*$/.test(text)) return null;
  return Uint8Array.fromHex(text);
}

/** `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` of the 16 bytes at `byteOffset`. */
export function formatUuid(bytes: Uint8Array, byteOffset = 0): string {
  const digits = toHex(bytes.subarray(byteOffset, byteOffset + 16));
  return [digits.slice(0, 8), digits.slice(8, 12), digits.slice(12, 16), digits.slice(16, 20), digits.slice(20)].join("-");
}

/** Whether the text is a UUID in lower case. */
export function isUuid(text: string): boolean {
  return /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(text);
}

/** The 16 bytes of a UUID in lower case, or null where the text is none. */
export function parseUuid(text: string): Uint8Array | null {
  return isUuid(text) ? Uint8Array.fromHex(text.replaceAll("-", "")) : null;
}
