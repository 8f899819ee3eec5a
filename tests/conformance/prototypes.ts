/** Reads the C prototypes of src/driver/symbols.ts. */

export interface Parameter {
  /** The declared type, such as `const CUmemPoolProps *`. */
  readonly type: string;
  readonly name: string;
}

export interface Prototype {
  readonly result: string;
  readonly name: string;
  readonly parameters: readonly Parameter[];
}

/** `CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)` */
export function parsePrototype(text: string): Prototype {
  const match = text.match(/^(\w+) (\w+)\((.*)\)$/);
  if (match === null) throw new Error(`Cannot read the prototype "${text}"`);
  const [, result, name, list] = match;
  const parameters = list === "void" ? [] : list.split(", ").map((declaration) => {
    const [, type, parameter] = declaration.match(/^(.*?)\s*(\w+)$/)!;
    return { type, name: parameter };
  });
  return { result, name, parameters };
}

/** How a pointer is followed: which way the bytes go, and how many they are, as a C expression. */
export interface Pointee {
  readonly role: "in" | "out";
  readonly byteLength: string;
}

const POOL_ATTRIBUTE = "attr <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES ? sizeof(int) : sizeof(cuuint64_t)";

/** The pointers that their type does not explain: arrays, `void *`, and structs that are read without being const. */
const SPECIAL: Readonly<Record<string, Pointee>> = {
  "cuDeviceGetName name": { role: "out", byteLength: "len" },
  "cuMemPoolSetAttribute value": { role: "in", byteLength: POOL_ATTRIBUTE },
  "cuMemPoolGetAttribute value": { role: "out", byteLength: POOL_ATTRIBUTE },
  "cuMemPoolSetAccess map": { role: "in", byteLength: "count * sizeof *map" },
  "cuMemPoolGetAccess location": { role: "in", byteLength: "sizeof *location" },
  "cuMemPoolExportToShareableHandle handle_out": { role: "out", byteLength: "shareable_bytes(handleType)" },
  "cuMemPoolImportPointer shareData": { role: "in", byteLength: "sizeof *shareData" },
  "cuMemSetAccess desc": { role: "in", byteLength: "count * sizeof *desc" },
  "cuMemExportToShareableHandle shareableHandle": { role: "out", byteLength: "shareable_bytes(handleType)" },
  "cuMemImportFromShareableHandle osHandle": {
    role: "in",
    byteLength: "shHandleType == CU_MEM_HANDLE_TYPE_FABRIC ? sizeof(CUmemFabricHandle) : 0",
  },
  "cuPointerGetAttribute data": { role: "out", byteLength: "pointer_attribute_bytes(attribute)" },
};

/** Undefined where C takes the value itself: scalars, structs by value, and addresses that are not followed. */
export function pointeeOf(prototype: Prototype, parameter: Parameter): Pointee | undefined {
  const special = SPECIAL[`${prototype.name} ${parameter.name}`];
  if (special !== undefined) return special;
  if (!parameter.type.endsWith("*") || parameter.type.endsWith("void *")) return undefined;
  return { role: parameter.type.startsWith("const ") ? "in" : "out", byteLength: `sizeof *${parameter.name}` };
}
