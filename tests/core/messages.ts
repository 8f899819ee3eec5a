/** JSON messages with file descriptors over a unix socket, for tests below the channel. One message at a time. */
import { receiveBytes, sendBytes } from "../../src/os/socket.ts";

/** Asks again each millisecond until there is an answer. */
export async function until<T>(ask: () => T | undefined): Promise<T> {
  for (;;) {
    const answer = ask();
    if (answer !== undefined) return answer;
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}

export function sendMessage(socket: number, message: unknown, fds: readonly number[] = []): void {
  const bytes = new TextEncoder().encode(JSON.stringify(message));
  if (sendBytes(socket, bytes, fds) !== bytes.byteLength) throw new Error("The message is too long for the socket");
}

// deno-lint-ignore no-explicit-any
export async function receiveMessage(socket: number): Promise<{ message: any; fds: readonly number[] }> {
  const received = await until(() => receiveBytes(socket));
  if (received === null) throw new Error("The peer has closed the socket");
  return { message: JSON.parse(new TextDecoder().decode(received.bytes)), fds: received.fds };
}
