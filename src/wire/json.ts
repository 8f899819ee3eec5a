/** The JSON form of records: readable fields, and the checksum of the byte form so that a changed digit is seen. */
import { shown } from "../arguments.ts";
import { InvalidArgumentError, ProtocolError } from "../errors.ts";
import { fromHex } from "./hex.ts";
import { checksumOf, FORMAT_VERSION, type Kind } from "./record.ts";

/** The fields of a parsed record: exactly `names`, beside type, version and checksum. Their values are unchecked. */
export function readJson<Name extends string>(
  type: Kind,
  value: unknown,
  names: readonly Name[],
): Record<Name | "checksum", unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new InvalidArgumentError(
      `Cannot read a ${type}: expected the object that JSON.parse gives, got ${shown(value)}`,
    );
  }
  const json = value as Record<string, unknown>;
  if (json.type !== type) refuseJson(type, "type", json.type, JSON.stringify(type));
  if (json.version !== FORMAT_VERSION) {
    refuseJson(type, "format version", json.version, `${FORMAT_VERSION}; use the same release of this module on both sides`);
  }
  const known = new Set<string>(["type", "version", "checksum", ...names]);
  for (const name of Object.keys(json)) if (!known.delete(name)) refuseJson(type, "a field", name, "no field of that name");
  const [missing] = known;
  if (missing !== undefined) refuseJson(type, missing, undefined, "a value");
  return json;
}

/** The bytes of a field in hexadecimal. */
export function readJsonBytes(type: Kind, name: string, value: unknown): Uint8Array {
  const bytes = typeof value === "string" ? fromHex(value) : null;
  return bytes ?? refuseJson(type, name, value, "bytes in lower-case hexadecimal");
}

/** `bytes` is the byte form of what the JSON's fields say. */
export function checkJsonChecksum(type: Kind, checksum: unknown, bytes: Uint8Array): void {
  const computed = checksumOf(bytes);
  if (checksum !== computed) refuseJson(type, "checksum", checksum, `${computed}; a field was changed on the way`);
}

function refuseJson(type: Kind, name: string, value: unknown, wanted: string): never {
  throw new ProtocolError(`Cannot read a ${type}: ${name} is ${shown(value)}, expected ${wanted}`);
}
