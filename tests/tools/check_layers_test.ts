import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { assert, assertEquals } from "@std/assert";
import { checkLayers, findCycles } from "../../tools/check_layers.ts";

/** A house in which every rule holds. */
const HOUSE: Readonly<Record<string, string>> = {
  "mod.ts": '/** Door. */\nexport { pool } from "./src/memory/pool.ts";\nexport type { Ring } from "./src/channel/ring.ts";\n',
  "ffi/mod.ts":
    'import { deno } from "./deno.ts";\nimport { bun } from "./bun.ts";\nimport "../src/errors.ts";\nexport { bun, deno };\n',
  "ffi/deno.ts": "export const deno = Deno.dlopen;\n",
  "ffi/bun.ts": 'export const bun = "bun:ffi";\n',
  "src/errors.ts": "export {};\n",
  "src/arguments.ts": 'import "./errors.ts";\n',
  "src/os/fd.ts": 'import "../../ffi/mod.ts";\nimport type { id } from "../wire/id.ts";\nconst here = Deno.pid;\n',
  "src/driver/mod.ts": 'import "../../ffi/mod.ts";\nimport "./simulator/mod.ts";\n',
  "src/driver/simulator/mod.ts": 'import "../table.ts";\nimport "../../os/fd.ts";\n',
  "src/driver/table.ts": "export {};\n",
  "src/wire/id.ts": 'import "../arguments.ts";\nexport type id = 1;\n',
  "src/device.ts": 'import "./driver/mod.ts";\nimport type { pool } from "./memory/pool.ts"; // Deno.dlopen, bun:ffi\n',
  "src/event.ts": 'import "./os/fd.ts";\nimport "./device.ts";\n',
  "src/share/registry.ts": 'import "../event.ts";\n',
  "src/memory/pool.ts": 'import "../share/registry.ts";\nimport "../device.ts";\nexport const pool = 1;\n',
  "src/channel/ring.ts": 'import "../memory/pool.ts";\nimport process from "node:process";\n',
  "src/cli/demo.ts": 'import "../../mod.ts";\n',
  "README.md": "See https://example.com/other.md and CHANGELOG.md\n",
  "CHANGELOG.md": "",
};

/** What the gate says about the house with some files changed. */
function check(changes: Readonly<Record<string, string>>): string[] {
  const root = mkdtempSync(join(tmpdir(), "layers-"));
  try {
    for (const [file, text] of Object.entries({ ...HOUSE, ...changes })) {
      mkdirSync(dirname(join(root, file)), { recursive: true });
      writeFileSync(join(root, file), text);
    }
    return checkLayers(root);
  } finally {
    rmSync(root, { recursive: true });
  }
}

test("a house in which every rule holds passes", () => {
  assertEquals(check({}), []);
});

test("this repository passes", () => {
  assertEquals(checkLayers(fileURLToPath(new URL("../..", import.meta.url))), []);
});

const UPWARD: readonly (readonly [file: string, target: string, what: string])[] = [
  ["src/errors.ts", "./arguments.ts", "errors may not import arguments"],
  ["src/arguments.ts", "./device.ts", "arguments may not import device"],
  ["ffi/types.ts", "../src/arguments.ts", "ffi may not import arguments"],
  ["ffi/types.ts", "../src/driver/mod.ts", "ffi may not import driver"],
  ["src/os/fd.ts", "../driver/mod.ts", "os may not import driver"],
  ["src/os/fd.ts", "../wire/id.ts", "os may not import wire"],
  ["src/driver/table.ts", "../os/fd.ts", "driver may not import os"],
  ["src/driver/table.ts", "../wire/id.ts", "driver may not import wire"],
  ["src/wire/id.ts", "../driver/mod.ts", "wire may not import driver"],
  ["src/wire/id.ts", "../../ffi/mod.ts", "wire may not import ffi"],
  ["src/device.ts", "./os/fd.ts", "device may not import os"],
  ["src/device.ts", "./share/registry.ts", "device may not import share"],
  ["src/device.ts", "./memory/pool.ts", "device may not import memory"],
  ["src/share/registry.ts", "../memory/pool.ts", "share may not import memory"],
  ["src/memory/pool.ts", "../channel/ring.ts", "memory may not import channel"],
  ["src/channel/ring.ts", "../../mod.ts", "channel may not import mod"],
  ["src/channel/ring.ts", "../cli/demo.ts", "channel may not import cli"],
];
for (const [file, target, what] of UPWARD) {
  test(`${file} cannot import ${target}`, () => {
    const found = check({ [file]: `${HOUSE[file] ?? ""}export { x } from "${target}";\n` });
    assert(found.some((violation) => violation.startsWith(`${file}:`) && violation.endsWith(what)), found.join("\n"));
    // Only the type may go up.
    if (!file.startsWith("ffi/")) assertEquals(check({ [file]: `${HOUSE[file]}export type { x } from "${target}";\n` }), []);
  });
}

