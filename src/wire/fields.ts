/** Checks of the fields that descriptors have in common. What a user passes is refused with InvalidArgumentError. */
import { checkInteger, invalid } from "../arguments.ts";
import { InvalidArgumentError, ProtocolError } from "../errors.ts";
import { copyBytes } from "./bytes.ts";
import { isUuid, parseUuid } from "./hex.ts";
import type { ProcessIdentity } from "./identity.ts";

const DEVICE_UUID_PREFIX = "GPU-";
const MAX_PID = 0x7fff_ffff;

/** An object that may be read field by field. */
export function checkObject(action: string, name: string, value: unknown): void {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw invalid(action, name, value, "an object");
}

/** A UUID in lower case. */
export function checkUuid(action: string, name: string, value: unknown): string {
  if (typeof value !== "string" || !isUuid(value)) throw invalid(action, name, value, "a UUID in lower case");
  return value;
}

/** `GPU-` and a UUID in lower case, as `device.uuid` gives it. */
export function checkDeviceUuid(action: string, value: unknown): string {
  if (typeof value !== "string" || !isDeviceUuid(value)) {
    throw invalid(action, "deviceUuid", value, '"GPU-" and a UUID in lower case');
  }
  return value;
}

function isDeviceUuid(text: string): boolean {
  return text.startsWith(DEVICE_UUID_PREFIX) && isUuid(text.slice(DEVICE_UUID_PREFIX.length));
}

/** The 16 bytes of a device's UUID, or null where the text is none. */
export function deviceUuidBytes(text: string): Uint8Array | null {
  return text.startsWith(DEVICE_UUID_PREFIX) ? parseUuid(text.slice(DEVICE_UUID_PREFIX.length)) : null;
}

/** `GPU-` and the UUID. */
export function deviceUuidFrom(uuid: string): string {
  return DEVICE_UUID_PREFIX + uuid;
}

/** A copy of the identity that nobody can change. */
export function checkIdentity(action: string, value: unknown): ProcessIdentity {
  checkObject(action, "exporter", value);
  const { bootId, pid, pidNamespace, startTime } = value as ProcessIdentity;
  return Object.freeze({
    bootId: checkUuid(action, "exporter.bootId", bootId),
    pid: checkInteger(action, "exporter.pid", pid, 1, MAX_PID),
    pidNamespace: checkInteger(action, "exporter.pidNamespace", pidNamespace, 0),
    startTime: checkInteger(action, "exporter.startTime", startTime, 0),
  });
}

/** A copy of the driver's bytes. */
export function checkOpaque(action: string, value: unknown, byteLength: number): Uint8Array {
  const copy = copyBytes(value);
  if (copy === null) throw invalid(action, "opaque", value, "a Uint8Array");
  if (copy.byteLength !== byteLength) {
    throw new InvalidArgumentError(`Cannot ${action}: opaque has ${copy.byteLength} bytes, expected ${byteLength}`);
  }
  return copy;
}

/** What came from another process is not the caller's mistake: the same refusal, as a ProtocolError. */
export function received<T>(make: () => T): T {
  try {
    return make();
  } catch (error) {
    if (error instanceof InvalidArgumentError) throw new ProtocolError(error.message, { cause: error });
    throw error;
  }
}
