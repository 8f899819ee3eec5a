/** What the operating system calls a shareable handle: a file descriptor on Linux, a HANDLE on Windows. */
import { type Address, NativeBlock, type StructLayout, writeStruct } from "../../ffi/mod.ts";
import { CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_HANDLE_TYPE_WIN32 } from "../driver/enums.ts";
import { closeFd, duplicateFd, setCloseOnExec } from "../os/fd.ts";
import { ownIdentity } from "../os/process.ts";
import { closeHandle, copyHandleFrom, forbidInheritance, IS_WINDOWS } from "../os/windows.ts";

/** The CUmemAllocationHandleType of this operating system. */
export function ipcHandleType(): number {
  return IS_WINDOWS ? CU_MEM_HANDLE_TYPE_WIN32 : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}

/** winbase.h; the driver demands it for Win32 handles. */
export const SECURITY_ATTRIBUTES = {
  name: "SECURITY_ATTRIBUTES",
  byteLength: 24,
  fields: {
    nLength: { type: "u32", offset: 0 },
    lpSecurityDescriptor: { type: "address", offset: 8 },
    bInheritHandle: { type: "i32", offset: 16 },
  },
} as const satisfies StructLayout;

let attributes: NativeBlock | undefined;

/** On Windows: not inherited, and the default security of the user. Elsewhere nothing. */
export function securityAttributes(): Address | undefined {
  if (!IS_WINDOWS) return undefined;
  if (attributes === undefined) {
    attributes = new NativeBlock(SECURITY_ATTRIBUTES.byteLength);
    writeStruct(attributes, 0, SECURITY_ATTRIBUTES, { nLength: SECURITY_ATTRIBUTES.byteLength });
  }
  return attributes.addressAt(0);
}

/** ntdef.h; the driver demands it for Win32 handles of virtual memory. */
export const OBJECT_ATTRIBUTES = {
  name: "OBJECT_ATTRIBUTES",
  byteLength: 48,
  fields: {
    Length: { type: "u32", offset: 0 },
    RootDirectory: { type: "address", offset: 8 },
    ObjectName: { type: "address", offset: 16 },
    Attributes: { type: "u32", offset: 24 },
    SecurityDescriptor: { type: "address", offset: 32 },
    SecurityQualityOfService: { type: "address", offset: 40 },
  },
} as const satisfies StructLayout;

let objectBlock: NativeBlock | undefined;

/** On Windows: a nameless object with the default security of the user. Elsewhere nothing. */
export function objectAttributes(): Address | undefined {
  if (!IS_WINDOWS) return undefined;
  if (objectBlock === undefined) {
    objectBlock = new NativeBlock(OBJECT_ATTRIBUTES.byteLength);
    writeStruct(objectBlock, 0, OBJECT_ATTRIBUTES, { Length: OBJECT_ATTRIBUTES.byteLength });
  }
  return objectBlock.addressAt(0);
}

/** The handle that the driver has just exported into its out-block, as a number. */
export function readOsHandle(out: NativeBlock): number {
  return IS_WINDOWS ? out.readNumber(0) : out.readI32(0);
}

/** Closes a handle that this module owns. */
export function closeOsHandle(handle: number): void {
  if (IS_WINDOWS) closeHandle(handle);
  else closeFd(handle);
}

/** Another handle for the same thing, which a started program does not inherit either. */
export function duplicateOsHandle(handle: number): number {
  return IS_WINDOWS ? copyHandleFrom(ownIdentity(), handle) : duplicateFd(handle);
}

/** Marks a handle as one that a started program does not inherit. Throws when this process has no such handle. */
export function keepFromChildren(handle: number): void {
  if (IS_WINDOWS) forbidInheritance(handle);
  else setCloseOnExec(handle);
}
