/** Starting another process with a driver, in either runtime. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { discardFds } from "../../src/os/fd.ts";
import { Listener, sendBytes } from "../../src/os/socket.ts";
import { waitReadable } from "../../src/os/waiter.ts";
import { type Exit, type Runtime, type RuntimeProcess, spawnRuntime } from "../helpers/runtimes.ts";
import { local } from "./local.ts";
import { type Answer, type Command, Session } from "./session.ts";

const PROGRAM = new URL("./peer_program.ts", import.meta.url);

export class Peer extends Session {
  readonly process: RuntimeProcess;
  readonly #socket: number;
  #last: Promise<unknown> = Promise.resolve();

  private constructor(process: RuntimeProcess, socket: number) {
    super();
    this.process = process;
    this.#socket = socket;
  }

  static async start(
    runtime: Runtime,
    env: Record<string, string | undefined> = {},
    timeoutMs?: number,
  ): Promise<Peer> {
    const directory = mkdtempSync(join(tmpdir(), "cuda-ipc-sim-"));
    const path = join(directory, "s");
    const listener = Listener.open(path);
    try {
      const flags = runtime === "deno" ? ["--allow-ffi"] : [];
      const process = spawnRuntime(runtime, PROGRAM, [path], {
        env: { CUDA_IPC_DRIVER: "simulator", CUDA_IPC_SIM_MACHINE: local().machine, ...env },
        flags,
        timeoutMs,
      });
      if (await process.nextLine() !== "ready") throw new Error(`the peer did not start: ${(await process.exited).stderr}`);
      await waitReadable(listener.fd);
      return new Peer(process, listener.accept()!);
    } finally {
      listener.close();
      rmSync(directory, { recursive: true, force: true });
    }
  }

  execute(command: Command): Promise<Answer> {
    const answer = this.#last.then(async () => {
      this.process.write(JSON.stringify(command) + "\n");
      const line = await this.process.nextLine();
      if (line === null) throw new Error(`the peer is gone: ${(await this.process.exited).stderr}`);
      return JSON.parse(line) as Answer;
    });
    this.#last = answer.catch(() => {});
    return answer;
  }

  /** Sends a descriptor; gives its number in the peer. */
  async sendFd(fd: number): Promise<number> {
    sendBytes(this.#socket, new Uint8Array(1), [fd]);
    return (await this.do("receiveFd")).number();
  }

  async kill(): Promise<Exit> {
    this.process.kill("SIGKILL");
    return await this.process.exited;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    discardFds(this.#socket);
    await this.process[Symbol.asyncDispose]();
  }
}
