/** Compiling C with this machine's gcc, for the tools and the tests that compare this module with C. */
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";

/** CC names another compiler (a cross compiler, too), CUDA_HOME or CUDA_PATH another toolkit. */
const compiler = process.env.CC || "gcc";
/** A folder that keeps libraries: compiled here (tools/build_test_libraries.ts), they are used where no compiler runs. */
const libraryFolder = process.env.CUDA_IPC_TEST_LIBRARIES;
const toolkits = [process.env.CUDA_HOME, process.env.CUDA_PATH, "/usr/local/cuda"];

const found = new Map<string, boolean>();

/** For a test's options: the reason to skip where there is no compiler, else false. */
export function skipWithoutCompiler(command: string = compiler): string | false {
  let runs = found.get(command);
  if (runs === undefined) found.set(command, runs = spawnSync(command, ["--version"], { timeout: 20_000 }).status === 0);
  return runs ? false : `no C compiler: "${command}" does not run`;
}

/** For a test that only calls a compiled library: the reason to skip where there is none, else false. */
export function skipWithoutLibrary({ cudaHeader = false } = {}): string | false {
  if (libraryFolder) return false;
  return cudaHeader ? skipWithoutCudaHeader() : skipWithoutCompiler();
}

/** The folder that has cuda.h, or undefined. */
export function cudaIncludeFolder(): string | undefined {
  const folders = toolkits.filter((folder) => !!folder).map((folder) => join(folder!, "include"));
  return folders.find((folder) => existsSync(join(folder, "cuda.h")));
}

/** Our declarations are those of CUDA 13; older headers lack some, under other names. */
const OLDEST_VERSION = 13000;

/** For a test's options: the reason to skip where there is no compiler or no cuda.h of our age, else false. */
export function skipWithoutCudaHeader(): string | false {
  const include = cudaIncludeFolder();
  if (include === undefined) return "no cuda.h: neither in CUDA_HOME, CUDA_PATH nor in /usr/local/cuda";
  const version = Number(readFileSync(join(include, "cuda.h"), "utf8").match(/#define CUDA_VERSION (\d+)/)?.[1]);
  if (!(version >= OLDEST_VERSION)) return `${include}/cuda.h is of version ${version}, expected ${OLDEST_VERSION} or newer`;
  return skipWithoutCompiler();
}

/** Where one process's C sources and results lie; removed at its exit. */
let folder: string | undefined;
let files = 0;

function freshPath(suffix: string): string {
  if (folder === undefined) {
    const created = folder = mkdtempSync(join(tmpdir(), "cuda-ipc-c-"));
    process.on("exit", () => rmSync(created, { recursive: true, force: true }));
  }
  return join(folder, `${files++}${suffix}`);
}

/** Runs the compiler over a C source. cuda.h is found where there is one. */
export function runCompiler(
  source: string,
  flags: readonly string[],
  command: string = compiler,
): { ok: boolean; stdout: string; messages: string } {
  const path = freshPath(".c");
  writeFileSync(path, source);
  const include = cudaIncludeFolder();
  const args = [...flags, ...(include === undefined ? [] : ["-isystem", include]), path];
  const result = spawnSync(command, args, { encoding: "utf8", timeout: 60_000, env: { ...process.env, LC_ALL: "C" } });
  return { ok: result.status === 0, stdout: result.stdout ?? "", messages: result.stderr ?? String(result.error) };
}

/** Compiles a shared library and gives its path; throws with the compiler's messages. */
export function compileLibrary(source: string, flags: readonly string[] = []): string {
  const name = createHash("sha256").update(JSON.stringify([source, flags])).digest("hex").slice(0, 16) + ".so";
  const output = libraryFolder ? join(libraryFolder, name) : freshPath(".so");
  if (libraryFolder && existsSync(output)) return output;
  const all = ["-shared", "-fPIC", "-O2", "-std=gnu11", "-Wall", "-Werror", "-o", output, ...flags];
  const { ok, messages } = runCompiler(source, all);
  if (!ok) throw new Error(`Cannot compile the C library:\n${messages}`);
  return output;
}

/** Compiles a program, runs it and gives what it printed; throws with the messages of either. */
export function runProgram(source: string): string {
  const output = freshPath(".exe");
  const { ok, messages } = runCompiler(source, ["-std=gnu11", "-Wall", "-o", output]);
  if (!ok) throw new Error(`Cannot compile the C program:\n${messages}`);
  const result = spawnSync(output, { encoding: "utf8", timeout: 60_000 });
  if (result.status !== 0) throw new Error(`The C program ended with ${result.status ?? result.signal}: ${result.stderr}`);
  return result.stdout;
}
