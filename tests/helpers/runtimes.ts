/** Starting programs in Deno and in Bun from a test of either, with a time limit that always kills. */
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import process from "node:process";
import { fileURLToPath } from "node:url";

export type Runtime = "deno" | "bun";

export const currentRuntime: Runtime = process.versions.bun === undefined ? "deno" : "bun";
export const otherRuntime: Runtime = currentRuntime === "deno" ? "bun" : "deno";

/** The path of a runtime; CUDA_IPC_TEST_DENO and CUDA_IPC_TEST_BUN name it on machines without node_modules. */
export function runtimePath(runtime: Runtime): string {
  const override = process.env[runtime === "deno" ? "CUDA_IPC_TEST_DENO" : "CUDA_IPC_TEST_BUN"];
  if (override) return override;
  if (runtime === currentRuntime) return process.execPath;
  return fileURLToPath(new URL(`../../node_modules/.bin/${runtime}`, import.meta.url));
}

/** For a test's options: the reason to skip when the runtime is not installed here, else false. */
export function skipWithout(runtime: Runtime): string | false {
  return existsSync(runtimePath(runtime)) ? false : `${runtime} is not installed at ${runtimePath(runtime)}`;
}

/** For a test's options: the reason to skip where qemu-user does otherwise than Linux (tools/test_arm64.ts), else false. */
export function skipUnderQemu(reason: string): string | false {
  return process.env.CUDA_IPC_TEST_EMULATED === "qemu" ? reason : false;
}

export interface SpawnOptions {
  /** After this time the process is killed and `timedOut` is true. */
  readonly timeoutMs?: number;
  /** Flags of the runtime itself, in place of Deno's `-A`. */
  readonly flags?: readonly string[];
  /** Added to this process's environment; undefined takes a variable away. */
  readonly env?: Readonly<Record<string, string | undefined>>;
  readonly cwd?: string;
  /** What starts the runtime, in the words of a shell, such as `unshare --mount`. */
  readonly wrapper?: string;
}

export interface Exit {
  /** Null when a signal ended the process. */
  readonly code: number | null;
  readonly signal: string | null;
  readonly stdout: string;
  readonly stderr: string;
  readonly timedOut: boolean;
}

export interface RuntimeProcess {
  readonly child: ChildProcess;
  readonly pid: number;
  /** Settles when the process has exited and its output was read to the end; never rejects for an exit code. */
  readonly exited: Promise<Exit>;
  /** The next line of its standard output, without the newline; null at the end of the output. */
  nextLine(): Promise<string | null>;
  /** Writes to its standard input. */
  write(text: string): void;
  kill(signal?: "SIGKILL" | "SIGTERM" | "SIGSTOP" | "SIGCONT" | "SIGINT"): void;
  /** Kills it if it still runs, so that `await using` leaves no process behind. */
  [Symbol.asyncDispose](): Promise<void>;
}

const DEFAULT_TIMEOUT_MS = 30_000;
const running = new Set<ChildProcess>();
process.on("exit", () => running.forEach((child) => child.kill("SIGKILL")));

/** Starts `file` (a path or a file: URL) in a runtime. */
export function spawnRuntime(
  runtime: Runtime,
  file: string | URL,
  args: readonly string[] = [],
  options: SpawnOptions = {},
): RuntimeProcess {
  const path = file instanceof URL ? fileURLToPath(file) : file;
  const flags = runtime === "deno" ? ["run", ...(options.flags ?? ["-A"])] : [...(options.flags ?? [])];
  const env: Record<string, string> = {};
  for (const [name, value] of Object.entries({ ...process.env, NO_COLOR: "1", ...options.env })) {
    if (value !== undefined) env[name] = value;
  }
  // Deno's node:child_process adds -A wherever its own executable stands among the arguments, so it stands in a variable
  env.RUNTIME_UNDER_TEST = runtimePath(runtime);
  const [program, ...first] = process.platform === "win32"
    ? [runtimePath(runtime)]
    : ["/bin/sh", "-c", `exec ${options.wrapper ?? ""} "$RUNTIME_UNDER_TEST" "$@"`, "sh"];
  const child = spawn(program, [...first, ...flags, path, ...args], {
    cwd: options.cwd,
    env,
    stdio: ["pipe", "pipe", "pipe"],
  });
  running.add(child);

  let timedOut = false;
  const timer = setTimeout(() => {
    timedOut = true;
    child.kill("SIGKILL");
  }, options.timeoutMs ?? DEFAULT_TIMEOUT_MS);

  let stdout = "";
  let stderr = "";
  let readTo = 0; // how much of stdout nextLine has handed out
  let ended = false;
  let wake = () => {};
  child.stdout!.setEncoding("utf8").on("data", (text: string) => {
    stdout += text;
    wake();
  });
  child.stderr!.setEncoding("utf8").on("data", (text: string) => stderr += text);
  child.stdin!.on("error", () => {}); // the process may be gone before it has read all

  const exited = new Promise<Exit>((resolve, reject) => {
    const end = () => {
      clearTimeout(timer);
      running.delete(child);
      ended = true;
      wake();
    };
    child.on("error", (error) => {
      end();
      reject(error);
    });
    child.on("close", (code, signal) => {
      end();
      resolve({ code, signal, stdout, stderr, timedOut });
    });
  });
  exited.catch(() => {}); // an unused rejection must not end the test run: whoever awaits sees it

  return {
    child,
    pid: child.pid ?? -1,
    exited,
    async nextLine() {
      for (;;) {
        const end = stdout.indexOf("\n", readTo);
        if (end >= 0 || (ended && readTo < stdout.length)) {
          const line = stdout.slice(readTo, end >= 0 ? end : undefined);
          readTo = end >= 0 ? end + 1 : stdout.length;
          return line;
        }
        if (ended) return null;
        await new Promise<void>((resolve) => wake = resolve);
      }
    },
    write: (text) => void child.stdin!.write(text),
    kill: (signal = "SIGKILL") => void child.kill(signal),
    async [Symbol.asyncDispose]() {
      if (!ended) child.kill("SIGKILL");
      await exited.catch(() => {});
    },
  };
}

/** Starts `file` and waits for its end. */
export function runRuntime(
  runtime: Runtime,
  file: string | URL,
  args: readonly string[] = [],
  options: SpawnOptions = {},
): Promise<Exit> {
  const started = spawnRuntime(runtime, file, args, options);
  started.child.stdin!.end();
  return started.exited;
}
