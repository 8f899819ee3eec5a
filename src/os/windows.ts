/** The part of the Windows API that handles need. */
import { type Address, type NativeLibrary, openLibrary, type SymbolTable, systemDirectory } from "../../ffi/mod.ts";
import { SystemCallError } from "../errors.ts";

export const KERNEL32_SYMBOLS = {
  CloseHandle: { prototype: "BOOL CloseHandle(HANDLE object)", args: ["address"], result: "i32" },
} as const satisfies SymbolTable;

let opened: NativeLibrary<typeof KERNEL32_SYMBOLS> | undefined;

function kernel32(): NativeLibrary<typeof KERNEL32_SYMBOLS> {
  return opened ??= openLibrary("kernel32.dll", [`${systemDirectory()}\\kernel32.dll`], KERNEL32_SYMBOLS);
}

/** Closes a HANDLE that this module owns. */
export function closeWindowsHandle(handle: Address): void {
  if (kernel32().CloseHandle(handle) === 0) {
    throw new SystemCallError("Cannot close a handle: CloseHandle failed", {
      errno: 0,
      errnoName: "unknown",
      call: "CloseHandle",
    });
  }
}
