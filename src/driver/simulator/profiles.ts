/**
 * Machines that can do less than the default one, which is a data-centre GPU under Linux without an IMEX channel. Where
 * nobody of us has seen the machine, the profile follows reports of its users; docs/simulator.md says which.
 */
import { environmentVariable } from "../../../ffi/mod.ts";
import { InvalidArgumentError } from "../../errors.ts";
import type { DEVICE_ATTRIBUTES } from "../device_attributes.ts";
import {
  CUDA_ERROR_INVALID_HANDLE,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_MAP_FAILED,
  CUDA_ERROR_NOT_FOUND,
  CUDA_ERROR_NOT_SUPPORTED,
} from "../results.ts";
import type { DriverCall } from "./calls.ts";

const VARIABLE = "CUDA_IPC_SIM_PROFILE";

export interface Profile {
  /** Device attributes that differ from the default machine's. */
  readonly attributes?: { readonly [Name in keyof typeof DEVICE_ATTRIBUTES]?: number };
  /** Calls that always give one answer. */
  readonly refusals?: { readonly [Call in DriverCall]?: number };
  /** What creating a pool that can be shared gives; 0 when it works. */
  readonly sharedPools?: number;
  /** What creating physical memory that can be shared gives. */
  readonly sharedVirtualMemory?: number;
  /** What creating a pool in host memory gives. */
  readonly hostPools?: number;
  /** What creating an event for several processes gives. */
  readonly interprocessEvents?: number;
  /** Whether fabric handles work: there is an IMEX channel. */
  readonly hasImexChannel?: boolean;
  readonly hasNoPeerAccess?: boolean;
  /** One process at a time may have a context. */
  readonly isExclusive?: boolean;
  /** Added to the devices' names. */
  readonly nameSuffix?: string;
  /** In place of `GPU-`. */
  readonly uuidPrefix?: string;
  /** How much of a whole device's memory there is. */
  readonly memoryShare?: number;
}

