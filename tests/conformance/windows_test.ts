/** What is declared of the Windows API is what the headers of a Windows compiler say. */
import { test } from "node:test";
import { assert, assertMatch } from "@std/assert";
import type { ArgumentType, StructLayout, SymbolTable } from "../../ffi/mod.ts";
import { OBJECT_ATTRIBUTES, SECURITY_ATTRIBUTES } from "../../src/memory/os_handle.ts";
import { KERNEL32_SYMBOLS } from "../../src/os/windows.ts";
import { runCompiler, skipWithoutCompiler } from "../../tools/gcc.ts";

const COMPILER = "x86_64-w64-mingw32-gcc";
const skip = skipWithoutCompiler(COMPILER);

const HEAD = `#include <stddef.h>
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#include <winternl.h>
#define KIND(type) __builtin_classify_type(*(type *)0)
#define IS_address(type) (KIND(type) == 5)
#define IS_i32(type) (KIND(type) == 1 && sizeof(type) == 4 && (type)-1 < 0)
#define IS_u32(type) (KIND(type) == 1 && sizeof(type) == 4 && (type)-1 > 0)
`;

const check = (condition: string, what: string) => `_Static_assert(${condition}, "${what}");`;

/** The header's own declaration with ours beside it (gcc refuses two that differ), and what our neutral types stand for. */
function functionChecks(symbols: SymbolTable): string[] {
  return Object.entries(symbols).flatMap(([name, { prototype, args, result }]) => {
    const [, type, list] = prototype.match(/^(.*?)\b\w+\((.*)\)$/)!;
    const types = list === "void" ? [] : list.split(", ").map((text) => text.replace(/\b\w+$/, ""));
    const declared: readonly [string, ArgumentType | typeof result][] = [
      [type, result],
      ...types.map((each, index): [string, ArgumentType] => [each, args[index]]),
    ];
    return [
      `typedef __typeof__(${name}) header_${name};`,
      prototype.replace(name, `(WINAPI *ours_${name})`) + " = (header_" + name + " *)0;",
      ...declared.map(([each, kind]) => check(`IS_${kind}(${each})`, `${name}: ${each} is no ${kind}`)),
    ];
  });
}

const WIDTHS: Readonly<Record<string, number>> = { u32: 4, i32: 4, address: 8 };

function layoutChecks({ name, byteLength, fields }: StructLayout): string[] {
  return [
    check(`sizeof(${name}) == ${byteLength}`, `sizeof ${name}`),
    ...Object.entries(fields).flatMap(([field, { type, offset }]) => [
      check(`offsetof(${name}, ${field}) == ${offset}`, `offset of ${name}.${field}`),
      check(`sizeof(((${name} *)0)->${field}) == ${WIDTHS[type]}`, `width of ${name}.${field}`),
    ]),
  ];
}

const compile = (lines: readonly string[]) =>
  runCompiler(HEAD + lines.join("\n") + "\n", ["-fsyntax-only", "-std=gnu11", "-Werror"], COMPILER);

test("kernel32: every prototype and argument type is the header's", { skip }, () => {
  const { ok, messages } = compile(functionChecks(KERNEL32_SYMBOLS));
  assert(ok, messages);
});

test("SECURITY_ATTRIBUTES and OBJECT_ATTRIBUTES are laid out as in the headers", { skip }, () => {
  const { ok, messages } = compile([SECURITY_ATTRIBUTES, OBJECT_ATTRIBUTES].flatMap(layoutChecks));
  assert(ok, messages);
});

test("a wrong prototype, a wrong type and a wrong layout are seen", { skip }, () => {
  const wrong: string[][] = [
    functionChecks({ CloseHandle: { prototype: "BOOL CloseHandle(DWORD object)", args: ["u32"], result: "i32" } }),
    functionChecks({ CloseHandle: { prototype: "BOOL CloseHandle(HANDLE object)", args: ["u32"], result: "i32" } }),
    functionChecks({ CloseHandle: { prototype: "BOOL CloseHandle(HANDLE object)", args: ["address"], result: "u32" } }),
    layoutChecks({ ...SECURITY_ATTRIBUTES, byteLength: 16 }),
    layoutChecks({ ...OBJECT_ATTRIBUTES, fields: { Length: { type: "u32", offset: 4 } } }),
  ];
  for (const lines of wrong) {
    const { ok, messages } = compile(lines);
    assert(!ok);
    assertMatch(messages, /error: (static assertion failed|initialization of .* from incompatible pointer type)/);
  }
});
