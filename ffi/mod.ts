/**
 * Native calls and native memory, the same in Deno and in Bun. The only file of `ffi/` that others import.
 * Importing it opens nothing; the runtime is picked once, at the first use.
 */
import process from "node:process";
import {
  ClosedError,
  CudaIpcError,
  InvalidArgumentError,
  LibraryNotFoundError,
  NotSupportedError,
  SystemCallError,
} from "../src/errors.ts";
import { findBunAdapter } from "./bun.ts";
import { findDenoAdapter } from "./deno.ts";
import { checkSize } from "./guards.ts";
import type { Adapter, Address, HostView, NativeLibrary, Size, SymbolTable } from "./types.ts";

export type {
  Address,
  ArgumentType,
  HostView,
  NativeFunction,
  NativeLibrary,
  ResultType,
  Signature,
  Size,
  SymbolTable,
} from "./types.ts";
export {
  type Field,
  type FieldType,
  readStruct,
  type StructLayout,
  type StructRead,
  type StructValues,
  writeStruct,
} from "./struct.ts";

let picked: Adapter | undefined;

function adapter(): Adapter {
  return picked ??= pickAdapter();
}

function pickAdapter(): Adapter {
  const found = findDenoAdapter() ?? findBunAdapter();
  if (found === null) throw new NotSupportedError("Cannot call native code: this runtime is neither Deno with FFI nor Bun");
  return found;
}

/** Which runtime the native calls go through: for `src/os/` and for messages only. */
export function runtimeName(): "deno" | "bun" {
  return adapter().runtime;
}

/**
 * Opens the first library of `candidates` that can be opened: absolute paths, or names that libc's loader resolves.
 * A library is never closed. Throws LibraryNotFoundError, which names every attempt.
 */
export function openLibrary<T extends SymbolTable>(name: string, candidates: readonly string[], table: T): NativeLibrary<T> {
  const attempts: string[] = [];
  for (const candidate of candidates) {
    try {
      return keepErrnoOf(adapter().openLibrary(candidate, table), table);
    } catch (error) {
      if (error instanceof CudaIpcError) throw error; // a wrong declaration, or no FFI here: the next candidate is no better
      const message = error instanceof Error ? error.message : String(error);
      attempts.push(message.includes(candidate) ? message : `${candidate}: ${message}`);
    }
  }
  throw new LibraryNotFoundError(`Cannot open ${name}: ${attempts.join("; ")}`, { attempts });
}

/**
 * JavaScript for a Worker that may block and imports no file: `body`, with the C library's functions of the table as variables.
 * Nothing checks their arguments.
 */
export function libcWorkerSource(table: SymbolTable, body: string): string {
  return adapter().workerSource(libcCandidates()[0], table, body);
}

// ---- addresses and sizes

/** Addresses and handles stay below 2^53: user space ends there, and Bun keeps them as numbers. */
export function addressFromBigInt(value: bigint): Address {
  if (value < 0n || value > BigInt(Number.MAX_SAFE_INTEGER)) {
    throw new InvalidArgumentError(`Cannot use address ${value}: expected an integer from 0 to 2^53 - 1`);
  }
  return adapter().addressFromBigInt(value);
}
export function addressToBigInt(address: Address): bigint {
  return adapter().addressToBigInt(address);
}
export function addOffset(address: Address, byteOffset: number): Address {
  return adapter().addOffset(address, byteOffset);
}
export function toSize(value: number): Size {
  checkSize("size", value);
  return adapter().toSize(value);
}
/** Whether an address is NULL. */
export function isNull(address: Address): boolean {
  return Number(address) === 0;
}
/** A small handle value, such as a file descriptor passed as a pointer. NULL is `addressFromNumber(0)`. */
export function addressFromNumber(value: number): Address {
  checkSize("address", value);
  return adapter().addressFromBigInt(BigInt(value));
}

// ---- libc: the part of it that native memory itself needs

