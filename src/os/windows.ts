/** The part of the Windows API that handles and processes need: what file descriptors and pidfds are on Linux. */
import process from "node:process";
import {
  type Address,
  addressFromNumber,
  isNull,
  NativeBlock,
  type NativeLibrary,
  openLibrary,
  type SymbolTable,
  systemDirectory,
} from "../../ffi/mod.ts";
import { NotSupportedError, PeerGoneError, SystemCallError } from "../errors.ts";
import type { ProcessIdentity } from "../wire/identity.ts";

export const IS_WINDOWS: boolean = process.platform === "win32";

export const KERNEL32_SYMBOLS = {
  CloseHandle: { prototype: "BOOL CloseHandle(HANDLE object)", args: ["address"], result: "i32" },
  DuplicateHandle: {
    prototype:
      "BOOL DuplicateHandle(HANDLE sourceProcess, HANDLE source, HANDLE targetProcess, HANDLE *target, DWORD access, BOOL inherit, DWORD options)",
    args: ["address", "address", "address", "address", "u32", "i32", "u32"],
    result: "i32",
  },
  GetLastError: { prototype: "DWORD GetLastError(void)", args: [], result: "u32" },
  GetProcessTimes: {
    prototype: "BOOL GetProcessTimes(HANDLE process, FILETIME *creation, FILETIME *exit, FILETIME *kernel, FILETIME *user)",
    args: ["address", "address", "address", "address", "address"],
    result: "i32",
  },
  OpenProcess: {
    prototype: "HANDLE OpenProcess(DWORD access, BOOL inherit, DWORD pid)",
    args: ["u32", "i32", "u32"],
    result: "address",
  },
  SetHandleInformation: {
    prototype: "BOOL SetHandleInformation(HANDLE object, DWORD mask, DWORD flags)",
    args: ["address", "u32", "u32"],
    result: "i32",
  },
  WaitForSingleObject: {
    prototype: "DWORD WaitForSingleObject(HANDLE object, DWORD milliseconds)",
    args: ["address", "u32"],
    result: "u32",
  },
} as const satisfies SymbolTable;

const PROCESS_DUP_HANDLE = 0x0040;
const PROCESS_QUERY_LIMITED_INFORMATION = 0x1000;
const SYNCHRONIZE = 0x100000;
const DUPLICATE_SAME_ACCESS = 2;
const HANDLE_FLAG_INHERIT = 1;
const WAIT_FAILED = 0xffff_ffff;
const WAIT_OBJECT_0 = 0;

const ERROR_INVALID_PARAMETER = 87;
const ERROR_NAMES: ReadonlyMap<number, string> = new Map([
  [4, "ERROR_TOO_MANY_OPEN_FILES"],
  [5, "ERROR_ACCESS_DENIED"],
  [6, "ERROR_INVALID_HANDLE"],
  [8, "ERROR_NOT_ENOUGH_MEMORY"],
  [ERROR_INVALID_PARAMETER, "ERROR_INVALID_PARAMETER"],
  [1450, "ERROR_NO_SYSTEM_RESOURCES"],
]);

let opened: NativeLibrary<typeof KERNEL32_SYMBOLS> | undefined;

function kernel32(): NativeLibrary<typeof KERNEL32_SYMBOLS> {
  if (!IS_WINDOWS) throw new NotSupportedError(`Cannot use Windows handles on ${process.platform}`);
  return opened ??= openLibrary("kernel32.dll", [`${systemDirectory()}\\kernel32.dll`], KERNEL32_SYMBOLS);
}

/** The error of the call that just failed. Call it before anything else: it asks for the last error. */
function windowsError(call: string, action: string): SystemCallError {
  const code = kernel32().GetLastError();
  const errnoName = ERROR_NAMES.get(code) ?? `error ${code}`;
  return new SystemCallError(`${action}: ${call} failed with ${errnoName} (${code})`, { errno: code, errnoName, call });
}

// Four FILETIMEs, or a HANDLE
let block: NativeBlock | undefined;
function scratch(): NativeBlock {
  return block ??= new NativeBlock(32);
}

// ---- handles

