/** What only the tests need of the Windows API. */
import process from "node:process";
import { addressFromNumber, NativeBlock, openLibrary, type SymbolTable, systemDirectory } from "../../ffi/mod.ts";

/** For a test's options. */
export const skipElsewhere: string | false = process.platform === "win32" ? false : "for Windows";

const SYMBOLS = {
  CreateEventW: {
    prototype: "HANDLE CreateEventW(SECURITY_ATTRIBUTES *attributes, BOOL manual, BOOL initial, const WCHAR *name)",
    args: ["address", "i32", "i32", "address"],
    result: "address",
  },
  GetHandleInformation: {
    prototype: "BOOL GetHandleInformation(HANDLE object, DWORD *flags)",
    args: ["address", "address"],
    result: "i32",
  },
  SetEvent: { prototype: "BOOL SetEvent(HANDLE event)", args: ["address"], result: "i32" },
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

const kernel32 = () => openLibrary("kernel32.dll", [`${systemDirectory()}\\kernel32.dll`], SYMBOLS);
const HANDLE_FLAG_INHERIT = 1;

/** A handle of a new event that is not set, inheritable on demand. */
export function createEvent(inherit = false): number {
  const none = addressFromNumber(0);
  const handle = kernel32().CreateEventW(none, 1, 0, none);
  if (inherit) kernel32().SetHandleInformation(handle, HANDLE_FLAG_INHERIT, HANDLE_FLAG_INHERIT);
  return Number(handle);
}

export function setEvent(handle: number): void {
  if (kernel32().SetEvent(addressFromNumber(handle)) === 0) throw new Error(`SetEvent(${handle}) failed`);
}

export function isSet(handle: number): boolean {
  return kernel32().WaitForSingleObject(addressFromNumber(handle), 0) === 0;
}

/** Whether a started program would inherit the handle; undefined when there is none. */
export function isInherited(handle: number): boolean | undefined {
  const flags = new NativeBlock(8);
  const isOpen = kernel32().GetHandleInformation(addressFromNumber(handle), flags.addressAt(0)) !== 0;
  const inherited = (flags.readU32(0) & HANDLE_FLAG_INHERIT) !== 0;
  flags.free();
  return isOpen ? inherited : undefined;
}
