/** Another process of the parity suite: commands come as lines of JSON, descriptors over the socket whose path it is given. */
import process from "node:process";
import { createInterface } from "node:readline";
import { connectSocket, receiveBytes, sendBytes } from "../../src/os/socket.ts";
import { decode, encode } from "./codec.ts";
import { Executor, type Host, type Method } from "./executor.ts";

const socket = connectSocket(process.argv[2])!;

/** Descriptors are on their way before the command comes, so nothing is waited for. */
const passing = {
  receiveFd: (): number => receiveBytes(socket, 1)!.fds[0],
  sendFd: (fd: number): void => void sendBytes(socket, new Uint8Array(1), [fd]),
};

let executor: Executor | undefined;
console.log(encode({ value: process.pid }));
for await (const line of createInterface({ input: process.stdin })) {
  const { kind, name, args } = decode(line) as { kind: "call" | "host" | "passing"; name: string; args: unknown[] };
  let answer: unknown;
  try {
    if (kind === "passing") answer = { value: passing[name as keyof typeof passing](args[0] as number) };
    else {
      executor ??= new Executor();
      if (kind === "call") answer = { value: executor.call(name as Method, args) };
      else answer = { value: await (executor.host[name as keyof Host] as (...args: unknown[]) => unknown)(...args) };
    }
  } catch (error) {
    answer = { error: error instanceof Error ? error.stack : String(error) };
  }
  console.log(encode(answer));
}
process.exit(0);
