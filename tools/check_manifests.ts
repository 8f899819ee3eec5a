/**
 * Holds deno.json and package.json together: one name, version and license, the same exports, the same files.
 *
 *   deno run -R tools/check_manifests.ts
 *
 * @module
 */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { withoutComments } from "./source.ts";

interface DenoManifest {
  readonly name: string;
  readonly version: string;
  readonly license: string;
  readonly exports: string | Readonly<Record<string, string>>;
  readonly publish: { readonly include: readonly string[] };
}

interface NpmManifest {
  readonly name: string;
  readonly version: string;
  readonly license: string;
  readonly exports: Readonly<Record<string, string | Readonly<Record<string, string>>>>;
  readonly files: readonly string[];
  readonly dependencies?: Readonly<Record<string, string>>;
  readonly devDependencies: Readonly<Record<string, string>>;
}

interface Lock {
  readonly version: string;
  readonly packages: Readonly<Record<string, { readonly version?: string; readonly resolved?: string }>>;
}

/** npm ships these whatever "files" says. */
const ALWAYS_IN_NPM = ["README.md", "LICENSE"];
/** Declarations, which `npm pack` makes for npm alone. */
const ONLY_IN_NPM = "types";

/** Every difference between the manifests in `root`. */
export function checkManifests(root: string): string[] {
  const read = <T>(file: string): T => JSON.parse(withoutComments(readFileSync(join(root, file), "utf8")));
  const deno = read<DenoManifest>("deno.json");
  const npm = read<NpmManifest>("package.json");
  const lock = read<Lock>("package-lock.json");
  const found: string[] = [];
  const same = (what: string, inDeno: unknown, inNpm: unknown) => {
    const [a, b] = [JSON.stringify(inDeno), JSON.stringify(inNpm)];
    if (a !== b) found.push(`${what}: deno.json says ${a}, package.json says ${b}`);
  };

  same("name", deno.name, `@${npm.name}/${npm.name}`);
  same("version", deno.version, npm.version);
  same("license", deno.license, npm.license);
  same(
    "files",
    [...deno.publish.include].sort(),
    [
      ...new Set([...npm.files.filter((file) => file !== ONLY_IN_NPM), ...ALWAYS_IN_NPM]),
    ].sort(),
  );

  const denoExports = typeof deno.exports === "string" ? { ".": deno.exports } : deno.exports;
  const npmExports = Object.entries(npm.exports).filter(([name]) => name !== "./package.json");
  same("exported names", Object.keys(denoExports).sort(), npmExports.map(([name]) => name).sort());
  for (const [name, target] of npmExports) {
    const { types = undefined, ...targets } = typeof target === "string" ? { default: target } : target;
    for (const each of new Set(Object.values(targets))) same(`export ${name}`, denoExports[name], each);
    const source = types?.replace(`./${ONLY_IN_NPM}/`, "./").replace(/\.d\.ts$/, ".ts");
    same(`export ${name}, types`, denoExports[name], source);
  }

  for (const file of deno.publish.include) {
    if (!existsSync(join(root, file))) found.push(`${file} is to be published and is not there`);
  }
  for (const [name, range] of Object.entries(npm.devDependencies)) {
    if (!/^\d+\.\d+\.\d+$/.test(range)) found.push(`devDependencies: ${name} is ${range}, expected an exact version`);
    const locked = lock.packages[`node_modules/${name}`]?.version;
    if (locked !== range) found.push(`devDependencies: ${name} is ${range}, package-lock.json has ${locked}`);
  }
  if (Object.keys(npm.dependencies ?? {}).length > 0) found.push("dependencies: this module has none at run time");
  if (lock.version !== npm.version) found.push(`version: package-lock.json says ${lock.version}, package.json ${npm.version}`);
  for (const [name, { resolved }] of Object.entries(lock.packages)) {
    if (resolved !== undefined) {
      found.push(`package-lock.json: ${name} names a registry's host; .npmrc says that none is written`);
    }
  }
  const changes = existsSync(join(root, "CHANGELOG.md")) ? readFileSync(join(root, "CHANGELOG.md"), "utf8") : "";
  if (!changes.includes(`## ${npm.version}`)) found.push(`CHANGELOG.md has no section "## ${npm.version}"`);
  return found;
}

if (import.meta.main) {
  const found = checkManifests(fileURLToPath(new URL("..", import.meta.url)));
  for (const line of found) console.error(line);
  console.log(found.length === 0 ? "manifests: they agree" : `manifests: ${found.length} differences`);
  process.exitCode = found.length === 0 ? 0 : 1;
}
