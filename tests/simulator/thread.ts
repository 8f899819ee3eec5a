/** Starting another thread of this process with a driver. */
import { once } from "node:events";
import { Worker } from "node:worker_threads";
import { type Answer, type Command, Session } from "./session.ts";

export class Thread extends Session {
  readonly #worker: Worker;

  private constructor(worker: Worker) {
    super();
    this.#worker = worker;
  }

  static async start(): Promise<Thread> {
    const worker = new Worker(new URL("./worker_program.ts", import.meta.url));
    await once(worker, "message");
    return new Thread(worker);
  }

  async execute(command: Command): Promise<Answer> {
    const answer = once(this.#worker, "message");
    this.#worker.postMessage(command);
    return (await answer)[0];
  }

  /** Sends a command and does not wait for its answer. */
  post(method: string, ...args: Command["args"]): void {
    this.#worker.postMessage({ method, args });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#worker.terminate();
  }
}
