/** Handles of 64 bytes that name memory of a running process, for those who are given no descriptor. */
import { cString, libc } from "../../os/libc.ts";
import { openSharedMemoryHandle, SHARED_MEMORY_HANDLE_BYTES, sharedMemoryHandle } from "../../os/memory.ts";
import { OPAQUE_BYTES } from "../structs.ts";
import type { ProcessState } from "./state.ts";

const MAGIC = 0x6d65_4953; // "SIem"
const LAYOUT = { magic: 0, pid: 4, state: 8, fd: 16, key: 24, byteLength: 32, namespace: 40, memory: 44 };
const O_RDWR_CLOEXEC = 0o2000002;

export interface MemoryName {
  readonly pid: number;
  /** The token of that process's state. */
  readonly state: number;
  readonly fd: number;
  readonly key: number;
  readonly byteLength: number;
  /** The pid namespace of that process. */
  readonly namespace: number;
  /** What other pid namespaces open it by. */
  readonly memory: Uint8Array;
}

export function nameMemory(state: ProcessState, fd: number, key: number, byteLength = 0): Uint8Array {
  const bytes = new Uint8Array(OPAQUE_BYTES);
  const view = new DataView(bytes.buffer);
  view.setUint32(LAYOUT.magic, MAGIC, true);
  view.setUint32(LAYOUT.pid, state.pid, true);
  view.setFloat64(LAYOUT.state, state.token, true);
  view.setUint32(LAYOUT.fd, fd, true);
  view.setFloat64(LAYOUT.key, key, true);
  view.setFloat64(LAYOUT.byteLength, byteLength, true);
  view.setUint32(LAYOUT.namespace, state.namespace, true);
  bytes.set(sharedMemoryHandle(fd) ?? [], LAYOUT.memory);
  return bytes;
}

export function readMemoryName(handle: Uint8Array): MemoryName | undefined {
  const view = new DataView(handle.buffer, handle.byteOffset, OPAQUE_BYTES);
  if (view.getUint32(LAYOUT.magic, true) !== MAGIC) return undefined;
  return {
    pid: view.getUint32(LAYOUT.pid, true),
    state: view.getFloat64(LAYOUT.state, true),
    fd: view.getUint32(LAYOUT.fd, true),
    key: view.getFloat64(LAYOUT.key, true),
    byteLength: view.getFloat64(LAYOUT.byteLength, true),
    namespace: view.getUint32(LAYOUT.namespace, true),
    memory: handle.subarray(LAYOUT.memory, LAYOUT.memory + SHARED_MEMORY_HANDLE_BYTES),
  };
}

/** Opens what the handle names, if that very process still has it. The caller compares the key, and closes. */
export function openNamedMemory(state: ProcessState, handle: Uint8Array): { fd: number; key: number } | undefined {
  const name = readMemoryName(handle);
  if (name === undefined) return undefined;
  if (name.namespace !== state.namespace) {
    const fd = openSharedMemoryHandle(name.memory);
    return fd === undefined ? undefined : { fd, key: name.key };
  }
  if (!state.isRunning(name.pid, name.state)) return undefined;
  const fd = libc().open(cString(`/proc/${name.pid}/fd/${name.fd}`), O_RDWR_CLOEXEC, 0);
  return fd < 0 ? undefined : { fd, key: name.key };
}
