/** JavaScript runtimes as programs: which one this is, and how to start it or the other one. */
import { existsSync } from "node:fs";
import { delimiter, join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { runtimeName } from "../../ffi/mod.ts";
import { NotSupportedError } from "../errors.ts";

export type Runtime = "deno" | "bun";

const TITLES = { deno: "Deno", bun: "Bun" } as const;
const VARIABLES = { deno: "CUDA_IPC_DENO", bun: "CUDA_IPC_BUN" } as const;
/** Of this module's own repository; npm puts its folder on PATH for a module that it installed. */
const INSTALLED = fileURLToPath(new URL("../../node_modules/.bin/", import.meta.url));

export function currentRuntime(): Runtime {
  return runtimeName();
}

/** As its makers write it. */
export function runtimeTitle(runtime: Runtime): string {
  return TITLES[runtime];
}

/** The version of the runtime that this program runs in. */
export function runtimeVersion(): string {
  return process.versions[runtimeName()] ?? "";
}

/** A program, and the arguments that come first. */
export interface Command {
  readonly program: string;
  readonly args: readonly string[];
}

/**
 * How to run a script in a runtime: by this process's own program, else by the one that CUDA_IPC_DENO or CUDA_IPC_BUN
 * names, or that npm has installed here, or that is on PATH.
 *
 * @throws {NotSupportedError} when there is none.
 */
export function runtimeCommand(runtime: Runtime, script: string | URL): Command {
  const path = script instanceof URL ? fileURLToPath(script) : script;
  const program = runtime === currentRuntime() ? process.execPath : findProgram(runtime);
  return { program, args: runtime === "deno" ? ["run", "-A", path] : [path] };
}

function findProgram(runtime: Runtime): string {
  const variable = VARIABLES[runtime];
  const named = process.env[variable];
  if (named) {
    if (existsSync(named)) return named;
    throw new NotSupportedError(`Cannot start ${TITLES[runtime]}: ${variable} is ${JSON.stringify(named)}, which is not there`);
  }
  const folders = [INSTALLED, ...(process.env.PATH ?? "").split(delimiter).filter((folder) => folder !== "")];
  const found = folders.map((folder) => join(folder, runtime)).find((program) => existsSync(program));
  if (found !== undefined) return found;
  throw new NotSupportedError(
    `Cannot start ${TITLES[runtime]}: it is neither in node_modules nor on PATH. ` +
      `Run npm install, or set ${variable} to its program`,
  );
}
