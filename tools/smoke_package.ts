/**
 * Packs the module as npm and JSR would ship it, puts each package into an empty folder, and imports it there in Bun and
 * in Deno: the public names are there, nothing else is needed, and importing opens no library and prints nothing.
 *
 *   deno run -A tools/smoke_package.ts
 *
 * @module
 */
import { spawnSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { runtimePath } from "../tests/helpers/runtimes.ts";
import { withoutComments } from "./source.ts";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const TIME_LIMIT_MS = 120_000;

/** The values (not types) that mod.ts exports. */
export function exportedValues(code: string): string[] {
  const names: string[] = [];
  for (const [, list] of withoutComments(code).matchAll(/export\s+\{([^}]*)\}/g)) {
    for (const item of list.split(",").map((text) => text.trim()).filter((text) => text !== "" && !text.startsWith("type "))) {
      names.push(item.split(/\s+as\s+/).at(-1)!);
    }
  }
  for (const [, name] of withoutComments(code).matchAll(/export\s+\*\s+as\s+(\w+)/g)) names.push(name);
  return names.sort();
}

/**
 * Imports the package and says which names it has, which shared libraries came in with it and how many globals. Deno
 * shows nobody its memory map, but without a permission it opens no library either.
 */
function probe(specifier: string): string {
  return `
import { readFileSync } from "node:fs";
const maps = !("Deno" in globalThis) ? () => readFileSync("/proc/self/maps", "utf8") : () => "";
const libraries = () => new Set(maps().match(/\\/\\S+\\.so\\b\\S*/g));
const globals = () => Reflect.ownKeys(globalThis).length;
const before = { libraries: libraries(), globals: globals() };
const module = await import(${JSON.stringify(specifier)});
console.log(JSON.stringify({
  names: Object.keys(module).sort(),
  libraries: [...libraries()].filter((path) => !before.libraries.has(path)),
  globals: globals() - before.globals,
}));
`;
}

function run(command: string, args: readonly string[], cwd: string): string {
  // Without what an outer npm says about its own folder
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("npm_")));
  const result = spawnSync(command, args, { cwd, encoding: "utf8", timeout: TIME_LIMIT_MS, env: { ...env, NO_COLOR: "1" } });
  if (result.status !== 0) {
    throw new Error(
      `${command} ${args.join(" ")} ended with ${result.status ?? result.signal}\n${result.stdout}${result.stderr}`,
    );
  }
  return result.stdout;
}

function checkProbe(what: string, output: string, wanted: readonly string[]): void {
  let seen: { names: string[]; libraries: string[]; globals: number };
  try {
    seen = JSON.parse(output); // one line: importing prints nothing
  } catch {
    throw new Error(`${what}: importing printed something: ${output}`);
  }
  const missing = wanted.filter((name) => !seen.names.includes(name));
  const extra = seen.names.filter((name) => !wanted.includes(name));
  if (missing.length > 0 || extra.length > 0) throw new Error(`${what}: missing names: ${missing}; unexpected names: ${extra}`);
  if (seen.libraries.length > 0) throw new Error(`${what}: importing opened ${seen.libraries}`);
  if (seen.globals !== 0) throw new Error(`${what}: importing changed the globals`);
  console.log(`package: ${what}: ${seen.names.length} names, no side effects`);
}

/** A user's project checks with its own settings, which are stricter than ours: those of `bun init`, and more. */
function checkTypes(home: string, name: string): void {
  cpSync(join(ROOT, "node_modules", "bun-types"), join(home, "node_modules", "bun-types"), { recursive: true });
  cpSync(join(ROOT, "node_modules", "@types", "node"), join(home, "node_modules", "@types", "node"), { recursive: true });
  const compilerOptions = {
    lib: ["ESNext"],
    target: "ESNext",
    module: "Preserve",
    moduleResolution: "bundler",
    types: ["bun-types"],
    noEmit: true,
    strict: true,
    noUncheckedIndexedAccess: true,
    exactOptionalPropertyTypes: true,
    noImplicitOverride: true,
    noUnusedLocals: true,
    noUnusedParameters: true,
    noPropertyAccessFromIndexSignature: true,
    skipLibCheck: true,
  };
  writeFileSync(join(home, "tsconfig.json"), JSON.stringify({ compilerOptions, include: ["user.ts", "wrong.ts"] }));
  const user = `import { Device, type DeviceBuffer, IpcChannel } from "${name}";
export async function first(path: string): Promise<DeviceBuffer | undefined> {
  using device = Device.open(0);
  await using channel = await IpcChannel.connect(path, { device });
  return Object.values((await channel.receive()).buffers)[0];
}
`;
  writeFileSync(join(home, "user.ts"), user);
  const tsc = join(ROOT, "node_modules", ".bin", "tsc");
  run(tsc, ["-p", home], home);
  // So that a package without types would be seen
  writeFileSync(
    join(home, "wrong.ts"),
    `import { Device } from "${name}";\nexport const wrong: string = Device.open(0).ordinal;\n`,
  );
  const { stdout } = spawnSync(tsc, ["-p", home], { cwd: home, encoding: "utf8", timeout: TIME_LIMIT_MS });
  if (!/^wrong.ts.*TS2322/m.test(stdout)) throw new Error(`the npm tarball's types miss a mistake: ${stdout}`);
  console.log("package: the npm tarball's types hold in a strict project");
}

function smoke(folder: string): void {
  const wanted = exportedValues(readFileSync(join(ROOT, "mod.ts"), "utf8"));
  const npmPackage = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8"));

  const [packed] = JSON.parse(run("npm", ["pack", "--json", "--pack-destination", folder], ROOT));
  const shipped: string[] = packed.files.map((file: { path: string }) => file.path);
  const strange = shipped.filter((path) => /(?:^|\/)(?:tests?|tools|node_modules|bench)\/|_test\.ts$|^\./.test(path));
  if (strange.length > 0) throw new Error(`npm pack ships ${strange.join(", ")}`);

  const bunHome = join(folder, "bun");
  mkdirSync(bunHome);
  writeFileSync(join(bunHome, "package.json"), '{ "name": "empty", "private": true, "type": "module" }\n');
  run("npm", ["install", "--no-audit", "--no-fund", "--ignore-scripts", join(folder, packed.filename)], bunHome);
  writeFileSync(join(bunHome, "probe.ts"), probe(npmPackage.name));
  checkProbe("npm tarball in Bun", run(runtimePath("bun"), ["probe.ts"], bunHome), wanted);
  checkTypes(bunHome, npmPackage.name);

  // The registry of JSR serves these very files; a folder and an import map stand in for it.
  const deno = JSON.parse(withoutComments(readFileSync(join(ROOT, "deno.json"), "utf8")));
  const denoHome = join(folder, "deno");
  for (const path of deno.publish.include) {
    mkdirSync(dirname(join(denoHome, "package", path)), { recursive: true });
    cpSync(join(ROOT, path), join(denoHome, "package", path), { recursive: true });
  }
  writeFileSync(join(denoHome, "deno.json"), JSON.stringify({ imports: { [deno.name]: "./package/mod.ts" } }));
  writeFileSync(join(denoHome, "probe.ts"), probe(deno.name));
  checkProbe(
    "published files in Deno",
    run(runtimePath("deno"), ["run", "--no-prompt", "--no-remote", "--check", "probe.ts"], denoHome),
    wanted,
  );
}

if (import.meta.main) {
  const folder = mkdtempSync(join(tmpdir(), "package-"));
  try {
    smoke(folder);
  } catch (error) {
    console.error(error instanceof Error ? error.message : error);
    process.exitCode = 1;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
