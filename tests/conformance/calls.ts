/**
 * One call of a driver method with random arguments, and what C must see of it.
 * The driver's methods take C's parameters in C's order, less those that the method itself supplies.
 */
import { fail } from "@std/assert";
import { addressFromNumber, addressToBigInt, type FieldType, type StructLayout, toSize } from "../../ffi/mod.ts";
import type { CudaDriver } from "../../src/driver/driver.ts";
import { CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES } from "../../src/driver/enums.ts";
import * as structs from "../../src/driver/structs.ts";
import { DRIVER_SYMBOLS } from "../../src/driver/symbols.ts";
import { type Parameter, parsePrototype, pointeeOf, type Prototype } from "./prototypes.ts";
import type { Random } from "./random.ts";
import type { Recording } from "./recording.ts";
import { neutralTypeOf } from "./stub.ts";

export type SymbolName = keyof typeof DRIVER_SYMBOLS;
export const SYMBOL_NAMES = Object.keys(DRIVER_SYMBOLS) as SymbolName[];

/** All layouts of src/driver/structs.ts. */
export const LAYOUTS: readonly StructLayout[] = Object.values(structs).filter((value) => typeof value === "object");

/** The method that calls a symbol: cuMemAlloc_v2 is called by memAlloc. */
export function methodOf(symbol: SymbolName): keyof CudaDriver {
  const name = symbol.replace(/^cu/, "").replace(/_v\d$/, "");
  return name[0].toLowerCase() + name.slice(1) as keyof CudaDriver;
}

/** Parameters that the method supplies itself: fixed values, and counts. */
const SUPPLIED: Readonly<Record<string, number>> = {
  "cuDeviceGetName len": 256,
  "cuMemPoolExportToShareableHandle flags": 0,
  "cuMemPoolImportFromShareableHandle flags": 0,
  "cuMemHostGetDevicePointer_v2 Flags": 0,
  "cuMemCreate flags": 0,
  "cuMemAddressReserve flags": 0,
  "cuMemMap flags": 0,
  "cuMemExportToShareableHandle flags": 0,
};

/** What C must see of one parameter. */
interface Expected {
  /** The argument's own bytes; undefined for a pointer, whose value is the driver's affair. */
  readonly bytes?: Uint8Array;
  /** The bytes behind the pointer that C has read. */
  readonly pointee?: Uint8Array;
  /** C has written: its bytes must appear at this offset of the driver's `out`. */
  readonly outOffset?: number;
}

export interface Call {
  readonly symbol: SymbolName;
  readonly args: readonly unknown[];
  readonly expected: readonly Expected[];
}

function encode(value: bigint | number, byteLength: number): Uint8Array {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigInt64(0, BigInt.asIntN(64, BigInt(value)), true);
  return bytes.slice(0, byteLength);
}

/** A value of a C type as JavaScript passes it, and its bytes in C. */
function scalar(type: string, random: Random): { value: unknown; bytes: Uint8Array } {
  switch (neutralTypeOf(type)) {
    case "address": {
      const number = random.safeInteger();
      return { value: addressFromNumber(number), bytes: encode(number, 8) };
    }
    case "size": {
      const number = random.safeInteger();
      return { value: toSize(number), bytes: encode(number, 8) };
    }
    case "u64": {
      const value = random.u64();
      return { value, bytes: encode(value, 8) };
    }
    case "i32": {
      const value = random.i32();
      return { value, bytes: encode(value, 4) };
    }
    case "u32": {
      const value = random.unsigned(32);
      return { value, bytes: encode(value, 4) };
    }
    case "u16": {
      const value = random.unsigned(16);
      return { value, bytes: encode(value, 2) };
    }
    case "u8": {
      const value = random.unsigned(8);
      return { value, bytes: encode(value, 1) };
    }
    case "struct64": {
      const value = random.bytes(64);
      return { value, bytes: value };
    }
    case "bytes":
      throw new Error("no driver function is declared with bytes");
  }
}

const FIELD_TYPES: Readonly<Record<Exclude<FieldType, "bytes">, string>> = {
  u8: "unsigned char",
  u16: "unsigned short",
  i32: "int",
  u32: "unsigned int",
  u64: "cuuint64_t",
  size: "size_t",
  address: "CUdeviceptr",
};

/** Random values for every field of a struct, and its bytes in C. */
function structure(layout: StructLayout, random: Random): { value: Record<string, unknown>; bytes: Uint8Array } {
  const value: Record<string, unknown> = {};
  const bytes = new Uint8Array(layout.byteLength);
  for (const [name, { type, offset }] of Object.entries(layout.fields)) {
    if (type === "bytes") throw new Error("no driver struct is declared with bytes");
    const made = scalar(FIELD_TYPES[type], random);
    value[name] = type === "size" ? Number(made.value) : made.value;
    bytes.set(made.bytes, offset);
  }
  return { value, bytes };
}

