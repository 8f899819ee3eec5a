/** What test_windows.ts and test_arm64.ts have in common: installing into a cache folder, and running tests there. */
import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import type { Runtime } from "../tests/helpers/runtimes.ts";
import { readBunClosing, readDenoClosing } from "./test.ts";

export const ROOT: string = fileURLToPath(new URL("..", import.meta.url));

/** A folder outside the repository that is kept from run to run. */
export function cacheFolder(name: string): string {
  const folder = join(process.env.XDG_CACHE_HOME || join(homedir(), ".cache"), name);
  mkdirSync(folder, { recursive: true });
  return folder;
}

/** Runs a program to its end; throws with its output when it fails. */
export function run(
  command: string,
  args: readonly string[],
  { env = {}, timeoutMs = 600_000, cwd = ROOT }: { env?: Record<string, string>; timeoutMs?: number; cwd?: string } = {},
): string {
  const result = spawnSync(command, args, { cwd, env: { ...process.env, ...env }, encoding: "utf8", timeout: timeoutMs });
  if (result.status === 0) return result.stdout;
  const reason = result.error?.message ?? `it ended with ${result.status ?? result.signal}`;
  throw new Error(`Cannot run ${command} ${args.join(" ")}: ${reason}\n${result.stdout ?? ""}${result.stderr ?? ""}`);
}

/** Installs Debian packages for the programs that are not there. */
export function needPrograms(packages: Readonly<Record<string, string>>): void {
  const isThere = (program: string) => spawnSync("sh", ["-c", `command -v ${program}`]).status === 0;
  const missing = Object.keys(packages).filter((program) => !isThere(program));
  if (missing.length === 0) return;
  const names = [...new Set(missing.map((program) => packages[program]))].flatMap((list) => list.split(" "));
  console.log(`Installing ${names.join(", ")}`);
  if (!isThere("apt-get") || process.getuid?.() !== 0) {
    throw new Error(`Cannot run: ${missing.join(" and ")} is not there. As root on Debian: apt-get install ${names.join(" ")}`);
  }
  run("apt-get", ["update"]);
  run("apt-get", ["install", "-y", "--no-install-recommends", ...names], { env: { DEBIAN_FRONTEND: "noninteractive" } });
}

/** Fetches a runtime's npm package, of the version that this repository uses, and gives the folder where it lies. */
export function installRuntime(runtime: Runtime, name: string, parent: string): string {
  const version = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8")).devDependencies[runtime];
  const folder = join(parent, `${runtime}-${version}`);
  if (existsSync(folder)) return folder;
  console.log(`Installing ${name} ${version}`);
  mkdirSync(parent, { recursive: true });
  const part = mkdtempSync(join(parent, "part-"));
  try {
    run("npm", ["pack", "--silent", "--pack-destination", part, `${name}@${version}`]);
    const [archive] = readdirSync(part);
    run("tar", ["xzf", join(part, archive), "-C", part]);
    renameSync(join(part, "package"), folder);
  } finally {
    rmSync(part, { recursive: true, force: true });
  }
  return folder;
}

/** Compiles the C libraries of the tests with another compiler; they lie in `folder`. */
export function buildLibraries(compiler: string, folder: string, ...flags: string[]): void {
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  run(process.execPath, ["run", "-A", "tools/build_test_libraries.ts", ...flags], {
    env: { CC: compiler, CUDA_IPC_TEST_LIBRARIES: folder },
  });
}

const TIME_LIMIT_MS = 900_000;
const running = new Set<ChildProcess>();
for (const signal of ["SIGINT", "SIGTERM"] as const) {
  process.on(signal, () => {
    for (const child of running) child.kill("SIGKILL");
    process.exit(1);
  });
}

/** Runs test files with a runner's command and gives what is wrong (null for nothing) and its closing line. */
export function runTests(
  runtime: Runtime,
  command: readonly string[],
  files: readonly string[],
  env?: NodeJS.ProcessEnv,
): Promise<{ runtime: Runtime; closing: string; trouble: string | null }> {
  const args = runtime === "deno"
    ? ["test", "-A", "--no-check", ...files]
    : ["test", "--timeout", "240000", ...files.map((file) => `./${file}`)];
  console.log(`\n==== ${runtime} test: ${files.join(" ")}\n`);
  return new Promise((resolve) => {
    const child = spawn(command[0], [...command.slice(1), ...args], { cwd: ROOT, env, stdio: ["ignore", "pipe", "pipe"] });
    running.add(child);
    let output = "";
    let trouble: string | null = null;
    const timer = setTimeout(() => {
      trouble = `did not end within ${TIME_LIMIT_MS / 1000} s and was killed`;
      child.kill("SIGKILL");
    }, TIME_LIMIT_MS);
    for (const stream of [child.stdout, child.stderr]) {
      stream!.setEncoding("utf8").on("data", (text: string) => {
        output += text;
        process.stdout.write(text);
      });
    }
    child.on("error", (error) => trouble ??= error.message);
    child.on("close", (code) => {
      clearTimeout(timer);
      running.delete(child);
      const read = runtime === "deno" ? readDenoClosing(output) : readBunClosing(output);
      if (code !== 0) trouble ??= `ended with ${code}`;
      else if (read === null || read.counts.passed === 0) trouble ??= "ran no test";
      resolve({ runtime, closing: read?.closing ?? "", trouble });
    });
  });
}

/** Ends a tool: both runners' closing lines, what the run proves, and the exit code. */
export function report(outcomes: readonly Awaited<ReturnType<typeof runTests>>[], proves: string): void {
  console.log("");
  for (const { runtime, closing } of outcomes) console.log(`==== ${runtime} test\n${closing}`);
  for (const { runtime, trouble } of outcomes) if (trouble !== null) console.log(`==== ${runtime} test ${trouble}`);
  console.log(`\n${proves}`);
  process.exitCode = outcomes.every(({ trouble }) => trouble === null) ? 0 : 1;
}
