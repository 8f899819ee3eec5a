/**
 * Compares src/driver/ with cuda.h as the C compiler sees it: constants, struct layouts, result codes, function names.
 * Lists every difference and exits with 1 if there is one.
 * Usage: deno run -A tools/check_cuda_header.ts (or bun; CUDA_HOME names the toolkit, CC the compiler)
 */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { DEVICE_ATTRIBUTES } from "../src/driver/device_attributes.ts";
import * as enums from "../src/driver/enums.ts";
import * as results from "../src/driver/results.ts";
import * as structs from "../src/driver/structs.ts";
import { DRIVER_SYMBOLS } from "../src/driver/symbols.ts";
import type { StructLayout } from "../ffi/mod.ts";
import { cudaIncludeFolder, runCompiler, runProgram, skipWithoutCudaHeader } from "./gcc.ts";

/** One number of ours: what it is called in a report, the C expression that must have this value, and the value. */
interface Claim {
  readonly what: string;
  readonly expression: string;
  readonly value: number;
}

function constantClaims(constants: Readonly<Record<string, unknown>>): Claim[] {
  const numbers = Object.entries(constants).filter(([, value]) => typeof value === "number");
  return numbers.map(([name, value]) => ({ what: name, expression: name, value: value as number }));
}

function attributeClaims(): Claim[] {
  return Object.entries(DEVICE_ATTRIBUTES).map(([name, value]) => {
    const constant = `CU_DEVICE_ATTRIBUTE_${name}`;
    return { what: constant, expression: constant, value };
  });
}

const FIELD_WIDTHS = { u8: 1, u16: 2, i32: 4, u32: 4, u64: 8, size: 8, address: 8 };

function layoutClaims({ name, byteLength, fields }: StructLayout): Claim[] {
  const ofFields = Object.entries(fields).flatMap(([field, { type, offset, byteLength = 0, member = field }]) => [
    { what: `${name}.${field}: offset`, expression: `offsetof(${name}, ${member})`, value: offset },
    {
      what: `${name}.${field}: width`,
      expression: `sizeof(((${name} *)0)->${member})`,
      value: type === "bytes" ? byteLength : FIELD_WIDTHS[type],
    },
  ]);
  return [{ what: `sizeof(${name})`, expression: `sizeof(${name})`, value: byteLength }, ...ofFields];
}

const OPAQUE_TYPES = ["CUmemPoolPtrExportData", "CUipcMemHandle", "CUipcEventHandle", "CUmemFabricHandle"];

function sizeClaims(): Claim[] {
  const claim = (type: string, value: number) => ({ what: `sizeof(${type})`, expression: `sizeof(${type})`, value });
  return [...OPAQUE_TYPES.map((type) => claim(type, structs.OPAQUE_BYTES)), claim("CUuuid", structs.UUID_BYTES)];
}

const INCLUDES = "#include <cuda.h>\n#include <stddef.h>\n#include <stdio.h>\n";

/** The claims that the header does not know at all, which would stop the program that prints the others. */
function unknownClaims(claims: readonly Claim[]): Claim[] {
  const lines = claims.map(({ expression }, index) => `long long claim_${index}(void) { return (long long)(${expression}); }`);
  const { messages } = runCompiler(`${INCLUDES}${lines.join("\n")}\n`, ["-fsyntax-only"]);
  const firstLine = INCLUDES.split("\n").length;
  const broken = new Set([...messages.matchAll(/^\S+\.c:(\d+):\d+: error:/gm)].map(([, line]) => Number(line) - firstLine));
  return claims.filter((_, index) => broken.has(index));
}

function checkClaims(claims: readonly Claim[]): string[] {
  const unknown = unknownClaims(claims);
  const known = claims.filter((claim) => !unknown.includes(claim));
  const prints = known.map(({ expression }) => `  printf("%lld\\n", (long long)(${expression}));`);
  const values = runProgram(`${INCLUDES}int main(void) {\n${prints.join("\n")}\n  return 0;\n}\n`).trim().split("\n").map(Number);
  return [
    ...unknown.map(({ what }) => `${what}: not in cuda.h`),
    ...known.flatMap(({ what, value }, index) =>
      values[index] === value ? [] : [`${what}: ours is ${value}, cuda.h says ${values[index]}`]
    ),
  ];
}

/** Every result code of the header is in our table, under its name. */
function checkResultNames(header: string): string[] {
  const body = header.match(/typedef enum cudaError_enum \{([\s\S]*?)\} CUresult;/)?.[1] ?? "";
  const codes = [...body.matchAll(/^\s*(CUDA_\w+)\s*=\s*(\d+)/gm)];
  if (codes.length === 0) return ["result codes: none found in cuda.h"];
  const missing = codes.filter(([, name, code]) => results.RESULT_NAMES.get(Number(code)) !== name);
  const known = new Set(codes.map(([, name]) => name));
  const surplus = [...results.RESULT_NAMES.values()].filter((name) => !known.has(name));
  return [
    ...missing.map(([, name, code]) => `${name}: cuda.h has code ${code}, ours is ${results.RESULT_NAMES.get(Number(code))}`),
    ...surplus.map((name) => `${name}: not in cuda.h`),
  ];
}

function plainName(name: string): string {
  return name.replace(/_v\d+$/, "");
}

function functionClaims(): Claim[] {
  return Object.keys(DRIVER_SYMBOLS).map((name) => ({ what: name, expression: `sizeof(&${plainName(name)})`, value: 8 }));
}

/** Every function is called by the name that cuda.h maps its plain one to; an older form only beside the newer one. */
function checkFunctionNames(): string[] {
  const names = Object.keys(DRIVER_SYMBOLS);
  const source = names.map((name) => `claim ${plainName(name)}\n`).join("");
  const { stdout } = runCompiler(`#include <cuda.h>\n${source}`, ["-E", "-P"]);
  const mapped = [...stdout.matchAll(/^claim (\w+)$/gm)].map(([, name]) => name);
  return names.flatMap((name, index) => {
    const wanted = mapped[index];
    if (name === wanted || (name === plainName(name) && names.includes(wanted))) return [];
    return [`${name}: cuda.h maps ${plainName(name)} to ${wanted}`];
  });
}

const reason = skipWithoutCudaHeader();
if (reason) {
  console.error(`Cannot check against cuda.h: ${reason}`);
  process.exit(2);
}
const header = readFileSync(join(cudaIncludeFolder()!, "cuda.h"), "utf8");
const layouts = Object.values(structs).filter((value) => typeof value === "object");
const claims = [
  ...constantClaims(enums),
  ...constantClaims(results),
  ...attributeClaims(),
  ...layouts.flatMap(layoutClaims),
  ...sizeClaims(),
  ...functionClaims(),
];
const differences = [...checkClaims(claims), ...checkResultNames(header), ...checkFunctionNames()];
differences.forEach((line) => console.error(line));
const version = header.match(/#define CUDA_VERSION (\d+)/)?.[1];
console.log(
  `cuda.h ${version}: ${claims.length} numbers, ${results.RESULT_NAMES.size} result codes and ` +
    `${Object.keys(DRIVER_SYMBOLS).length} function names compared, ${differences.length} differences`,
);
process.exit(differences.length === 0 ? 0 : 1);