/** As many as a driver call takes descriptions for. */
const MAX_ELEMENTS = 64;

/** What C reads through a pointer, as JavaScript passes it, and its bytes: an opaque block, a struct or an array of it. */
function input(prototype: Prototype, parameter: Parameter, random: Random): { value: unknown; bytes: Uint8Array } {
  const layout = LAYOUTS.find(({ name }) => parameter.type.replace(/^const | \*$/g, "") === name);
  if (layout === undefined) {
    const bytes = random.bytes(structs.OPAQUE_BYTES);
    return { value: bytes, bytes };
  }
  if (!prototype.parameters.some(({ name }) => name === "count")) return structure(layout, random);
  const elements = Array.from({ length: random.below(MAX_ELEMENTS + 1) }, () => structure(layout, random));
  const bytes = new Uint8Array(elements.length * layout.byteLength);
  elements.forEach((element, index) => bytes.set(element.bytes, index * layout.byteLength));
  return { value: elements.map(({ value }) => value), bytes };
}

/** Of the reuse flags C reads an int, of the other attributes 64 bits. */
function attributeBytes(attribute: number): number {
  return attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES ? 4 : 8;
}

/** Makes a call of `symbol` with random arguments. */
export function randomCall(symbol: SymbolName, random: Random): Call {
  const prototype = parsePrototype(DRIVER_SYMBOLS[symbol].prototype);
  const args: unknown[] = [];
  const expected: Expected[] = [];
  let outOffset = 0;

  for (const parameter of prototype.parameters) {
    const key = `${symbol} ${parameter.name}`;
    const role = pointeeOf(prototype, parameter)?.role;
    if (role === "out") {
      expected.push({ outOffset });
      outOffset += 8;
    } else if (key in SUPPLIED) {
      expected.push({ bytes: encode(SUPPLIED[key], scalar(parameter.type, random).bytes.byteLength) });
    } else if (parameter.name === "count") {
      expected.push({ bytes: encode((args.at(-1) as unknown[]).length, 8) });
    } else if (key === "cuMemPoolSetAttribute value") {
      const value = random.u64();
      expected.push({ pointee: encode(value, attributeBytes(args.at(-1) as number)) });
      args.push(value);
    } else if (role === "in" && parameter.name !== "osHandle") {
      const { value, bytes } = input(prototype, parameter, random);
      expected.push({ pointee: bytes });
      args.push(value);
    } else {
      const { value, bytes } = scalar(parameter.type, random);
      expected.push({ bytes });
      args.push(value);
    }
  }
  return { symbol, args, expected };
}

/** Calls the driver's method and compares what C has got, and what it has answered, with what was meant. */
export function verifyCall(driver: CudaDriver, recording: Recording, { symbol, args, expected }: Call, result: number): void {
  recording.result = result;
  const method = driver[methodOf(symbol)] as (...args: unknown[]) => number;
  const returned = method.apply(driver, [...args]);

  const differs = (what: string, seen: unknown, wanted: unknown) =>
    fail(`${symbol}(${args.map(String).join(", ")}): ${what} is ${seen}, expected ${wanted}`);
  const compare = (what: string, index: number, seen: Uint8Array, wanted: Uint8Array) => {
    if (!sameBytes(seen, wanted)) differs(`${what} ${index}`, hex(seen), hex(wanted));
  };
  if (SYMBOL_NAMES[recording.symbol] !== symbol) differs("the function", SYMBOL_NAMES[recording.symbol], symbol);
  if (returned !== result) differs("the result", returned, result);
  if (recording.argumentCount !== expected.length) differs("argumentCount", recording.argumentCount, expected.length);
  expected.forEach(({ bytes, pointee, outOffset }, index) => {
    if (bytes !== undefined) compare("argument", index, recording.argument(index), bytes);
    if (pointee !== undefined) compare("pointee of argument", index, recording.pointee(index), pointee);
    if (outOffset !== undefined) {
      const place = encode(addressToBigInt(driver.out.addressAt(outOffset)), 8);
      compare("argument", index, recording.argument(index), place);
      const written = recording.pointee(index);
      if (written.byteLength === 0) differs(`what C wrote through argument ${index}`, "nothing", "something");
      compare("out of argument", index, driver.out.bytes.subarray(outOffset, outOffset + written.byteLength), written);
    }
  });
}

function sameBytes(a: Uint8Array, b: Uint8Array): boolean {
  return a.byteLength === b.byteLength && a.every((byte, index) => byte === b[index]);
}

function hex(bytes: Uint8Array): string {
  return bytes.byteLength === 0 ? "nothing" : Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
