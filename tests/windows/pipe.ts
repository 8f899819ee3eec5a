/** One message each way over a named pipe, a line of JSON each, between a test and the program that it starts. */
import { once } from "node:events";
import { connect, createServer, type Socket } from "node:net";
import { createInterface } from "node:readline";
import type { RuntimeProcess } from "../helpers/runtimes.ts";

/** The other side. */
export interface Peer {
  send(message: unknown): void;
  // deno-lint-ignore no-explicit-any
  receive(): Promise<any>;
  close(): void;
}

function peer(socket: Socket): Peer {
  const lines = createInterface({ input: socket })[Symbol.asyncIterator]();
  socket.on("error", () => {}); // a peer that was killed: the lines end
  return {
    send: (message) => void socket.write(JSON.stringify(message) + "\n"),
    async receive() {
      const { value, done } = await lines.next();
      if (done) throw new Error("the peer has gone");
      return JSON.parse(value);
    },
    close: () => socket.destroy(),
  };
}

/** Listens at a pipe of its own and gives the name, and the one connection that a program makes. */
export async function listen(): Promise<{ name: string; accept(program: RuntimeProcess): Promise<Peer> }> {
  const name = `\\\\.\\pipe\\cuda-ipc-test-${crypto.randomUUID()}`;
  const server = createServer();
  const accepted = once(server, "connection").then(([socket]) => {
    server.close();
    return peer(socket);
  });
  server.listen(name);
  await once(server, "listening");
  const accept = (program: RuntimeProcess) => {
    const ended = program.exited.then(({ code, stderr }): never => {
      throw new Error(`the program ended with ${code}: ${stderr}`);
    });
    return Promise.race([accepted, ended]);
  };
  return { name, accept };
}

export async function connectTo(name: string): Promise<Peer> {
  const socket = connect(name);
  await once(socket, "connect");
  return peer(socket);
}
