/**
 * The demo: a file's bytes in device memory, shared between a Deno process and a Bun process, in both directions.
 *
 *   deno run -A src/cli/demo.ts [--file PATH] [--corrupt]
 *
 * @module
 */
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import process from "node:process";
import { clearTimeout, setTimeout } from "node:timers";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { environmentVariable } from "../../ffi/mod.ts";
import { Device } from "../device.ts";
import { type DriverName, openDriver } from "../driver/mod.ts";
import { CudaDriverError, DriverNotFoundError, InvalidArgumentError } from "../errors.ts";
import { type Command, type Runtime, runtimeCommand, runtimeTitle } from "../os/runtime.ts";
import { InputFile } from "./demo/input.ts";
import { deviceText, errorText, formatBytes } from "./demo/report.ts";

const USAGE = `Shares device memory between a Deno process and a Bun process, and the reverse.

  npm run demo
  npm run demo -- --file PATH
  deno run -A src/cli/demo.ts [options]
  bun src/cli/demo.ts [options]

A producer loads a file into a memory pool on the GPU and sends the buffer over a channel to a consumer in the other runtime,
which knows a socket's path and nothing else. The consumer maps the memory, makes its SHA-256, fills a part of it on the GPU
and releases it; the producer checks both. Ends with exit code 0 only when both directions agree.

  --file PATH   the file to share; default: a table of the sun's positions that comes with the demo
  --corrupt     flip a byte in device memory after the file was hashed: the demo must fail
  --help        this text

Without a GPU it runs on the simulator and says so in its first line. CUDA_IPC_DRIVER=cuda or =simulator chooses one;
CUDA_IPC_DENO and CUDA_IPC_BUN name the runtimes where neither npm nor PATH knows them.`;

const SAMPLE = new URL("./demo/sample.csv", import.meta.url);
const PRODUCER = new URL("./demo/producer.ts", import.meta.url);
const CONSUMER = new URL("./demo/consumer.ts", import.meta.url);
const NO_DEVICE = "CUDA_ERROR_NO_DEVICE";
/** A side whose other one has failed ends by itself within two seconds; this is for one that does not. */
const GRACE_MS = 5000;

interface Choice {
  readonly driver: DriverName;
  readonly device: Device;
  /** The first line of the output. */
  readonly notice: string;
}

/** The driver that the user names, else CUDA; only here, and only where there is no GPU, the simulator instead. */
function chooseDriver(): Choice {
  const named = environmentVariable("CUDA_IPC_DRIVER");
  if (named !== undefined) {
    const driver = openDriver();
    const device = Device.list({ driver })[0];
    if (device === undefined) throw new InvalidArgumentError(`Cannot run the demo: the driver "${named}" shows no device`);
    return { driver: named as DriverName, device, notice: `Using ${deviceText(device)}, as CUDA_IPC_DRIVER says` };
  }
  const { device, reason } = findGpu();
  if (device !== undefined) return { driver: "cuda", device, notice: `Using ${deviceText(device)}` };
  const simulated = Device.list({ driver: openDriver("simulator") })[0];
  if (simulated === undefined) throw new InvalidArgumentError("Cannot run the demo: the simulator shows no device");
  return { driver: "simulator", device: simulated, notice: `No GPU here (${reason}): using the simulator instead` };
}

function findGpu(): { device?: Device; reason: string } {
  try {
    return { device: Device.list({ driver: openDriver("cuda") })[0], reason: "the CUDA driver shows no device" };
  } catch (error) {
    if (error instanceof DriverNotFoundError) return { reason: "there is no CUDA driver" };
    if (error instanceof CudaDriverError && error.resultName === NO_DEVICE) return { reason: "the CUDA driver shows no device" };
    throw error;
  }
}