const PLANTED: readonly (readonly [name: string, changes: Record<string, string>, what: string])[] = [
  ["a cycle", { "src/driver/table.ts": 'import "./mod.ts";' }, "imports itself: src/driver/"],
  ["a file that imports itself", { "src/driver/table.ts": 'import "./table.ts";' }, "src/driver/table.ts -> src/driver/table.ts"],
  ["a second door to ffi/", { "src/device.ts": 'import "../ffi/deno.ts";' }, "only ffi/mod.ts may be imported"],
  [
    "a second door for types",
    { "src/device.ts": 'import type { T } from "../ffi/types.ts";' },
    "only ffi/mod.ts may be imported",
  ],
  ["a dependency", { "src/device.ts": 'import "left-pad";' }, "imports left-pad"],
  ["a dynamic dependency", { "src/device.ts": 'await import("left-pad");' }, "imports left-pad"],
  ["a missing file", { "src/device.ts": 'import "./gone.ts";' }, "src/gone.ts, which is not there"],
  ["a file of no layer", { "src/other/x.ts": "" }, "src/other/x.ts:1: belongs to no layer"],
  ["Deno.dlopen elsewhere in ffi/", { "ffi/types.ts": "\nDeno.dlopen();" }, "ffi/types.ts:2: says Deno.dlopen"],
  ["Deno.dlopen in src/os/", { "src/os/libc.ts": "Deno.dlopen();" }, "only ffi/deno.ts"],
  ["bun:ffi elsewhere", { "src/os/libc.ts": 'get("bun:ffi");' }, "only ffi/bun.ts"],
  ["the Deno namespace", { "src/device.ts": "Deno.pid;" }, "says Deno.p"],
  ["the Bun namespace", { "src/memory/x.ts": "Bun.gc(true);" }, "says Bun.g"],
  ["a global runtime test", { "src/device.ts": "if (globalThis.Deno) {}" }, "says globalThis.Deno"],
  ["a typeof runtime test", { "src/device.ts": 'typeof Bun === "object"' }, "says typeof Bun"],
  ["an in runtime test", { "src/device.ts": 'if ("Deno" in globalThis) {}' }, 'says "Deno" in'],
  ["runtimeName", { "src/device.ts": 'import { runtimeName } from "../ffi/mod.ts";' }, "says runtimeName"],
  ["a version test", { "src/device.ts": "process.versions.bun" }, "says versions.bun"],
  ["a user agent test", { "src/device.ts": "navigator.userAgent" }, "says navigator.userAgent"],
  ["export * in mod.ts", { "mod.ts": '\nexport * from "./src/errors.ts";' }, "mod.ts:2: holds more than re-exports"],
  ["code in mod.ts", { "mod.ts": "export const x = 1;" }, "mod.ts:1: holds more than re-exports"],
  ["somebody's path", { "src/device.ts": "// see /home/me/notes" }, "says /home/m: a path of somebody's own machine"],
  ["a path outside", { "README.md": "see ../shared/notes" }, "a path outside the repository"],
  ["a registry", { "README.md": "https://registry.example.org/x" }, "the host of a package registry"],
  [
    "a document that is not here",
    { "src/device.ts": "/** See rules.md, R1. */" },
    "names rules.md, which is not in this repository",
  ],
];
for (const [name, changes, what] of PLANTED) {
  test(`${name} is found`, () => {
    const found = check(changes);
    assert(found.some((violation) => violation.includes(what)), found.join("\n") || "nothing was found");
  });
}

test("each cycle is reported once", () => {
  const graph = new Map([["a", ["b"]], ["b", ["c"]], ["c", ["a"]], ["d", ["a", "d"]]]);
  assertEquals(findCycles(graph), [["a", "b", "c", "a"], ["d", "d"]]);
});
