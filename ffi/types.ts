/**
 * The vocabulary of the FFI layer: what a native symbol looks like, and what a call takes and gives.
 * Pure types; nothing here knows a runtime or CUDA.
 */

declare const addressBrand: unique symbol;
declare const sizeBrand: unique symbol;

/**
 * A native address or an opaque driver handle, in the form which the runtime passes fastest:
 * a bigint in Deno, a number in Bun. `===` compares two of them and a Map may be keyed by them;
 * everything else goes through the functions of `ffi/mod.ts`.
 */
export type Address = (bigint | number) & { readonly [addressBrand]: true };

/** A byte count (size_t), in the form which the runtime passes fastest. Made by `toSize`. */
export type Size = (bigint | number) & { readonly [sizeBrand]: true };

/** How one C argument is declared. */
export type ArgumentType =
  | "address" // any pointer, handle or CUdeviceptr
  | "size" // size_t and other 64-bit integers that stay below 2^53
  | "u64" // 64-bit integers that may pass 2^53
  | "i32"
  | "u32"
  | "u16"
  | "u8"
  | "bytes" // a Uint8Array, not empty, passed by address for the time of the call
  | "struct64"; // a 64-byte struct by value, from a Uint8Array of exactly 64 bytes

/** How a C result is declared. An `i64` may come back as number or bigint: wrap it in Number(). */
export type ResultType = "i32" | "u32" | "i64" | "address" | "void";

/** One native symbol, declared once, with its C prototype beside it. */
export interface Signature {
  readonly prototype: string;
  readonly args: readonly ArgumentType[];
  readonly result: ResultType;
  /** Absent from some library versions: the symbol is then null. */
  readonly optional?: true;
  /** `errno()` tells what the call has left there. */
  readonly setsErrno?: true;
  /** Deno only: the call runs on another thread and gives a promise. Bun refuses the declaration, Deno one with bytes. */
  readonly nonblocking?: true;
}

export type SymbolTable = Readonly<Record<string, Signature>>;

interface ArgumentValue {
  address: Address;
  size: Size;
  u64: bigint;
  i32: number;
  u32: number;
  u16: number;
  u8: number;
  bytes: Uint8Array;
  struct64: Uint8Array;
}

interface ResultValue {
  i32: number;
  u32: number;
  i64: number | bigint;
  address: Address;
  void: void;
}

type ResultOf<S extends Signature> = S extends { nonblocking: true } ? Promise<ResultValue[S["result"]]>
  : ResultValue[S["result"]];

type Arguments<A extends readonly ArgumentType[]> = { -readonly [K in keyof A]: ArgumentValue[A[K]] };

export type NativeFunction<S extends Signature> = (...args: Arguments<S["args"]>) => ResultOf<S>;

/** The callable form of a table. There is no way to close a library: a call after that is a segfault. */
export type NativeLibrary<T extends SymbolTable> = {
  readonly [K in keyof T]: T[K] extends { optional: true } ? NativeFunction<T[K]> | null : NativeFunction<T[K]>;
};

/** A JavaScript view of native memory that somebody else owns. After `detach` its bytes have length 0. */
export interface HostView {
  readonly bytes: Uint8Array<ArrayBuffer>;
  detach(): void;
}

/** What a runtime's adapter offers. `ffi/deno.ts` and `ffi/bun.ts` implement it in the same order. */
export interface Adapter {
  readonly runtime: "deno" | "bun";
  /** Whether process.env may be asked for a variable: "prompt" where nobody has said yes or no. */
  environmentAccess(name: string): "granted" | "denied" | "prompt";
  /** Opens a library by one candidate path or loader name; throws when it cannot. */
  openLibrary<T extends SymbolTable>(path: string, table: T): NativeLibrary<T>;
  /** JavaScript for a Worker that imports no file: `body`, with the table's functions as variables, without any checks. */
  workerSource(path: string, table: SymbolTable, body: string): string;
  addressFromBigInt(value: bigint): Address;
  addressToBigInt(address: Address): bigint;
  addOffset(address: Address, byteOffset: number): Address;
  toSize(value: number): Size;
  /** Reads a 64-bit word as an Address from the two halves' view, without a bigint where none is needed. */
  readAddress(words: Uint32Array, longs: BigUint64Array, index: number): Address;
  /** An ArrayBuffer over native memory. The caller keeps the memory alive and detaches the view first. */
  viewOf(address: Address, byteLength: number): ArrayBuffer;
}
