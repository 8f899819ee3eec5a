/**
 * Writes the conformance stub: a libcuda in C whose functions have our prototypes and record what arrives.
 * It includes the machine's cuda.h, so the compiler refuses a prototype that differs from the header's.
 */
import type { ArgumentType, Signature, StructLayout, SymbolTable } from "../../ffi/mod.ts";
import { compileLibrary } from "../../tools/gcc.ts";
import { type Parameter, parsePrototype, pointeeOf, type Prototype } from "./prototypes.ts";

/** The recording's place for one argument: where its bytes lie and, for a followed pointer, the bytes behind it. */
export const RECORDING = {
  name: "struct recording",
  byteLength: 16 + 8 * 16 + 4096,
  fields: {
    result: { type: "i32", offset: 0 }, // written by the test: what the functions return
    symbol: { type: "u32", offset: 4 },
    argumentCount: { type: "u32", offset: 8 },
    byteCount: { type: "u32", offset: 12 },
    arguments: { type: "bytes", offset: 16, byteLength: 8 * 16 }, // { offset, width, pointeeOffset, pointeeWidth } each
    bytes: { type: "bytes", offset: 16 + 8 * 16, byteLength: 4096 },
  },
} as const satisfies StructLayout;

const HEAD = `#include <cuda.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

struct argument { uint32_t offset, width, pointee_offset, pointee_width; };
static struct recording {
  int32_t result;
  uint32_t symbol, argument_count, byte_count;
  struct argument arguments[8];
  uint8_t bytes[4096];
} recording;
EXPORT struct recording *stub_recording(void);
EXPORT const uint64_t *stub_layouts(void);
struct recording *stub_recording(void) { return &recording; }

static size_t shareable_bytes(CUmemAllocationHandleType type) {
  switch (type) {
    case CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: return sizeof(int);
    case CU_MEM_HANDLE_TYPE_FABRIC: return sizeof(CUmemFabricHandle);
    default: return sizeof(void *);
  }
}

static size_t pointer_attribute_bytes(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: return sizeof(int);
    default: return sizeof(cuuint64_t);
  }
}

#ifdef STUB_QUIET /* for measuring the cost of a call */
#define BEGIN(index)
#define ARGUMENT(index, value)
#define POINTEE_IN(index, pointer, width)
#define POINTEE_OUT(index, pointer, width) memset(pointer, 0x5a, width)
#define RESULT CUDA_SUCCESS
#else
static uint32_t record(const void *bytes, size_t width) {
  uint32_t offset = recording.byte_count;
  if (offset + width > sizeof recording.bytes) __builtin_trap();
  memcpy(recording.bytes + offset, bytes, width);
  recording.byte_count += width;
  return offset;
}
static void record_argument(uint32_t index, const void *bytes, size_t width) {
  recording.argument_count = index + 1;
  recording.arguments[index] = (struct argument){record(bytes, width), width, 0, 0};
}
static void record_pointee(uint32_t index, const void *bytes, size_t width) {
  recording.arguments[index].pointee_offset = width == 0 ? 0 : record(bytes, width);
  recording.arguments[index].pointee_width = width;
}
/* What an out-parameter gets: bytes that are different at each call and never all zero. */
static void write_pattern(void *to, size_t width) {
  static uint32_t state = 0x9e3779b9;
  for (size_t i = 0; i < width; i++) {
    state = state * 1664525 + 1013904223;
    ((uint8_t *)to)[i] = state >> 24 | 1;
  }
}
#define BEGIN(index) (recording.symbol = (index), recording.argument_count = recording.byte_count = 0)
#define ARGUMENT(index, value) record_argument(index, &(value), sizeof(value))
#define POINTEE_IN(index, pointer, width) record_pointee(index, pointer, width)
#define POINTEE_OUT(index, pointer, width) (write_pattern(pointer, width), record_pointee(index, pointer, width))
#define RESULT ((CUresult)recording.result)
#endif

/* The kinds of C types that a neutral argument type may stand for, as __builtin_classify_type tells them apart. */
#define KIND(type) __builtin_classify_type(*(type *)0)
#define IS_INTEGER(type, width, sign) (KIND(type) == 1 && sizeof(type) == (width) && ((type)-1 < (type)1) == (sign))
#define IS_u8(type) IS_INTEGER(type, 1, 0)
#define IS_u16(type) IS_INTEGER(type, 2, 0)
#define IS_u32(type) IS_INTEGER(type, 4, 0)
#define IS_i32(type) IS_INTEGER(type, 4, 1)
#define IS_u64(type) IS_INTEGER(type, 8, 0)
#define IS_size(type) IS_INTEGER(type, 8, 0)
#define IS_handle(type) IS_INTEGER(type, 8, 0)
#define IS_pointer(type) (KIND(type) == 5 && sizeof(type) == 8)
#define IS_struct64(type) (KIND(type) == 12 && sizeof(type) == 64)
`;

