/** The adapter for Bun: the only file that says `bun:ffi`. */
import process from "node:process";
import type { Adapter, Address, ArgumentType, NativeLibrary, ResultType, Signature, Size, SymbolTable } from "./types.ts";
import { NotSupportedError } from "../src/errors.ts";
import { checkedBytes, checkedStruct, checkSignature } from "./guards.ts";

/** The few members of bun:ffi that are used, so that no runtime's types leak into ours. */
interface BunFfi {
  dlopen(path: string, symbols: Record<string, unknown>): { symbols: Record<string, AnyFunction> };
  linkSymbols(symbols: Record<string, unknown>): { symbols: Record<string, AnyFunction> };
  toArrayBuffer(address: number, byteOffset: number, byteLength: number): ArrayBuffer;
}

// deno-lint-ignore no-explicit-any
type AnyFunction = (...args: any[]) => any;

// 64-bit values are JS numbers declared `ptr`: u64 costs 2 ns more a call, a bigint 20 ns.
const ARGUMENTS: Record<Exclude<ArgumentType, "struct64">, string> = {
  address: "ptr",
  size: "ptr",
  u64: "u64",
  i32: "i32",
  u32: "u32",
  u16: "u16",
  u8: "u8",
  bytes: "buffer",
};
const RESULTS: Record<ResultType, string> = { i32: "i32", u32: "u32", i64: "i64_fast", address: "ptr", void: "void" };

const RTLD_NOW = 2;
const WORDS_IN_STRUCT = 8;
const REGISTERS_SYSV = 6;

/**
 * bun:ffi has no structs by value. On x86-64 System V a 64-byte struct is eight stack words behind the register
 * arguments, so the registers left over are filled with zeros. Elsewhere (AArch64, Windows) it is a pointer to a copy.
 */
function structGoesOnStack(): boolean {
  return process.arch === "x64" && process.platform !== "win32";
}

function declare(name: string, signature: Signature): { args: string[]; returns: string } {
  checkSignature(name, signature);
  if (signature.nonblocking) throw new NotSupportedError(`Cannot declare ${name}: Bun has no nonblocking native calls`);
  const returns = RESULTS[signature.result];
  const plain = signature.args.filter((type) => type !== "struct64");
  if (plain.length === signature.args.length || !structGoesOnStack()) {
    return { args: signature.args.map((type) => type === "struct64" ? "ptr" : ARGUMENTS[type]), returns };
  }
  const padding = Array(REGISTERS_SYSV - plain.length).fill("u64");
  return { args: [...plain.map((t) => ARGUMENTS[t]), ...padding, ...Array(WORDS_IN_STRUCT).fill("u64")], returns };
}

/** The struct is the second of two or three arguments, so two shapes do. */
function passStruct(name: string, signature: Signature, call: AnyFunction): AnyFunction {
  const copy = new Uint8Array(new ArrayBuffer(64));
  const w = new BigUint64Array(copy.buffer);
  const hasThird = signature.args.length === 3;
  if (!structGoesOnStack()) {
    return (first, struct, third) => {
      copy.set(checkedStruct(name, struct)); // the callee owns what the pointer shows and may overwrite it
      return hasThird ? call(first, copy, third) : call(first, copy);
    };
  }
  return hasThird
    ? (first, struct, third) => {
      copy.set(checkedStruct(name, struct));
      return call(first, third, 0, 0, 0, 0, w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]);
    }
    : (first, struct) => {
      copy.set(checkedStruct(name, struct));
      return call(first, 0, 0, 0, 0, 0, w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]);
    };
}

function guard(name: string, signature: Signature, call: AnyFunction): AnyFunction {
  if (signature.args.includes("struct64")) call = passStruct(name, signature, call);
  const bytesAt = signature.args.flatMap((type, index) => type === "bytes" ? [index] : []);
  if (bytesAt.length > 0) {
    const inner = call;
    call = (...args) => {
      for (const index of bytesAt) args[index] = checkedBytes(name, args[index]);
      return inner(...args);
    };
  }
  if (signature.result === "address") {
    const inner = call; // Bun gives null for 0 and a bigint above 2^53 (mmap's -1)
    call = (...args) => Number(inner(...args));
  }
  return call;
}

function cString(text: string): Uint8Array {
  return new TextEncoder().encode(text + "\0");
}

/** The adapter, or null where this is not Bun. */
export function findBunAdapter(): Adapter | null {
  // Synchronous, and undefined elsewhere: a static import of bun:ffi fails in Deno at run time.
  const { process: host } = globalThis as { process?: { getBuiltinModule?(name: string): unknown } };
  const ffi = host?.getBuiltinModule?.("bun:ffi");
  return ffi ? createBunAdapter(ffi as BunFfi) : null;
}

function createBunAdapter(ffi: BunFfi): Adapter {
  // Bun's own dlopen also looks into the working directory, so only libc, which is always there, is opened by name.
  const loader = process.platform === "win32" ? null : ffi.dlopen("libc.so.6", {
    dlopen: { args: ["buffer", "i32"], returns: "ptr" },
    dlsym: { args: ["ptr", "buffer"], returns: "ptr" },
    dlerror: { args: [], returns: "cstring" },
  }).symbols;

  /** Windows has absolute paths only (see the candidates of each library), so Bun's own loader is safe there. */
  function openWithBun(path: string, table: SymbolTable): (name: string) => AnyFunction | null {
    return (name) => {
      try {
        return ffi.dlopen(path, { [name]: declare(name, table[name]) }).symbols[name];
      } catch (error) {
        if (table[name].optional) return null;
        throw error;
      }
    };
  }

  function openWithLibc(path: string, table: SymbolTable): (name: string) => AnyFunction | null {
    const handle = loader!.dlopen(cString(path), RTLD_NOW);
    if (handle === null) throw new Error(String(loader!.dlerror()));
    return (name) => {
      const ptr = loader!.dlsym(handle, cString(name));
      if (ptr !== null) return ffi.linkSymbols({ [name]: { ...declare(name, table[name]), ptr } }).symbols[name];
      if (table[name].optional) return null;
      throw new Error(`${path}: undefined symbol: ${name}`);
    };
  }

  return {
    runtime: "bun",
    environmentAccess: () => "granted",
    openLibrary<T extends SymbolTable>(path: string, table: T): NativeLibrary<T> {
      const resolve = loader === null ? openWithBun(path, table) : openWithLibc(path, table);
      const functions = Object.entries(table).map(([name, signature]) => {
        const call = resolve(name);
        return [name, call === null ? null : guard(name, signature, call)];
      });
      return Object.fromEntries(functions) as NativeLibrary<T>;
    },
    workerSource(path, table, body) {
      const declared = Object.fromEntries(Object.entries(table).map(([name, signature]) => [name, declare(name, signature)]));
      const names = Object.keys(table).join(", ");
      const open = `process.getBuiltinModule("bun:ffi").dlopen(${JSON.stringify(path)}, ${JSON.stringify(declared)})`;
      return `const { ${names} } = ${open}.symbols;\n${body}`;
    },
    addressFromBigInt: (value) => Number(value) as Address,
    addressToBigInt: (address) => BigInt(address),
    addOffset: (address, byteOffset) => ((address as unknown as number) + byteOffset) as Address,
    toSize: (value) => value as Size,
    readAddress: (words, _longs, index) => (words[2 * index + 1] * 0x1_0000_0000 + words[2 * index]) as Address,
    viewOf: (address, byteLength) =>
      // Bun refuses length 0
      byteLength === 0 ? new ArrayBuffer(0) : ffi.toArrayBuffer(address as unknown as number, 0, byteLength),
  };
}