const LIBC = {
  calloc: { prototype: "void *calloc(size_t count, size_t size)", args: ["size", "size"], result: "address" },
  free: { prototype: "void free(void *memory)", args: ["address"], result: "void" },
  getenv: { prototype: "char *getenv(const char *name)", args: ["bytes"], result: "address" },
  strlen: { prototype: "size_t strlen(const char *text)", args: ["address"], result: "i64" },
} as const satisfies SymbolTable;
const ERRNO_LINUX = {
  __errno_location: { prototype: "int *__errno_location(void)", args: [], result: "address" },
} as const satisfies SymbolTable;
const ERRNO_WINDOWS = {
  _errno: { prototype: "int *_errno(void)", args: [], result: "address" },
} as const satisfies SymbolTable;

/** Where the C library is. On Windows by absolute path: a bare name is also looked up in the working directory. */
export function libcCandidates(): readonly string[] {
  return process.platform === "win32" ? [`${systemDirectory()}\\ucrtbase.dll`] : ["libc.so.6"];
}

/** Windows' system directory. Read from nowhere that a user can change: only the default place is trusted. */
export function systemDirectory(): string {
  return "C:\\Windows\\System32";
}

let libcOpened: NativeLibrary<typeof LIBC> | undefined;
function libc(): NativeLibrary<typeof LIBC> {
  return libcOpened ??= openLibrary("the C library", libcCandidates(), LIBC);
}

let errnoView: Int32Array | undefined;
let keptErrno = 0;

/** What errno was in this thread when the latest call that is declared with `setsErrno` returned. */
export function errno(): number {
  return keptErrno;
}

function openErrno(): Int32Array {
  const address = process.platform === "win32"
    ? openLibrary("the C library", libcCandidates(), ERRNO_WINDOWS)._errno()
    : openLibrary("the C library", libcCandidates(), ERRNO_LINUX).__errno_location();
  return new Int32Array(adapter().viewOf(address, 4));
}

type AnyFunction = (...args: unknown[]) => unknown;

/**
 * Keeps errno before anything else can run: a garbage collection between the call and the reading would change it (Deno's
 * leaves EAGAIN there, of all codes). The wrapper costs 50 ns, so only calls that need it are declared so.
 */
function keepErrno(call: AnyFunction): AnyFunction {
  const view = errnoView ??= openErrno();
  return (...args) => {
    const result = call(...args);
    keptErrno = view[0];
    return result;
  };
}

function keepErrnoOf<T extends SymbolTable>(library: NativeLibrary<T>, table: T): NativeLibrary<T> {
  const functions = Object.entries(library as Record<string, AnyFunction | null>).map(([name, call]) => {
    const { setsErrno, nonblocking } = table[name]; // a nonblocking call sets another thread's errno
    return [name, call !== null && setsErrno && !nonblocking ? keepErrno(call) : call];
  });
  return Object.fromEntries(functions) as NativeLibrary<T>;
}

/**
 * An environment variable, or undefined. Needs no permission in Deno: where reading the environment is neither granted
 * nor denied, libc is asked, which `--allow-ffi` covers.
 */
export function environmentVariable(name: string): string | undefined {
  const access = adapter().environmentAccess(name);
  if (access === "granted") return process.env[name];
  if (access === "denied") return undefined;
  const address = libc().getenv(new TextEncoder().encode(name + "\0"));
  return isNull(address) ? undefined : readCString(address);
}

/** Copies a NUL-terminated UTF-8 text out of native memory. */
export function readCString(address: Address): string {
  if (isNull(address)) throw new InvalidArgumentError("Cannot read a C string: its address is NULL");
  const byteLength = Number(libc().strlen(address));
  if (byteLength === 0) return "";
  return new TextDecoder().decode(new Uint8Array(adapter().viewOf(address, byteLength)).slice());
}

// ---- native memory

/**
 * Zeroed native memory whose address never moves, seen through JavaScript views. Home of out-parameters and structs:
 * the address of a JavaScript array is never kept, since in Bun it goes stale once the caller is compiled.
 * Aligned to 16 bytes. `free()` detaches the views first; a block of a module's lifetime is never freed.
 */
export class NativeBlock {
  readonly byteLength: number;
  readonly bytes: Uint8Array<ArrayBuffer>;
  readonly view: DataView<ArrayBuffer>;
  readonly #words: Uint32Array;
  readonly #longs: BigUint64Array;
  readonly #readAddress: Adapter["readAddress"];
  #address: Address;
  #freed = false;

