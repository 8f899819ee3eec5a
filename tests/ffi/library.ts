/** Compiles and opens library.c. */
import { readFileSync } from "node:fs";
import { createHostView, type NativeLibrary, openLibrary, type SymbolTable } from "../../ffi/mod.ts";
import { compileLibrary } from "../../tools/gcc.ts";

export const SYMBOLS = {
  keep_i32: { prototype: "int32_t keep_i32(int32_t value)", args: ["i32"], result: "i32" },
  keep_u32: { prototype: "int32_t keep_u32(uint32_t value)", args: ["u32"], result: "i32" },
  keep_u16: { prototype: "int32_t keep_u16(uint16_t value)", args: ["u16"], result: "i32" },
  keep_u8: { prototype: "int32_t keep_u8(uint8_t value)", args: ["u8"], result: "i32" },
  keep_u64: { prototype: "int32_t keep_u64(uint64_t value)", args: ["u64"], result: "i32" },
  keep_size: { prototype: "int32_t keep_size(size_t value)", args: ["size"], result: "i32" },
  keep_address: { prototype: "int32_t keep_address(void *value)", args: ["address"], result: "i32" },
  keep_bytes: {
    prototype: "int32_t keep_bytes(const uint8_t *bytes, uint32_t length)",
    args: ["bytes", "u32"],
    result: "i32",
  },
  keep_all: {
    prototype:
      "int32_t keep_all(uint8_t, uint16_t, int32_t, uint32_t, uint64_t, size_t, void *, const uint8_t *, uint8_t, int32_t)",
    args: ["u8", "u16", "i32", "u32", "u64", "size", "address", "bytes", "u8", "i32"],
    result: "i32",
  },
  keep_struct: {
    prototype: "int32_t keep_struct(void *out, struct bytes64 value)",
    args: ["address", "struct64"],
    result: "i32",
  },
  keep_struct_flags: {
    prototype: "int32_t keep_struct_flags(void *out, struct bytes64 value, uint32_t flags)",
    args: ["address", "struct64", "u32"],
    result: "i32",
  },
  kept_address: { prototype: "void *kept_address(void)", args: [], result: "address" },
  keep_nothing: { prototype: "void keep_nothing(void)", args: [], result: "void" },
  give_u32: { prototype: "uint32_t give_u32(uint64_t value)", args: ["u64"], result: "u32" },
  give_i64: { prototype: "int64_t give_i64(uint64_t value)", args: ["u64"], result: "i64" },
  give_address: { prototype: "void *give_address(uint64_t value)", args: ["u64"], result: "address" },
  give_text: { prototype: "const char *give_text(int32_t which)", args: ["i32"], result: "address" },
  write_u64: { prototype: "void write_u64(uint64_t *to, uint64_t value)", args: ["address", "u64"], result: "void" },
  write_two: { prototype: "void write_two(uint64_t *first, int32_t *second)", args: ["address", "address"], result: "void" },
  new_block: { prototype: "uint64_t *new_block(uint64_t value)", args: ["u64"], result: "address" },
  first_of: { prototype: "int32_t first_of(const uint64_t *block)", args: ["address"], result: "i32" },
  fail_with: { prototype: "int32_t fail_with(int32_t code)", args: ["i32"], result: "i32", setsErrno: true },
} as const satisfies SymbolTable;

let path: string | undefined;

/** The compiled library's absolute path. */
export function libraryPath(): string {
  return path ??= compileLibrary(readFileSync(new URL("./library.c", import.meta.url), "utf8"));
}

let opened: NativeLibrary<typeof SYMBOLS> | undefined;

export function library(): NativeLibrary<typeof SYMBOLS> {
  return opened ??= openLibrary("the test library", [libraryPath()], SYMBOLS);
}

const BYTES_AT = 8;
const CALLS_AT = 8 + 256;

/** What the latest call has given to C. */
export function kept(): { readonly number: bigint; readonly bytes: Uint8Array; readonly calls: number } {
  const { bytes, detach } = createHostView(library().kept_address(), CALLS_AT + 8);
  const view = new DataView(bytes.buffer);
  const seen = {
    number: view.getBigUint64(0, true),
    bytes: bytes.slice(BYTES_AT, CALLS_AT),
    calls: Number(view.getBigUint64(CALLS_AT, true)),
  };
  detach();
  return seen;
}
