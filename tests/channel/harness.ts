/** Channels between this process and others: starting them, running functions in them, and seeing that nothing is left. */
import { assert } from "@std/assert";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { type Exit, otherRuntime, type Runtime, type RuntimeProcess, spawnRuntime } from "../helpers/runtimes.ts";
import { stopWaiterForTests } from "../../src/os/waiter.ts";
import { isOnGpu, sleep, Toolkit, until } from "./toolkit.ts";
import type { IpcChannel, IpcServer, ListenOptions } from "../../mod.ts";

export { isOnGpu, sleep, until } from "./toolkit.ts";
export type { Toolkit } from "./toolkit.ts";

let ours: Toolkit | undefined;
/** This process's device and stream. */
export function toolkit(): Toolkit {
  if (ours === undefined) {
    ours = new Toolkit();
    const { pool, buffer } = ours.createBuffer(16, 0);
    buffer.readSync({ stream: ours.stream }); // staging memory is kept for good
    buffer.free();
    pool.close();
  }
  return ours;
}

/** Another process. Its functions are sent as text: they see their arguments and nothing else. */
export class Peer {
  readonly child: RuntimeProcess;
  readonly pid: number;

  private constructor(child: RuntimeProcess, pid: number) {
    this.child = child;
    this.pid = pid;
  }

  static async start(
    runtime: Runtime = otherRuntime,
    options: { env?: Record<string, string>; wrapper?: string } = {},
  ): Promise<Peer> {
    const child = spawnRuntime(runtime, new URL("peer_program.ts", import.meta.url), [], { timeoutMs: 60_000, ...options });
    const line = await child.nextLine();
    if (line === null) throw new Error(`the peer did not start: ${(await child.exited).stderr}`);
    return new Peer(child, JSON.parse(line).value);
  }

  /** Runs a function there. Arguments and result travel as JSON. */
  async run<A extends unknown[], R>(body: (t: Toolkit, ...args: A) => R | Promise<R>, ...args: A): Promise<R> {
    this.child.write(JSON.stringify({ source: body.toString(), args }) + "\n");
    const line = await this.child.nextLine();
    if (line === null) {
      const { signal, code, stderr } = await this.child.exited;
      throw new Error(`the peer ended by ${signal ?? `exit code ${code}`}: ${stderr}`);
    }
    const { value, error } = JSON.parse(line);
    if (error !== undefined) {
      throw Object.assign(new Error(`in the peer: ${error.message}\n${error.stack}`), { name: error.name });
    }
    return value;
  }

  /** Deno's ChildProcess.kill does nothing after its first call, so that the system is asked itself. */
  signal(name: "SIGKILL" | "SIGSTOP" | "SIGCONT"): void {
    process.kill(this.pid, name);
  }

  /** Kills it and waits until it has exited. */
  async kill(): Promise<Exit> {
    this.signal("SIGKILL");
    return await this.child.exited;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.child[Symbol.asyncDispose]();
  }
}

/** A folder for sockets. */
export function makeFolder(): { path: string } & Disposable {
  const path = mkdtempSync(join(tmpdir(), "cuda-ipc-channel-"));
  return { path, [Symbol.dispose]: () => rmSync(path, { recursive: true, force: true }) };
}

/** A server of ours, and a peer's process that is connected to it as `t.kept.channel`. */
export class Pair {
  readonly server: IpcServer;
  readonly channel: IpcChannel;
  readonly peer: Peer;
  readonly #folder: Disposable;

  private constructor(server: IpcServer, channel: IpcChannel, peer: Peer, folder: Disposable) {
    this.server = server;
    this.channel = channel;
    this.peer = peer;
    this.#folder = folder;
  }

  static async start(runtime?: Runtime, options: ListenOptions = { device: toolkit().device }): Promise<Pair> {
    const folder = makeFolder();
    const peer = await Peer.start(runtime);
    const server = toolkit().cuda.IpcServer.listen(`${folder.path}/socket`, options);
    const [channel] = await Promise.all([
      server.accept(),
      peer.run(async (t, path) => {
        t.kept.channel = await t.connect(path);
      }, server.path),
    ]);
    return new Pair(server, channel!, peer, folder);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.channel.close({ force: true });
    this.server.close();
    await this.peer[Symbol.asyncDispose]();
    this.#folder[Symbol.dispose]();
  }
}

/** What must be the same at the end as at the start. */
export class Balance {
  readonly #fds: number;
  readonly #live: Record<string, number> | undefined;

  private constructor(fds: number, live: Record<string, number> | undefined) {
    this.#fds = fds;
    this.#live = live;
  }

  static async take(): Promise<Balance> {
    const t = toolkit();
    await stopWaiter();
    // The runtime closes the pipes of an earlier child some time after its exit
    for (let last = -1; last !== countFds(t); await sleep(20)) last = countFds(t);
    return new Balance(countFds(t), t.device.isSimulated ? liveObjects(t) : undefined);
  }

  /** Waits for what ends by itself, then compares. */
  async check(): Promise<void> {
    const t = toolkit();
    await until("descriptors and memory come back", async () => {
      await stopWaiter();
      return countFds(t) <= this.#fds && (this.#live === undefined || atMost(liveObjects(t), this.#live));
    }, 5000).catch(() => {});
    assert(countFds(t) <= this.#fds, `${countFds(t) - this.#fds} file descriptors were leaked: ${t.fds().join(" ")}`);
    if (this.#live === undefined) return;
    // What other test files of this process have left may go meanwhile
    const live = liveObjects(t);
    for (const name in live) assert(live[name] <= this.#live[name], `${name}: ${live[name]}, before ${this.#live[name]}`);
  }
}

/** Its thread does not keep the process alive. */
async function stopWaiter(): Promise<void> {
  const alive = setInterval(() => {}, 1000);
  await stopWaiterForTests();
  clearInterval(alive);
}

/** The driver keeps a descriptor for each pool that was imported, for as long as the process runs. */
function countFds(t: Toolkit): number {
  return t.fds().filter((target) => !isOnGpu || !target.startsWith("/dev/nvidiactl")).length;
}

/** Events are kept for later use, and imported pools cannot be given back. */
function liveObjects(t: Toolkit): Record<string, number> {
  const { events: _events, importedPools: _pools, ...rest } = t.report().liveObjects;
  return rest;
}

function atMost(a: Record<string, number>, b: Record<string, number>): boolean {
  return Object.keys(a).every((name) => a[name] <= b[name]);
}
