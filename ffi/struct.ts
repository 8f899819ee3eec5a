/** C struct layouts: one table for each struct, with typed writing and reading. */
import type { Address, Size } from "./types.ts";
import type { NativeBlock } from "./mod.ts";
import { InvalidArgumentError } from "../src/errors.ts";

export type FieldType = "u8" | "u16" | "i32" | "u32" | "u64" | "size" | "address" | "bytes";

export interface Field {
  readonly type: FieldType;
  readonly offset: number;
  /** For `bytes` only. */
  readonly byteLength?: number;
  /** The C member, where it is not the field's own name (members of a nested struct). */
  readonly member?: string;
}

/** A C struct (little endian): its name in the header, its size, and where each field lies. */
export interface StructLayout {
  readonly name: string;
  readonly byteLength: number;
  readonly fields: Readonly<Record<string, Field>>;
}

type FieldValue<T extends FieldType> = T extends "u64" ? bigint
  : T extends "address" ? Address
  : T extends "size" ? number
  : T extends "bytes" ? Uint8Array
  : number;

/** The values of a struct; fields left out are zero when written. */
export type StructValues<L extends StructLayout> = { -readonly [K in keyof L["fields"]]?: FieldValue<L["fields"][K]["type"]> };
export type StructRead<L extends StructLayout> = { [K in keyof L["fields"]]: FieldValue<L["fields"][K]["type"]> };

/** Zeroes the struct at `byteOffset` of the block and writes the given fields. */
export function writeStruct<L extends StructLayout>(
  block: NativeBlock,
  byteOffset: number,
  layout: L,
  values: StructValues<L>,
): void {
  block.bytes.fill(0, byteOffset, byteOffset + layout.byteLength);
  for (const name in values) {
    const field = layout.fields[name];
    const value: unknown = values[name];
    if (value === undefined) continue;
    const at = byteOffset + field.offset;
    switch (field.type) {
      case "u8":
        block.view.setUint8(at, value as number);
        break;
      case "u16":
        block.view.setUint16(at, value as number, true);
        break;
      case "i32":
        block.view.setInt32(at, value as number, true);
        break;
      case "u32":
        block.view.setUint32(at, value as number, true);
        break;
      case "u64":
        block.view.setBigUint64(at, value as bigint, true);
        break;
      case "size":
        block.view.setBigUint64(at, BigInt(value as number), true);
        break;
      case "address":
        block.view.setBigUint64(at, BigInt(value as Size), true);
        break;
      case "bytes":
        if ((value as Uint8Array).byteLength !== field.byteLength) {
          throw new InvalidArgumentError(
            `Cannot write ${layout.name}.${name}: it has ${(value as Uint8Array).byteLength} bytes, expected ${field.byteLength}`,
          );
        }
        block.bytes.set(value as Uint8Array, at);
        break;
    }
  }
}

/** Reads every field of the struct at `byteOffset`; `bytes` fields are copies. */
export function readStruct<L extends StructLayout>(block: NativeBlock, byteOffset: number, layout: L): StructRead<L> {
  const values: Record<string, unknown> = {};
  for (const [name, field] of Object.entries(layout.fields)) {
    const at = byteOffset + field.offset;
    switch (field.type) {
      case "u8":
        values[name] = block.view.getUint8(at);
        break;
      case "u16":
        values[name] = block.view.getUint16(at, true);
        break;
      case "i32":
        values[name] = block.view.getInt32(at, true);
        break;
      case "u32":
        values[name] = block.view.getUint32(at, true);
        break;
      case "u64":
        values[name] = block.view.getBigUint64(at, true);
        break;
      case "size":
        values[name] = block.readNumber(at);
        break;
      case "address":
        values[name] = block.readAddress(at);
        break;
      case "bytes":
        values[name] = block.bytes.slice(at, at + field.byteLength!);
        break;
    }
  }
  return values as StructRead<L>;
}
