/**
 * Holds the rules of the house: which layer may import which, no cycles, one door to `ffi/`, one place for each runtime,
 * a public list by name, and nothing that names a machine or a document that readers do not have.
 *
 *   deno run -R tools/check_layers.ts
 *
 * @module
 */
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { basename, dirname, join, posix } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { importsOf, lineAt, withoutComments } from "./source.ts";

/** A layer: its files (the first layer that matches counts) and the layers that it may import besides itself. */
interface Layer {
  readonly name: string;
  readonly files: RegExp;
  readonly mayImport: readonly string[];
}

// src/errors.ts and src/arguments.ts are the floor that everything above ffi/ stands on.
const FLOOR = ["errors", "arguments"];
const LAYERS: readonly Layer[] = [
  { name: "errors", files: /^src\/errors\.ts$/, mayImport: [] },
  { name: "arguments", files: /^src\/arguments\.ts$/, mayImport: ["errors"] },
  { name: "ffi", files: /^ffi\//, mayImport: ["errors"] },
  { name: "os", files: /^src\/os\//, mayImport: [...FLOOR, "ffi"] },
  { name: "simulator", files: /^src\/driver\/simulator\//, mayImport: [...FLOOR, "ffi", "os", "driver"] },
  { name: "driver", files: /^src\/driver\//, mayImport: [...FLOOR, "ffi", "simulator"] },
  { name: "wire", files: /^src\/wire\//, mayImport: FLOOR },
  { name: "event", files: /^src\/event\.ts$/, mayImport: [...FLOOR, "ffi", "os", "driver", "wire", "device"] },
  { name: "device", files: /^src\/[^/]+\.ts$/, mayImport: [...FLOOR, "ffi", "driver", "wire", "event"] },
  { name: "share", files: /^src\/share\//, mayImport: [...FLOOR, "ffi", "os", "driver", "wire", "event", "device"] },
  { name: "memory", files: /^src\/memory\//, mayImport: [...FLOOR, "ffi", "os", "driver", "wire", "event", "device", "share"] },
  {
    name: "channel",
    files: /^src\/channel\//,
    mayImport: [...FLOOR, "ffi", "os", "driver", "wire", "event", "device", "share", "memory"],
  },
  { name: "mod", files: /^mod\.ts$/, mayImport: [...FLOOR, "driver", "wire", "event", "device", "share", "memory", "channel"] },
  {
    name: "cli",
    files: /^src\/cli\//,
    mayImport: [...FLOOR, "ffi", "os", "driver", "wire", "event", "device", "share", "memory", "channel", "mod"],
  },
];

/** What only one file, or one folder, may say. Comments are not looked at. */
const SAYINGS: readonly { readonly what: RegExp; readonly where: RegExp; readonly rule: string }[] = [
  { what: /\bDeno\.dlopen\b/g, where: /^ffi\/deno\.ts$/, rule: "only ffi/deno.ts says Deno.dlopen" },
  { what: /\bbun:ffi\b/g, where: /^ffi\/bun\.ts$/, rule: "only ffi/bun.ts says bun:ffi" },
  {
    what: /\b(?:Deno|Bun)\.[a-zA-Z]|\bglobalThis\.(?:Deno|Bun)\b|\btypeof (?:Deno|Bun)\b|["'](?:Deno|Bun)["'] in\b/g,
    where: /^(?:ffi|src\/os)\//,
    rule: "only ffi/ and src/os/ know which runtime this is",
  },
  {
    what: /\bruntimeName\b|\bversions\.(?:deno|bun)\b|\bnavigator\.userAgent\b/g,
    where: /^(?:ffi|src\/os)\//,
    rule: "only ffi/ and src/os/ ask which runtime this is",
  },
];

/** What nothing that ships may contain, comments included. */
const FOREIGN: readonly { readonly what: RegExp; readonly rule: string }[] = [
  { what: /(?<![\w.:/])\/(?:work|home|root|Users)\/\w/g, rule: "a path of somebody's own machine" },
  { what: /(?<![\w@])\.\.\/shared\//g, rule: "a path outside the repository" },
  { what: /\b(?:registry|npm)\.[a-z]+\.(?:org|com|io|net|dev|local)\b/g, rule: "the host of a package registry" },
];
const SHIPPED = [
  "mod.ts",
  "src",
  "ffi",
  "README.md",
  "CHANGELOG.md",
  "CONTRIBUTING.md",
  "package.json",
  "deno.json",
  "docs",
  "examples",
];
const SKIPPED = new Set(["node_modules", ".git"]);

function filesUnder(root: string, path: string): string[] {
  if (!existsSync(join(root, path))) return [];
  if (/\.\w+$/.test(path)) return [path];
  return readdirSync(join(root, path), { withFileTypes: true })
    .filter((entry) => !SKIPPED.has(entry.name))
    .flatMap((entry) => {
      const child = path === "" ? entry.name : `${path}/${entry.name}`;
      return entry.isDirectory() ? filesUnder(root, child) : [child];
    });
}

function layerOf(file: string): Layer | undefined {
  return LAYERS.find((layer) => layer.files.test(file));
}

/** Every violation in the tree at `root`, as `file:line: what`. */
export function checkLayers(root: string): string[] {
  const violations: string[] = [];
  const report = (file: string, line: number, what: string) => violations.push(`${file}:${line}: ${what}`);
  const sources = ["mod.ts", "src", "ffi"].flatMap((path) => filesUnder(root, path)).filter((file) => /\.[jt]s$/.test(file));
  const graph = new Map<string, string[]>();

  for (const file of sources) {
    const code = withoutComments(readFileSync(join(root, file), "utf8"));
    const layer = layerOf(file);
    if (layer === undefined) report(file, 1, "belongs to no layer; say which in tools/check_layers.ts");
    const targets: string[] = [];
    for (const { specifier, typeOnly, line } of importsOf(code)) {
      if (specifier.startsWith("node:")) continue;
      if (!specifier.startsWith(".")) {
        report(file, line, `imports ${specifier}: nothing but node: and own files may be imported at run time`);
        continue;
      }
      const target = posix.normalize(posix.join(dirname(file), specifier));
      if (!existsSync(join(root, target))) report(file, line, `imports ${target}, which is not there`);
      if (target.startsWith("ffi/") && target !== "ffi/mod.ts" && !file.startsWith("ffi/")) {
        report(file, line, `imports ${target}: only ffi/mod.ts may be imported from outside ffi/`);
      }
      if (typeOnly) continue;
      targets.push(target);
      const other = layerOf(target);
      if (other === undefined) report(file, line, `imports ${target}, which is in no layer`);
      else if (layer !== undefined && other !== layer && !layer.mayImport.includes(other.name)) {
        report(file, line, `imports ${target}: ${layer.name} may not import ${other.name}`);
      }
    }
    graph.set(file, targets);
    for (const { what, where, rule } of SAYINGS) {
      if (where.test(file)) continue;
      for (const match of code.matchAll(what)) report(file, lineAt(code, match.index), `says ${match[0]}: ${rule}`);
    }
  }

  for (const cycle of findCycles(graph)) report(cycle[0], 1, `imports itself: ${cycle.join(" -> ")}`);
  if (sources.includes("mod.ts")) {
    const code = withoutComments(readFileSync(join(root, "mod.ts"), "utf8"));
    const rest = code.replace(
      /export\s+(?:(?:type\s+)?\{[^}]*\}|\*\s+as\s+\w+)\s*from\s*"[^"]+";/g,
      (text) => text.replace(/[^\n]/g, " "),
    );
    const other = rest.search(/\S/);
    if (other >= 0) report("mod.ts", lineAt(rest, other), "holds more than re-exports by name");
  }

  const documents = new Set(filesUnder(root, "").filter((file) => file.endsWith(".md")).map((file) => basename(file)));
  for (const file of SHIPPED.flatMap((path) => filesUnder(root, path)).filter((file) => /\.(?:ts|md|json)$/.test(file))) {
    const text = readFileSync(join(root, file), "utf8");
    for (const { what, rule } of FOREIGN) {
      for (const match of text.matchAll(what)) report(file, lineAt(text, match.index), `says ${match[0]}: ${rule}`);
    }
    for (const match of text.matchAll(/(?<!https?:\S*)\b[\w-]+\.md\b/g)) {
      if (!documents.has(match[0])) report(file, lineAt(text, match.index), `names ${match[0]}, which is not in this repository`);
    }
  }
  return violations;
}

/** Each cycle once, as the files along it, the first one repeated at the end. */
export function findCycles(graph: ReadonlyMap<string, readonly string[]>): string[][] {
  const cycles: string[][] = [];
  const done = new Set<string>();
  const path: string[] = [];
  const visit = (file: string) => {
    const at = path.indexOf(file);
    if (at >= 0) cycles.push([...path.slice(at), file]);
    if (at >= 0 || done.has(file)) return;
    path.push(file);
    for (const target of graph.get(file) ?? []) visit(target);
    path.pop();
    done.add(file);
  };
  for (const file of graph.keys()) visit(file);
  return cycles;
}

if (import.meta.main) {
  const root = fileURLToPath(new URL("..", import.meta.url));
  const violations = checkLayers(root);
  for (const violation of violations) console.error(violation);
  console.log(violations.length === 0 ? "layers: every rule holds" : `layers: ${violations.length} violations`);
  process.exitCode = violations.length === 0 ? 0 : 1;
}