/** Refuses a file that cannot be shared before anything is started. */
async function checkInput(path: string, device: Device): Promise<void> {
  await using input = await InputFile.open(path);
  if (input.byteLength > device.totalMemoryBytes) {
    throw new InvalidArgumentError(
      `Cannot share ${path}: it has ${formatBytes(input.byteLength)}, and ${device.name} has ` +
        `${formatBytes(device.totalMemoryBytes)} of memory. Name a smaller file with --file`,
    );
  }
  console.log(`Sharing ${path}, ${formatBytes(input.byteLength)}`);
}

const running = new Set<ChildProcess>();

/** Starts one side; gives its exit code, or the signal that ended it. */
function start({ program, args }: Command, sideArgs: readonly string[], driver: DriverName): Promise<number | string> {
  return new Promise((resolve, reject) => {
    const child = spawn(program, [...args, ...sideArgs], {
      stdio: ["ignore", "inherit", "inherit"],
      env: { ...process.env, CUDA_IPC_DRIVER: driver },
    });
    running.add(child);
    child.on("error", (error) => reject(new InvalidArgumentError(`Cannot start ${program}: ${error.message}`)));
    child.on("exit", (code, signal) => {
      running.delete(child);
      resolve(code ?? signal ?? "an unknown end");
    });
  });
}

function killRunning(): void {
  for (const child of running) child.kill("SIGKILL");
}

/** One direction: both sides are processes of their own, and the socket is all that they have in common. */
async function share(from: Runtime, to: Runtime, file: string, corrupt: boolean, driver: DriverName): Promise<boolean> {
  const direction = `${runtimeTitle(from)} to ${runtimeTitle(to)}`;
  console.log(`\n${direction}`);
  const producer = runtimeCommand(from, PRODUCER);
  const consumer = runtimeCommand(to, CONSUMER);
  const folder = mkdtempSync(join(tmpdir(), "cuda-ipc-demo-"));
  const removeFolder = () => rmSync(folder, { recursive: true, force: true });
  process.on("exit", removeFolder);
  let timer: ReturnType<typeof setTimeout> | undefined;
  try {
    const socket = join(folder, "socket");
    const sides = [
      start(producer, ["--socket", socket, "--file", file, ...(corrupt ? ["--corrupt"] : [])], driver),
      start(consumer, ["--socket", socket], driver),
    ];
    for (const side of sides) {
      side.then((end) => {
        if (end !== 0) timer ??= setTimeout(killRunning, GRACE_MS);
      }, killRunning);
    }
    const [producerEnd, consumerEnd] = await Promise.all(sides);
    const agreed = producerEnd === 0 && consumerEnd === 0;
    console.log(
      agreed
        ? `${direction}: all agree`
        : `${direction}: FAILED (the producer ended with ${producerEnd}, the consumer with ${consumerEnd})`,
    );
    return agreed;
  } finally {
    clearTimeout(timer);
    process.off("exit", removeFolder);
    removeFolder();
  }
}

function readArguments(): { file: string; corrupt: boolean; help: boolean } {
  const { values } = parseArgs({
    options: {
      file: { type: "string" },
      corrupt: { type: "boolean", default: false },
      help: { type: "boolean", default: false },
    },
  });
  return { ...values, file: values.file ?? relative(process.cwd(), fileURLToPath(SAMPLE)) };
}

async function main(): Promise<number> {
  let options;
  try {
    options = readArguments();
  } catch (error) {
    console.error(`${errorText(error)}\n\n${USAGE}`);
    return 2;
  }
  if (options.help) {
    console.log(USAGE);
    return 0;
  }
  try {
    const { driver, device, notice } = chooseDriver();
    console.log(notice);
    await checkInput(options.file, device);
    const forth = await share("deno", "bun", options.file, options.corrupt, driver);
    const back = await share("bun", "deno", options.file, options.corrupt, driver);
    return forth && back ? 0 : 1;
  } catch (error) {
    console.error(errorText(error));
    return 1;
  }
}

process.on("exit", killRunning);
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) process.on(signal, () => process.exit(1));
process.exit(await main());
