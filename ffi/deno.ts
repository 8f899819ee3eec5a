/** The adapter for Deno: the only file that says `Deno.dlopen`. */
import type { Adapter, Address, ArgumentType, NativeLibrary, ResultType, Signature, Size, SymbolTable } from "./types.ts";
import { checkedBytes, checkedStruct, checkSignature } from "./guards.ts";

/** The few members of the Deno namespace that are used, so that no runtime's types leak into ours. */
interface DenoNamespace {
  dlopen(path: string, symbols: Record<string, unknown>): { symbols: Record<string, unknown> };
  UnsafePointer: { create(value: bigint): unknown };
  UnsafePointerView: { getArrayBuffer(pointer: unknown, byteLength: number): ArrayBuffer };
  permissions: { querySync(descriptor: { name: "env"; variable: string }): { state: "granted" | "denied" | "prompt" } };
}

type AnyFunction = (...args: unknown[]) => unknown;

const STRUCT64 = { struct: ["u64", "u64", "u64", "u64", "u64", "u64", "u64", "u64"] } as const;

// 64-bit values are BigInts kept on their objects: a number argument leaves the fast call path (4 ns -> 55 ns).
const ARGUMENTS: Record<ArgumentType, unknown> = {
  address: "u64",
  size: "u64",
  u64: "u64",
  i32: "i32",
  u32: "u32",
  u16: "u16",
  u8: "u8",
  bytes: "buffer",
  struct64: STRUCT64,
};
const RESULTS: Record<ResultType, string> = { i32: "i32", u32: "u32", i64: "i64", address: "u64", void: "void" };

function declare(name: string, signature: Signature): unknown {
  checkSignature(name, signature);
  return {
    parameters: signature.args.map((type) => ARGUMENTS[type]),
    result: RESULTS[signature.result],
    optional: signature.optional === true,
    nonblocking: signature.nonblocking === true,
  };
}

/** Deno checks neither an empty buffer (a crash in C) nor the length of a struct: both are checked here. */
function guard(name: string, signature: Signature, call: AnyFunction): AnyFunction {
  const bytesAt = signature.args.flatMap((type, index) => type === "bytes" ? [index] : []);
  const structAt = signature.args.indexOf("struct64");
  if (bytesAt.length === 0 && structAt < 0) return call;
  return (...args: unknown[]) => {
    for (const index of bytesAt) args[index] = checkedBytes(name, args[index]);
    if (structAt >= 0) args[structAt] = checkedStruct(name, args[structAt]);
    return call(...args);
  };
}

/** The adapter, or null where this is not Deno or native calls are not there. */
export function findDenoAdapter(): Adapter | null {
  const { Deno: deno } = globalThis as { Deno?: DenoNamespace };
  return typeof deno?.dlopen === "function" ? createDenoAdapter(deno) : null;
}

function createDenoAdapter(deno: DenoNamespace): Adapter {
  return {
    runtime: "deno",
    environmentAccess: (name) => deno.permissions.querySync({ name: "env", variable: name }).state,
    openLibrary<T extends SymbolTable>(path: string, table: T): NativeLibrary<T> {
      const declared = Object.fromEntries(Object.entries(table).map(([name, s]) => [name, declare(name, s)]));
      const { symbols } = deno.dlopen(path, declared);
      const functions = Object.entries(table).map(([name, signature]) => {
        const call = symbols[name] as AnyFunction | null;
        return [name, call === null ? null : guard(name, signature, call)];
      });
      return Object.fromEntries(functions) as NativeLibrary<T>;
    },
    workerSource(path, table, body) {
      const declared = Object.fromEntries(Object.entries(table).map(([name, s]) => [name, declare(name, s)]));
      const names = Object.keys(table).join(", ");
      return `const { ${names} } = Deno.dlopen(${JSON.stringify(path)}, ${JSON.stringify(declared)}).symbols;\n${body}`;
    },
    addressFromBigInt: (value) => value as Address,
    addressToBigInt: (address) => address as unknown as bigint,
    addOffset: (address, byteOffset) => ((address as unknown as bigint) + BigInt(byteOffset)) as Address,
    toSize: (value) => BigInt(value) as Size,
    readAddress: (_words, longs, index) => longs[index] as Address,
    viewOf: (address, byteLength) =>
      deno.UnsafePointerView.getArrayBuffer(deno.UnsafePointer.create(address as unknown as bigint), byteLength),
  };
}