/** 64-bit integers that are handles or device pointers: `address` in our declarations, not `size` or `u64`. */
const HANDLE_TYPES = ["CUdeviceptr", "CUmemGenericAllocationHandle"];
const OPAQUE_POINTERS = ["CUcontext", "CUstream", "CUevent", "CUmemoryPool"];

/** The one neutral type that a C type is declared as, but for the struct by value and enums: those only gcc can tell. */
export function neutralTypeOf(cType: string): ArgumentType {
  if (cType.endsWith("*") || HANDLE_TYPES.includes(cType) || OPAQUE_POINTERS.includes(cType)) return "address";
  if (cType === "size_t") return "size";
  if (cType === "unsigned long long" || cType === "cuuint64_t") return "u64";
  if (cType === "int" || cType === "CUdevice") return "i32";
  if (cType === "unsigned char") return "u8";
  if (cType === "unsigned short") return "u16";
  if (/^CUipc\w+Handle$/.test(cType)) return "struct64";
  return "u32"; // unsigned int and enums
}

function typeChecks(signature: Signature, prototype: Prototype): string[] {
  const check = (type: string, kind: string) =>
    `_Static_assert(IS_${kind}(${type}), "${prototype.name}: ${type} is no ${kind}");`;
  const checks = prototype.parameters.map(({ type }, index) => {
    const declared = signature.args[index];
    if (declared !== "address") return check(type, declared);
    return check(type, HANDLE_TYPES.includes(type) ? "handle" : "pointer");
  });
  return [...checks, `_Static_assert(sizeof(${prototype.result}) == 4, "${prototype.name}: the result is no i32");`];
}

/** Where the header maps a name to a newer function, the older one is checked against that one's prototype. */
function olderForm(name: string): string[] {
  return [`#ifdef ${name}`, `typedef __typeof__(${name}) newest_${name};`, `#undef ${name}`, `newest_${name} ${name};`, "#endif"];
}

function definition(index: number, prototype: Prototype, parameters: string): string[] {
  const lines = prototype.parameters.map(({ name }, at) => `  ARGUMENT(${at}, ${name});`);
  for (const role of ["in", "out"]) { // all is recorded before anything is written
    prototype.parameters.forEach((parameter: Parameter, at) => {
      const pointee = pointeeOf(prototype, parameter);
      if (pointee?.role !== role) return;
      lines.push(`  POINTEE_${role.toUpperCase()}(${at}, ${parameter.name}, ${pointee.byteLength});`);
    });
  }
  const head = `EXPORT ${prototype.result} CUDAAPI ${prototype.name}(${parameters}) {`;
  return [head, `  BEGIN(${index});`, ...lines, "  return RESULT;", "}"];
}

/** sizeof the struct, then offset and size of each field, in the order of the tables. */
function layoutTable(layouts: readonly StructLayout[]): string[] {
  const numbers = layouts.flatMap(({ name, fields }) => [
    `  sizeof(${name}),`,
    ...Object.entries(fields).map(([field, { member = field }]) =>
      `  offsetof(${name}, ${member}), sizeof(((${name} *)0)->${member}),`
    ),
  ]);
  return [
    "static const uint64_t layouts[] = {",
    ...numbers,
    "};",
    "const uint64_t *stub_layouts(void) { return layouts; }",
  ];
}

/** The stub's C source. A symbol's index in the table is what `recording.symbol` tells. */
export function stubSource(symbols: SymbolTable, layouts: readonly StructLayout[], omit: readonly string[] = []): string {
  const functions = Object.entries(symbols).flatMap(([name, signature], index) => {
    if (omit.includes(name)) return [];
    const prototype = parsePrototype(signature.prototype);
    const parameters = signature.prototype.match(/\((.*)\)$/)![1];
    return [
      "",
      ...olderForm(prototype.name),
      ...typeChecks(signature, prototype),
      ...definition(index, prototype, parameters),
    ];
  });
  return [HEAD, ...layoutTable(layouts), ...functions, ""].join("\n");
}

/** gcc refuses a function that the header does not declare, or declares otherwise. */
const STRICT = ["-Werror=missing-prototypes", "-Wno-missing-declarations"];

export interface StubOptions {
  /** Symbols that this stub lacks, as an older driver does. */
  readonly omit?: readonly string[];
  /** Functions that record nothing, for measuring. */
  readonly quiet?: boolean;
}

/** Compiles the stub and gives its absolute path; throws with the compiler's messages. */
export function buildStub(symbols: SymbolTable, layouts: readonly StructLayout[], options: StubOptions = {}): string {
  const flags = options.quiet ? [...STRICT, "-DSTUB_QUIET"] : STRICT;
  return compileLibrary(stubSource(symbols, layouts, options.omit), flags);
}
