/** The simulated machine, as environment variables describe it: devices, memory, and what the platform refuses. */
import { environmentVariable } from "../../../ffi/mod.ts";
import { InvalidArgumentError } from "../../errors.ts";
import { type Profile, readProfile } from "./profiles.ts";

const MAX_DEVICES = 16;
const DEFAULT_MEMORY_BYTES = 8 * 2 ** 30;

/** One device of the machine; `index` is the machine's own number, which CUDA_VISIBLE_DEVICES does not change. */
export interface SimulatedDevice {
  readonly index: number;
  readonly name: string;
  readonly uuid: string;
  readonly uuidBytes: Uint8Array;
  readonly totalBytes: number;
}

export interface Machine {
  /** Processes of machines with different names share neither device memory nor events. */
  readonly name: string;
  /** What it cannot do. */
  readonly profile: Profile;
  /** Which devices can use each other's memory, by index; all when undefined. */
  readonly peers: readonly (readonly [number, number])[] | undefined;
  /** The devices that this process sees, by ordinal. */
  readonly devices: readonly SimulatedDevice[];
}

export function readMachine(): Machine {
  const profile = readProfile();
  const count = readCount("CUDA_IPC_SIM_DEVICES", 1, MAX_DEVICES);
  const totalBytes = readBytes("CUDA_IPC_SIM_MEMORY", DEFAULT_MEMORY_BYTES);
  const all = Array.from({ length: count }, (_, index) => makeDevice(index, totalBytes, profile));
  return {
    name: readName(),
    profile,
    peers: readPeers(count),
    devices: visibleDevices(all, environmentVariable("CUDA_VISIBLE_DEVICES")),
  };
}

function makeDevice(index: number, wholeBytes: number, profile: Profile): SimulatedDevice {
  const hex = `51b0da7a00004000800000000000${index.toString(16).padStart(4, "0")}`;
  const uuidBytes = Uint8Array.from(hex.match(/../g)!, (pair) => parseInt(pair, 16));
  const text = hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
  return {
    index,
    name: `Simulated GPU ${index}${profile.nameSuffix ?? ""}`,
    uuid: `${profile.uuidPrefix ?? "GPU-"}${text}`,
    uuidBytes,
    totalBytes: Math.floor(wholeBytes * (profile.memoryShare ?? 1)),
  };
}

/** As the driver reads the variable: ordinals or UUID prefixes; the first entry that names nothing ends the list. */
function visibleDevices(all: readonly SimulatedDevice[], variable: string | undefined): readonly SimulatedDevice[] {
  if (variable === undefined) return all;
  const visible: SimulatedDevice[] = [];
  for (const entry of variable.split(",").map((text) => text.trim())) {
    const named = /^\d+$/.test(entry)
      ? all[Number(entry)]
      : entry === ""
      ? undefined
      : all.find(({ uuid }) => uuid.toLowerCase().startsWith(entry.toLowerCase()));
    if (named === undefined) break;
    if (visible.includes(named)) return []; // a device named twice: the driver shows none
    visible.push(named);
  }
  return visible;
}

function readName(): string {
  const name = environmentVariable("CUDA_IPC_SIM_MACHINE") ?? "";
  if (/^[\w.]{0,64}$/.test(name)) return name;
  throw new InvalidArgumentError(
    `Cannot open the simulator: CUDA_IPC_SIM_MACHINE is "${name}", expected up to 64 letters, digits, dots and underscores`,
  );
}

function readPeers(count: number): Machine["peers"] {
  const text = environmentVariable("CUDA_IPC_SIM_PEERS");
  if (text === undefined) return undefined;
  return text.split(",").map((pair) => pair.trim()).filter((pair) => pair !== "").map((pair) => {
    const match = /^(\d+)-(\d+)$/.exec(pair);
    const devices = match === null ? [] : [Number(match[1]), Number(match[2])];
    if (match === null || devices.some((device) => device >= count)) {
      throw new InvalidArgumentError(
        `Cannot open the simulator: CUDA_IPC_SIM_PEERS has "${pair}", expected pairs of the ${count} devices, such as "0-1,2-3"`,
      );
    }
    return [devices[0], devices[1]] as const;
  });
}

function readCount(name: string, fallback: number, max: number): number {
  const text = environmentVariable(name);
  if (text === undefined || text === "") return fallback;
  const value = Number(text);
  if (!Number.isInteger(value) || value < 0 || value > max) {
    throw new InvalidArgumentError(`Cannot open the simulator: ${name} is "${text}", expected a whole number from 0 to ${max}`);
  }
  return value;
}

const UNITS: Readonly<Record<string, number>> = { "": 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };

function readBytes(name: string, fallback: number): number {
  const text = environmentVariable(name);
  if (text === undefined || text === "") return fallback;
  const match = /^(\d+) ?(|KiB|MiB|GiB|TiB)$/.exec(text);
  const value = match === null ? NaN : Number(match[1]) * UNITS[match[2]];
  if (!Number.isSafeInteger(value) || value < 1 || value > 2 ** 40) {
    throw new InvalidArgumentError(
      `Cannot open the simulator: ${name} is "${text}", expected bytes, or a number with KiB, MiB, GiB or TiB, up to 1 TiB`,
    );
  }
  return value;
}