const PROFILES = {
  /** The attributes say that handles work, and they do not. */
  wsl2: {
    nameSuffix: " (WSL2)",
    sharedPools: CUDA_ERROR_INVALID_VALUE,
    sharedVirtualMemory: CUDA_ERROR_NOT_SUPPORTED,
    refusals: {
      cuIpcGetEventHandle: CUDA_ERROR_INVALID_HANDLE,
      cuIpcOpenEventHandle: CUDA_ERROR_INVALID_HANDLE,
      cuIpcGetMemHandle: CUDA_ERROR_INVALID_HANDLE,
      cuIpcOpenMemHandle: CUDA_ERROR_INVALID_HANDLE,
    },
  },
  /** A slice of a device: no peers, no legacy handles, no events between processes. */
  mig: {
    nameSuffix: " MIG 1g",
    uuidPrefix: "MIG-",
    memoryShare: 1 / 8,
    hasNoPeerAccess: true,
    attributes: { IPC_EVENT_SUPPORTED: 0 },
    interprocessEvents: CUDA_ERROR_NOT_SUPPORTED,
    refusals: {
      cuIpcGetEventHandle: CUDA_ERROR_NOT_SUPPORTED,
      cuIpcOpenEventHandle: CUDA_ERROR_NOT_SUPPORTED,
      cuIpcGetMemHandle: CUDA_ERROR_NOT_SUPPORTED,
      cuIpcOpenMemHandle: CUDA_ERROR_NOT_SUPPORTED,
    },
  },
  /** An integrated GPU: nothing can be shared, and the attributes say so. */
  tegra: {
    nameSuffix: " (Tegra)",
    attributes: {
      INTEGRATED: 1,
      MEMPOOL_SUPPORTED_HANDLE_TYPES: 0,
      HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: 0,
      HANDLE_TYPE_FABRIC_SUPPORTED: 0,
      IPC_EVENT_SUPPORTED: 0,
      HOST_NUMA_MEMORY_POOLS_SUPPORTED: 0,
    },
    hasNoPeerAccess: true,
    sharedPools: CUDA_ERROR_NOT_SUPPORTED,
    sharedVirtualMemory: CUDA_ERROR_NOT_SUPPORTED,
    hostPools: CUDA_ERROR_NOT_SUPPORTED,
    interprocessEvents: CUDA_ERROR_NOT_SUPPORTED,
    refusals: {
      cuIpcGetEventHandle: CUDA_ERROR_NOT_SUPPORTED,
      cuIpcOpenEventHandle: CUDA_ERROR_NOT_SUPPORTED,
      cuIpcGetMemHandle: CUDA_ERROR_NOT_SUPPORTED,
      cuIpcOpenMemHandle: CUDA_ERROR_NOT_SUPPORTED,
    },
  },
  /** Compute mode EXCLUSIVE_PROCESS. */
  exclusive: { isExclusive: true, attributes: { COMPUTE_MODE: 3 } },
  /** The default, by name: fabric handles are not permitted. */
  "no-imex": {},
  /** With an IMEX channel: fabric handles work. */
  imex: { hasImexChannel: true },
  /** A driver from before the stream memory operations' present form, and before host pools. */
  "old-driver": {
    refusals: { cuStreamWriteValue64: CUDA_ERROR_NOT_FOUND, cuStreamWaitValue64: CUDA_ERROR_NOT_FOUND },
    attributes: { CAN_USE_64_BIT_STREAM_MEM_OPS: 0, HOST_NUMA_MEMORY_POOLS_SUPPORTED: 0, HANDLE_TYPE_FABRIC_SUPPORTED: 0 },
    hostPools: CUDA_ERROR_NOT_SUPPORTED,
  },
  "no-peer": { hasNoPeerAccess: true },
  /** A container with a /dev/shm of its own. */
  "private-shm": { refusals: { cuIpcOpenEventHandle: CUDA_ERROR_MAP_FAILED } },
  "no-fences": {
    attributes: { CAN_USE_64_BIT_STREAM_MEM_OPS: 0 },
    refusals: { cuStreamWriteValue64: CUDA_ERROR_NOT_SUPPORTED, cuStreamWaitValue64: CUDA_ERROR_NOT_SUPPORTED },
  },
  "no-host-pools": { attributes: { HOST_NUMA_MEMORY_POOLS_SUPPORTED: 0 }, hostPools: CUDA_ERROR_NOT_SUPPORTED },
  "no-pools": {
    attributes: { MEMORY_POOLS_SUPPORTED: 0, MEMPOOL_SUPPORTED_HANDLE_TYPES: 0, HOST_NUMA_MEMORY_POOLS_SUPPORTED: 0 },
    refusals: { cuMemPoolCreate: CUDA_ERROR_NOT_SUPPORTED },
  },
  "no-virtual-memory": {
    attributes: {
      VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: 0,
      HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: 0,
      HANDLE_TYPE_FABRIC_SUPPORTED: 0,
    },
    refusals: { cuMemCreate: CUDA_ERROR_NOT_SUPPORTED, cuMemAddressReserve: CUDA_ERROR_NOT_SUPPORTED },
  },
} as const satisfies Readonly<Record<string, Profile>>;

/** The machine that CUDA_IPC_SIM_PROFILE names; several names, separated by commas, add up. */
export function readProfile(): Profile {
  const names = (environmentVariable(VARIABLE) ?? "").split(",").map((name) => name.trim()).filter((name) => name !== "");
  let profile: Profile = {};
  for (const name of names) {
    if (!Object.hasOwn(PROFILES, name)) {
      throw new InvalidArgumentError(
        `Cannot open the simulator: ${VARIABLE} has "${name}", expected ${Object.keys(PROFILES).join(", ")}`,
      );
    }
    const next: Profile = PROFILES[name as keyof typeof PROFILES];
    profile = {
      ...profile,
      ...next,
      attributes: { ...profile.attributes, ...next.attributes },
      refusals: { ...profile.refusals, ...next.refusals },
    };
  }
  return profile;
}
