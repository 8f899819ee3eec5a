/**
 * Runs the test suite under Deno and then under Bun, and ends with both runners' own closing lines and a count for each.
 *
 *   deno run -A tools/test.ts [--gpu] [--runtime deno|bun] [part of a test file's path …]
 *
 * Without `--gpu` every test runs on the simulator; with it, the suites that need a device run on the real driver.
 *
 * @module
 */
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { currentRuntime, type Runtime, runtimePath } from "../tests/helpers/runtimes.ts";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const TIME_LIMIT_MS = Number(process.env.CUDA_IPC_TEST_TIME_LIMIT_MS ?? 280_000);
const GPU_ONLY = "tests/gpu/";
const ON_GPU = [GPU_ONLY, "tests/channel/", "tests/examples/", "tests/memory/", "tests/parity/", "tests/share/"];

/** What a runner counted; null where it ended without its closing line. */
export interface Counts {
  readonly passed: number;
  readonly failed: number;
  readonly skipped: number;
}

interface Outcome {
  readonly runtime: Runtime;
  readonly closing: string;
  readonly counts: Counts | null;
  readonly trouble: string | null;
}

/** The last `ok | 3 passed | 0 failed | 1 ignored (5ms)` of `deno test`. */
export function readDenoClosing(output: string): { closing: string; counts: Counts } | null {
  const closing = output.match(/^(?:ok|FAILED) \| .*$/gm)?.at(-1);
  if (closing === undefined) return null;
  const count = (word: string) => Number(closing.match(new RegExp(`(\\d+) ${word}\\b`))?.[1] ?? 0);
  return { closing, counts: { passed: count("passed"), failed: count("failed"), skipped: count("ignored") } };
}

/** The last block ` 3 pass … Ran 4 tests across 2 files.` of `bun test`. */
export function readBunClosing(output: string): { closing: string; counts: Counts } | null {
  const closing = output.match(/(?:^ *\d+ [a-z() ]+\n)+^Ran \d+ tests? across .*$/gm)?.at(-1);
  if (closing === undefined) return null;
  const count = (word: string) => Number(closing.match(new RegExp(`^ *(\\d+) ${word}s?$`, "m"))?.[1] ?? 0);
  return {
    closing,
    counts: { passed: count("pass"), failed: count("fail"), skipped: count("skip") },
  };
}

