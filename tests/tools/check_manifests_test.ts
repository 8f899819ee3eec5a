import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { assert, assertEquals } from "@std/assert";
import { checkManifests } from "../../tools/check_manifests.ts";

const DENO = {
  name: "@thing/thing",
  version: "1.2.3",
  license: "MIT",
  exports: "./mod.ts",
  publish: { include: ["mod.ts", "src", "README.md", "LICENSE"] },
};
const NPM = {
  name: "thing",
  version: "1.2.3",
  license: "MIT",
  exports: { ".": { types: "./types/mod.d.ts", bun: "./mod.ts" }, "./package.json": "./package.json" },
  files: ["mod.ts", "src", "types"],
  devDependencies: { typescript: "7.0.2" },
};
const LOCK = { version: "1.2.3", packages: { "node_modules/typescript": { version: "7.0.2" } } };

function check(changes: { deno?: object; npm?: object; lock?: object; changelog?: string }): string[] {
  const root = mkdtempSync(join(tmpdir(), "manifests-"));
  try {
    for (const file of ["mod.ts", "README.md", "LICENSE"]) writeFileSync(join(root, file), "");
    mkdirSync(join(root, "src"));
    writeFileSync(join(root, "deno.json"), `// a comment\n${JSON.stringify({ ...DENO, ...changes.deno })}`);
    writeFileSync(join(root, "package.json"), JSON.stringify({ ...NPM, ...changes.npm }));
    writeFileSync(join(root, "package-lock.json"), JSON.stringify({ ...LOCK, ...changes.lock }));
    writeFileSync(join(root, "CHANGELOG.md"), changes.changelog ?? "## 1.2.3\n");
    return checkManifests(root);
  } finally {
    rmSync(root, { recursive: true });
  }
}

test("manifests that agree pass", () => assertEquals(check({}), []));

test("this repository's manifests agree", () => {
  assertEquals(checkManifests(fileURLToPath(new URL("../..", import.meta.url))), []);
});

const PLANTED: readonly (readonly [name: string, changes: Parameters<typeof check>[0], what: string])[] = [
  ["another name", { npm: { name: "other" } }, "name:"],
  ["another version", { deno: { version: "1.2.4" } }, "version: deno.json"],
  ["another license", { npm: { license: "ISC" } }, "license:"],
  ["an export of deno.json only", { deno: { exports: { ".": "./mod.ts", "./b": "./b.ts" } } }, "exported names:"],
  ["an export of package.json only", { npm: { exports: { ...NPM.exports, "./b": "./b.ts" } } }, "exported names:"],
  ["another target", { npm: { exports: { ".": { types: "./types/mod.d.ts", bun: "./main.ts" } } } }, "export .:"],
  ["other declarations", { npm: { exports: { ".": { types: "./types/main.d.ts", bun: "./mod.ts" } } } }, "export ., types:"],
  ["a file for JSR only", { npm: { files: ["mod.ts"] } }, "files:"],
  ["a file for npm only", { npm: { files: ["mod.ts", "src", "docs"] } }, "files:"],
  ["a missing file", { deno: { publish: { include: ["gone"] } } }, "gone is to be published"],
  ["a range", { npm: { devDependencies: { typescript: "^7.0.2" } } }, "expected an exact version"],
  ["a stale lock", { npm: { devDependencies: { typescript: "7.0.3" } } }, "package-lock.json has 7.0.2"],
  ["a dependency", { npm: { dependencies: { x: "1.0.0" } } }, "none at run time"],
  ["a lock of another version", { lock: { version: "1.2.2" } }, "package-lock.json says 1.2.2"],
  [
    "a registry's host",
    { lock: { packages: { "node_modules/typescript": { version: "7.0.2", resolved: "https://r.example/t" } } } },
    "names a registry's host",
  ],
  ["no change log", { changelog: "## 1.2.2\n" }, 'no section "## 1.2.3"'],
];
for (const [name, changes, what] of PLANTED) {
  test(`${name} is found`, () => {
    const found = check(changes);
    assert(found.some((line) => line.includes(what)), found.join("\n") || "nothing was found");
  });
}
