/** Who a process is: equal on both sides only for one and the same process, also after its pid was used again. */
import { InvalidArgumentError, ProtocolError } from "../errors.ts";
import { formatUuid, parseUuid } from "./hex.ts";

/** What tells one process from every other one, ever. */
export interface ProcessIdentity {
  /** The kernel's random UUID of this boot. */
  readonly bootId: string;
  /** The process id in its own pid namespace. */
  readonly pid: number;
  /** The inode of its pid namespace: pids of different containers are different. */
  readonly pidNamespace: number;
  /** When it was started, in clock ticks since boot: a reused pid has another one. */
  readonly startTime: number;
}

/** Bytes of an encoded identity: boot id 16, pid u32, pid namespace u64, start time u64; little endian. */
export const PROCESS_IDENTITY_BYTES = 36;

const PID_MAX = 0x7fff_ffff;
const MAX = Number.MAX_SAFE_INTEGER;

/** Whether both name the same process. */
export function isSameProcess(a: ProcessIdentity, b: ProcessIdentity): boolean {
  return a.pid === b.pid && a.startTime === b.startTime && a.pidNamespace === b.pidNamespace && a.bootId === b.bootId;
}

/** The identity as 36 bytes. */
export function encodeProcessIdentity(identity: ProcessIdentity): Uint8Array<ArrayBuffer> {
  const { bootId, pid, pidNamespace, startTime } = identity;
  const bootBytes = parseUuid(bootId);
  if (bootBytes === null) throw new InvalidArgumentError(`Cannot encode a process identity: bootId is not a UUID`);
  if (!Number.isInteger(pid) || pid < 1 || pid > PID_MAX) {
    throw new InvalidArgumentError(`Cannot encode a process identity: pid is ${pid}, expected an integer from 1 to ${PID_MAX}`);
  }
  for (const [name, value] of [["pidNamespace", pidNamespace], ["startTime", startTime]] as const) {
    if (!Number.isSafeInteger(value) || value < 0) {
      throw new InvalidArgumentError(`Cannot encode a process identity: ${name} is ${value}, expected an integer from 0`);
    }
  }
  const bytes = new Uint8Array(PROCESS_IDENTITY_BYTES);
  bytes.set(bootBytes);
  const view = new DataView(bytes.buffer);
  view.setUint32(16, pid, true);
  view.setBigUint64(20, BigInt(pidNamespace), true);
  view.setBigUint64(28, BigInt(startTime), true);
  return bytes;
}

/** Reads an identity from exactly 36 bytes. Throws ProtocolError when they are not one. */
export function decodeProcessIdentity(bytes: Uint8Array): ProcessIdentity {
  if (bytes.byteLength !== PROCESS_IDENTITY_BYTES) {
    throw new ProtocolError(
      `Cannot decode a process identity: it has ${bytes.byteLength} bytes, expected ${PROCESS_IDENTITY_BYTES}`,
    );
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const pid = view.getUint32(16, true);
  const pidNamespace = view.getBigUint64(20, true);
  const startTime = view.getBigUint64(28, true);
  const fields = [["pid", pid, 1, PID_MAX], ["pidNamespace", pidNamespace, 0, MAX], ["startTime", startTime, 0, MAX]] as const;
  for (const [name, value, min, max] of fields) {
    if (value < min || value > max) {
      throw new ProtocolError(`Cannot decode a process identity: ${name} is out of range: ${value}, expected ${min} to ${max}`);
    }
  }
  return { bootId: formatUuid(bytes), pid, pidNamespace: Number(pidNamespace), startTime: Number(startTime) };
}