function findTests(gpu: boolean, filters: readonly string[]): string[] {
  return readdirSync(`${ROOT}tests`, { recursive: true, encoding: "utf8" })
    .map((path) => `tests/${path.replaceAll("\\", "/")}`)
    .filter((path) => path.endsWith("_test.ts"))
    .filter((path) => gpu ? ON_GPU.some((folder) => path.startsWith(folder)) : !path.startsWith(GPU_ONLY))
    .filter((path) => filters.length === 0 || filters.some((filter) => path.includes(filter.replace(/^\.\//, ""))))
    .sort();
}

const running = new Set<ChildProcess>();

/** A runner and all that its tests started form one process group, so that none of them outlives the time limit. */
function killGroup(child: ChildProcess): void {
  try {
    process.kill(-child.pid!, "SIGKILL");
  } catch {
    child.kill("SIGKILL"); // Windows has no process groups
  }
}

function run(runtime: Runtime, files: readonly string[], driver: string): Promise<Outcome> {
  // Types are the business of the check script, and machines with a GPU have no node_modules for them.
  const args = runtime === "deno"
    ? ["test", "-A", "--no-check", ...files]
    : ["test", "--isolate", "--timeout", "60000", ...files.map((file) => `./${file}`)];
  const env: NodeJS.ProcessEnv = { ...process.env, CUDA_IPC_DRIVER: driver, NO_COLOR: "1" };
  delete env.FORCE_COLOR;
  env.CUDA_IPC_SIM_MACHINE ??= `test${process.pid}`; // no other run on this machine counts as a user of our devices
  env[currentRuntime === "deno" ? "CUDA_IPC_TEST_DENO" : "CUDA_IPC_TEST_BUN"] ??= process.execPath;
  console.log(`\n==== ${runtime} ${args[0]}: ${files.length} files, driver ${driver}\n`);
  return new Promise((resolve) => {
    const child = spawn(runtimePath(runtime), args, { cwd: ROOT, env, stdio: ["ignore", "pipe", "pipe"], detached: true });
    running.add(child);
    let output = "";
    let trouble: string | null = null;
    const timer = setTimeout(() => {
      trouble = `did not end within ${TIME_LIMIT_MS / 1000} s and was killed`;
      killGroup(child);
    }, TIME_LIMIT_MS);
    for (const stream of [child.stdout, child.stderr]) {
      stream!.setEncoding("utf8").on("data", (text: string) => {
        output += text;
        process.stdout.write(text); // Bun reports on stderr: one stream keeps the order
      });
    }
    child.on("error", (error) => trouble ??= error.message);
    child.on("close", (code, signal) => {
      clearTimeout(timer);
      running.delete(child);
      const read = runtime === "deno" ? readDenoClosing(output) : readBunClosing(output);
      if (code !== 0) trouble ??= signal === null ? `exited with ${code}` : `was ended by ${signal}`;
      else if (read === null) trouble ??= "printed no closing line";
      else if (read.counts.failed > 0) trouble ??= "reported failures";
      else if (read.counts.passed === 0) trouble ??= "ran no test";
      resolve({ runtime, closing: read?.closing ?? "", counts: read?.counts ?? null, trouble });
    });
  });
}

function countLine({ runtime, counts, trouble }: Outcome): string {
  const { passed, failed, skipped } = counts ?? { passed: 0, failed: 0, skipped: 0 };
  // A runner that died or never ended has failed once at least, whatever it counted.
  return `${runtime}: ${passed} passed, ${Math.max(failed, trouble === null ? 0 : 1)} failed, ${skipped} skipped`;
}

async function main(args: string[]): Promise<number> {
  let gpu = false;
  let runtimes: readonly Runtime[] = ["deno", "bun"];
  const filters: string[] = [];
  for (let i = 0; i < args.length; i++) {
    if (args[i] === "--gpu") gpu = true;
    else if (args[i] === "--runtime") {
      const name = args[++i];
      if (name !== "deno" && name !== "bun") {
        console.error(`Cannot run the tests: --runtime is ${JSON.stringify(name)}, expected "deno" or "bun"`);
        return 2;
      }
      runtimes = [name];
    } else if (args[i].startsWith("-")) {
      console.error(`Cannot run the tests: unknown option ${args[i]}; known are --gpu and --runtime`);
      return 2;
    } else filters.push(args[i]);
  }
  const files = findTests(gpu, filters);
  if (files.length === 0) {
    console.error(`Cannot run the tests: no test file matches ${filters.join(" ") || "tests/**/*_test.ts"}`);
    return 1;
  }
  const missing = runtimes.filter((runtime) => !existsSync(runtimePath(runtime)));
  if (missing.length > 0) {
    console.error(
      `Cannot run the tests: ${missing.map(runtimePath).join(" and ")} is not there. ` +
        "Run npm install, or set CUDA_IPC_TEST_DENO or CUDA_IPC_TEST_BUN to its path, or name the other with --runtime",
    );
    return 1;
  }
  const outcomes: Outcome[] = [];
  for (const runtime of runtimes) outcomes.push(await run(runtime, files, gpu ? "cuda" : "simulator"));
  console.log("");
  for (const { runtime, closing } of outcomes) if (closing !== "") console.log(`==== ${runtime} test\n${closing}`);
  for (const { runtime, trouble } of outcomes) if (trouble !== null) console.log(`==== ${runtime} test ${trouble}`);
  console.log("");
  for (const outcome of outcomes) console.log(countLine(outcome));
  return outcomes.every((outcome) => outcome.trouble === null) ? 0 : 1;
}

if (import.meta.main) {
  for (const signal of ["SIGINT", "SIGTERM"] as const) {
    process.on(signal, () => {
      running.forEach(killGroup);
      process.exit(1);
    });
  }
  process.exitCode = await main(process.argv.slice(2));
}
