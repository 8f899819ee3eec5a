/** The C library's functions are declared as the system's own headers declare them. */
import { test } from "node:test";
import { assert, assertMatch } from "@std/assert";
import type { ArgumentType, SymbolTable } from "../../ffi/mod.ts";
import { LIBC_SYMBOLS } from "../../src/os/libc.ts";
import { runCompiler, skipWithoutCompiler } from "../../tools/gcc.ts";

const skip = skipWithoutCompiler();

const HEAD = `#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#define KIND(type) __builtin_classify_type(*(type *)0)
#define IS_pointer(type) (KIND(type) == 5)
#define IS_i32(type) (KIND(type) == 1 && sizeof(type) == 4 && (type)-1 < 0)
#define IS_u32(type) (KIND(type) == 1 && sizeof(type) == 4 && (type)-1 > 0)
#define IS_i64(type) (KIND(type) == 1 && sizeof(type) == 8)
`;

const CHECKS: Readonly<Record<ArgumentType | "i64" | "void", string>> = {
  address: "pointer",
  bytes: "pointer",
  size: "i64",
  u64: "i64",
  i64: "i64",
  i32: "i32",
  u32: "u32",
  u16: "u16",
  u8: "u8",
  struct64: "struct64",
  void: "void",
};

/** The header's own declaration, ours beside it (gcc refuses two that differ), and what our neutral types stand for. */
function source(symbols: SymbolTable): string {
  const lines = Object.entries(symbols).flatMap(([name, { prototype, args, result }]) => {
    const match = prototype.match(/^(.*?)\b\w+\(([^()]*)\)$/); // not signal, whose type is a riddle
    const types = match === null || match[2] === "void" ? [] : match[2].split(", ").map((text) => text.replace(/\b\w+$/, ""));
    const fixed = types.filter((type) => type !== "...");
    const check = (type: string, kind: string) => `_Static_assert(IS_${kind}(${type}), "${name}: ${type} is no ${kind}");`;
    return [
      `void *header_${name} = ${name};`,
      `${prototype};`,
      ...fixed.map((type, index) => check(type, CHECKS[args[index]])),
      ...(match === null || result === "void" ? [] : [check(match[1], CHECKS[result])]),
    ];
  });
  return HEAD + lines.join("\n") + "\n";
}

const compile = (symbols: SymbolTable) => runCompiler(source(symbols), ["-fsyntax-only", "-std=gnu11"]);

test("every function's prototype and argument types are the headers'", { skip }, () => {
  const { ok, messages } = compile(LIBC_SYMBOLS);
  assert(ok, messages);
});

test("a wrong prototype, a wrong type and an unknown function are seen", { skip }, () => {
  const wrong: SymbolTable[] = [
    { close: { prototype: "int close(long fd)", args: ["size"], result: "i32" } },
    { close: { prototype: "int close(int fd)", args: ["size"], result: "i32" } },
    { close: { prototype: "int close(int fd)", args: ["i32"], result: "i64" } },
    { no_such_call: { prototype: "int no_such_call(int fd)", args: ["i32"], result: "i32" } },
  ];
  for (const table of wrong) {
    const { ok, messages } = compile(table);
    assert(!ok);
    assertMatch(messages, /error: (conflicting types|static assertion failed|.*undeclared)/);
  }
});
