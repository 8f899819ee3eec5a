/** Another process with a driver: commands come as lines of JSON, descriptors over the socket whose path is the argument. */
import process from "node:process";
import { createInterface } from "node:readline";
import { openDriver } from "../../src/driver/mod.ts";
import { connectSocket, receiveBytes } from "../../src/os/socket.ts";
import { waitReadable } from "../../src/os/waiter.ts";
import { type Command, Executor } from "./session.ts";

const socket = connectSocket(process.argv[2])!;

async function receiveFd(): Promise<number> {
  for (;;) {
    const received = receiveBytes(socket, 1);
    if (received === null) throw new Error("the socket was closed");
    if (received !== undefined) return received.fds[0];
    await waitReadable(socket);
  }
}

const executor = new Executor(openDriver() as never, receiveFd);
console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  const command: Command = JSON.parse(line);
  try {
    console.log(JSON.stringify(await executor.execute(command)));
  } catch (error) {
    console.log(JSON.stringify({ code: -1, out: "", error: String(error) }));
  }
}
process.exit(0);
