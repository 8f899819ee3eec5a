/** Starts `peer_program.ts` in either runtime and talks to it. */
import { spawn } from "node:child_process";
import { mkdtempSync, readdirSync, readlinkSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { assertEquals, assertLessOrEqual } from "@std/assert";
import type { AllocationHandle, BufferDescriptor } from "../../mod.ts";
import { closeFd } from "../../src/os/fd.ts";
import { Listener } from "../../src/os/socket.ts";
import { receiveMessage, sendMessage, until } from "../core/messages.ts";
import { currentRuntime, type Runtime, runtimePath, type SpawnOptions, spawnRuntime } from "../helpers/runtimes.ts";

/** Whether the tests run on the real driver. */
export const onGpu: boolean = (process.env.CUDA_IPC_DRIVER ?? "cuda") === "cuda";

/** For a test's options: what only the simulator can show. */
export const skipOnGpu: string | false = onGpu ? "needs a simulated machine" : false;

const PROGRAM = new URL("./peer_program.ts", import.meta.url);

/** What the peer answered with in place of a result. */
export class PeerError extends Error {
  readonly errorName: string;
  constructor({ name, text }: { name: string; text: string }) {
    super(`${name}: ${text}`);
    this.errorName = name;
  }
}

export interface Peer extends AsyncDisposable {
  readonly pid: number;
  // deno-lint-ignore no-explicit-any
  ask(message: { do: string; [field: string]: unknown }, fds?: readonly number[]): Promise<any>;
  /** Sends the handles and closes them. */
  open(name: string, descriptor: BufferDescriptor, handles?: readonly AllocationHandle[], pool?: string): Promise<unknown>;
  /** Tells it to end, and checks that it did without a complaint. */
  end(): Promise<void>;
}

export async function startPeer(
  runtime: Runtime,
  env: Readonly<Record<string, string | undefined>> = {},
  { timeoutMs = 50_000, flags }: Pick<SpawnOptions, "timeoutMs" | "flags"> = {},
): Promise<Peer> {
  const folder = mkdtempSync(`${tmpdir()}/cuda-ipc-`);
  const listener = Listener.open(`${folder}/socket`);
  const child = spawnRuntime(runtime, PROGRAM, [listener.path], { env, timeoutMs, flags });
  let ended = false;
  void child.exited.then(() => ended = true);
  const orEnd = async <T>(what: Promise<T>): Promise<T> => {
    const first = await Promise.race([what, child.exited.then((exit) => ({ exit }))]);
    if (typeof first === "object" && first !== null && "exit" in first) {
      throw new Error(`The peer has ended: ${JSON.stringify(first.exit)}`);
    }
    return first as T;
  };
  const socket = await orEnd(until(() => ended ? -1 : listener.accept()));
  listener.close();
  rmSync(folder, { recursive: true });
  let isOpen = true;
  const peer: Peer = {
    pid: child.pid,
    async ask(message, fds = []) {
      sendMessage(socket, message, fds);
      const { message: answer } = await orEnd(receiveMessage(socket));
      if (answer.error !== undefined) throw new PeerError(answer.error);
      return answer.answer;
    },
    async open(name, descriptor, handles = [], pool) {
      try {
        return await peer.ask({ do: "open", name, descriptor, pool }, handles.map(({ fd }) => fd));
      } finally {
        for (const handle of handles) handle.close();
      }
    },
    async end() {
      sendMessage(socket, { do: "end" });
      const exit = await child.exited;
      assertEquals([exit.code, exit.signal, exit.timedOut, exit.stderr], [0, null, false, ""]);
    },
    async [Symbol.asyncDispose]() {
      if (isOpen) closeFd(socket);
      isOpen = false;
      await child[Symbol.asyncDispose]();
    },
  };
  return peer;
}

/** The runtime's own: event loops and threads come and go, and the pipes of a child close some time after its exit. */
const OF_THE_RUNTIME = /^(pipe|anon_inode):/;

/** Descriptors of the driver, of shared memory, and of ours. */
export function countFds(): number {
  return readdirSync("/proc/self/fd").filter((fd) => {
    try {
      return !OF_THE_RUNTIME.test(readlinkSync(`/proc/self/fd/${fd}`));
    } catch {
      return false; // that of the listing itself
    }
  }).length;
}

/** The runtime closes the pipes of a child some time after its exit. */
export async function assertNoFdLeft(before: number): Promise<void> {
  for (let i = 0; i < 300 && countFds() > before; i++) await new Promise((resolve) => setTimeout(resolve, 10));
  assertLessOrEqual(countFds(), before, "file descriptors were leaked");
}

/** Runs a test file again in this runtime, with another environment: on another simulated machine. */
export async function runTestFile(file: URL, env: Readonly<Record<string, string>>): Promise<{ code: number; output: string }> {
  const flags = currentRuntime === "deno" ? "test -A --no-check" : "test --timeout 60000";
  const child = spawn("/bin/sh", ["-c", `exec "$RUNTIME_UNDER_TEST" ${flags} "$1"`, "sh", fileURLToPath(file)], {
    env: { ...process.env, NO_COLOR: "1", RUNTIME_UNDER_TEST: runtimePath(currentRuntime), ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  const timer = setTimeout(() => child.kill("SIGKILL"), 55_000);
  let output = "";
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding("utf8").on("data", (text: string) => output += text);
  const code = await new Promise<number>((resolve) => child.on("close", (exit) => resolve(exit ?? -1)));
  clearTimeout(timer);
  return { code, output };
}