  /** `byteLength` is rounded up to a multiple of 8. */
  constructor(byteLength: number) {
    checkSize("a native block's byteLength", byteLength);
    this.byteLength = Math.ceil(byteLength / 8) * 8;
    this.#address = libc().calloc(toSize(1), toSize(this.byteLength));
    if (isNull(this.#address)) {
      throw new SystemCallError(`Cannot allocate ${byteLength} bytes of native memory: the host has none left`, {
        errno: 12,
        errnoName: "ENOMEM",
        call: "calloc",
      });
    }
    const buffer = adapter().viewOf(this.#address, this.byteLength);
    this.bytes = new Uint8Array(buffer);
    this.view = new DataView(buffer);
    this.#words = new Uint32Array(buffer);
    this.#longs = new BigUint64Array(buffer);
    this.#readAddress = adapter().readAddress;
  }

  /** The native address of a byte of the block. Keep the result: making it costs a bigint in Deno. */
  addressAt(byteOffset: number): Address {
    this.#checkLive();
    if (!Number.isInteger(byteOffset) || byteOffset < 0 || byteOffset >= this.byteLength) {
      throw new InvalidArgumentError(
        `Cannot take the address of byte ${byteOffset} of a native block: expected an integer from 0 to ${this.byteLength - 1}`,
      );
    }
    return addOffset(this.#address, byteOffset);
  }
  /** `byteOffset` is a multiple of 8. */
  readAddress(byteOffset: number): Address {
    this.#checkLive();
    return this.#readAddress(this.#words, this.#longs, byteOffset >>> 3);
  }
  readI32(byteOffset: number): number {
    this.#checkLive();
    return this.#words[byteOffset >>> 2] | 0;
  }
  readU32(byteOffset: number): number {
    this.#checkLive();
    return this.#words[byteOffset >>> 2];
  }
  /** `byteOffset` is a multiple of 8. */
  readU64(byteOffset: number): bigint {
    this.#checkLive();
    return this.#longs[byteOffset >>> 3];
  }
  /** A 64-bit value as a number: exact up to 2^53 - 1, rounded above. `byteOffset` is a multiple of 4. */
  readNumber(byteOffset: number): number {
    this.#checkLive();
    const index = byteOffset >>> 2;
    return this.#words[index + 1] * 0x1_0000_0000 + this.#words[index];
  }
  /** `byteOffset` is a multiple of 8. */
  writeU64(byteOffset: number, value: bigint): void {
    this.#checkLive();
    this.#longs[byteOffset >>> 3] = value;
  }
  free(): void {
    if (this.#freed) return;
    this.#freed = true;
    detachBuffer(this.bytes.buffer);
    libc().free(this.#address);
  }
  /** A detached view reads as undefined, which Bun would pass on as NULL. */
  #checkLive(): void {
    if (this.#freed) throw new ClosedError("Cannot use a native block: it was freed");
  }
}

/**
 * A view of native memory that somebody else owns, without a copy. Detach it before the memory goes away:
 * a read through a view of freed memory kills the process.
 */
export function createHostView(address: Address, byteLength: number): HostView {
  checkSize("a host view's byteLength", byteLength);
  if (isNull(address)) throw new InvalidArgumentError("Cannot view host memory: its address is NULL");
  const buffer = hostBuffer(address, byteLength);
  let detached = false;
  return {
    bytes: new Uint8Array(buffer),
    detach() {
      if (detached) return;
      detached = true;
      detachBuffer(buffer);
    },
  };
}

/** Gives every view of the buffer length 0; the memory itself is not touched. */
function detachBuffer(buffer: ArrayBuffer): void {
  if (!buffer.detached) buffer.transfer(0); // its holder may have transferred it
}

function hostBuffer(address: Address, byteLength: number): ArrayBuffer {
  try {
    return adapter().viewOf(address, byteLength);
  } catch (cause) {
    throw new InvalidArgumentError(
      `Cannot view ${byteLength} bytes of host memory at once: this runtime's ArrayBuffer is smaller (4 GiB in Bun)`,
      { cause },
    );
  }
}
