/** Starts this example's other processes, in the same runtime. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";

/** A path for a socket, in a folder of its own that goes with this process. */
export function socketPath(): string {
  const folder = mkdtempSync(join(tmpdir(), "cuda-ipc-example-"));
  process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
  return join(folder, "socket");
}

/** Runs a script with arguments; resolves when it has ended well. */
export async function start(script: string, ...args: string[]): Promise<void> {
  const flags = process.versions.bun === undefined ? ["run", "-A"] : [];
  const child = spawn(process.execPath, [...flags, fileURLToPath(script), ...args], { stdio: "inherit" });
  const [code, signal] = await once(child, "exit");
  if (code !== 0) throw new Error(`${args.join(" ")} ended with ${signal ?? code}`);
}