/** Closes a handle that this module owns. */
export function closeHandle(handle: number): void {
  if (kernel32().CloseHandle(addressFromNumber(handle)) === 0) throw windowsError("CloseHandle", `Cannot close handle ${handle}`);
}

/** Marks a handle as one that a started program does not inherit. Throws when this process has no such handle. */
export function forbidInheritance(handle: number): void {
  if (kernel32().SetHandleInformation(addressFromNumber(handle), HANDLE_FLAG_INHERIT, 0) === 0) {
    throw windowsError("SetHandleInformation", `Cannot keep handle ${handle} from being inherited`);
  }
}

/** Copies a handle out of the process that has it. The copy is the caller's and is not inherited. */
export function copyHandleFrom(owner: ProcessIdentity, handle: number): number {
  const action = `Cannot copy handle ${handle} of process ${owner.pid}`;
  const source = openProcessHandle(owner, action, PROCESS_DUP_HANDLE);
  if (source === undefined) throw new PeerGoneError(`${action}: the process has exited`);
  try {
    if (hasProcessExited(source)) throw new PeerGoneError(`${action}: the process has exited`);
    // GetCurrentProcess gives -1, which no address may be
    const own = openProcess(process.pid, PROCESS_DUP_HANDLE, action)!;
    try {
      const target = scratch().addressAt(0);
      const [from, value] = [addressFromNumber(source), addressFromNumber(handle)];
      const copied = kernel32().DuplicateHandle(from, value, own, target, 0, 0, DUPLICATE_SAME_ACCESS);
      if (copied === 0) throw windowsError("DuplicateHandle", action);
      return scratch().readNumber(0);
    } finally {
      kernel32().CloseHandle(own);
    }
  } finally {
    closeHandle(source);
  }
}

// ---- processes

/** Undefined when no process has this pid. */
function openProcess(pid: number, access: number, action: string): Address | undefined {
  const handle = kernel32().OpenProcess(access, 0, pid);
  if (!isNull(handle)) return handle;
  const error = windowsError("OpenProcess", action);
  if (error.errno === ERROR_INVALID_PARAMETER) return undefined;
  throw error;
}

/** When a process was created, in milliseconds since 1601: together with the pid it names one process. */
function startTimeOf(handle: Address, action: string): number {
  const times = scratch();
  const [creation, exit, kernel, user] = [0, 8, 16, 24].map((byteOffset) => times.addressAt(byteOffset));
  if (kernel32().GetProcessTimes(handle, creation, exit, kernel, user) === 0) throw windowsError("GetProcessTimes", action);
  return Number(times.readU64(0) / 10_000n); // of 100 ns each, too many for a number
}

/** Windows has one pid namespace and tells no id of the boot; a creation time is a date, so the two are not needed. */
export function readWindowsIdentity(): ProcessIdentity {
  const action = "Cannot tell who this process is";
  const handle = openProcess(process.pid, PROCESS_QUERY_LIMITED_INFORMATION, action)!;
  try {
    return {
      bootId: "00000000-0000-0000-0000-000000000000",
      pid: process.pid,
      pidNamespace: 0,
      startTime: startTimeOf(handle, action),
    };
  } finally {
    kernel32().CloseHandle(handle);
  }
}

/**
 * A handle for a process, which the caller owns: good for `hasProcessExited` and for what `access` adds. Undefined when no
 * process has the pid, or when it was used again.
 */
export function openProcessHandle({ pid, startTime }: ProcessIdentity, action: string, access: number = 0): number | undefined {
  const handle = openProcess(pid, SYNCHRONIZE | PROCESS_QUERY_LIMITED_INFORMATION | access, action);
  if (handle === undefined) return undefined;
  try {
    if (startTimeOf(handle, action) === startTime) return Number(handle);
  } catch (error) {
    kernel32().CloseHandle(handle);
    throw error;
  }
  kernel32().CloseHandle(handle);
  return undefined;
}

/** Whether the process of a handle has exited. Never waits. */
export function hasProcessExited(handle: number): boolean {
  const result = kernel32().WaitForSingleObject(addressFromNumber(handle), 0);
  if (result === WAIT_FAILED) {
    throw windowsError("WaitForSingleObject", `Cannot ask whether the process of handle ${handle} has exited`);
  }
  return result === WAIT_OBJECT_0;
}
