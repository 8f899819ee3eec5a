/** What the tests of sockets share: paths of their own, sockets that are connected, sockets that were left behind. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { assertEquals } from "@std/assert";
import { libcCandidates, openLibrary } from "../../ffi/mod.ts";
import { closeFd } from "../../src/os/fd.ts";
import { connectSocket, Listener } from "../../src/os/socket.ts";

export const directory: string = mkdtempSync(join(tmpdir(), "os-"));
process.on("exit", () => rmSync(directory, { recursive: true }));

let paths = 0;

/** The path of a socket that is not there yet. */
export function newPath(): string {
  return join(directory, `${paths++}.sock`);
}

/** Two connected sockets in this process. */
export function connectedPair(path: string = newPath()): [number, number] {
  const listener = Listener.open(path);
  try {
    const client = connectSocket(path)!;
    return [client, listener.accept()!];
  } finally {
    listener.close();
  }
}

export function closeAll(...fds: number[]): void {
  fds.forEach(closeFd);
}

/** Leaves a socket file at which nobody listens, without a call that the faults would count. */
export function leaveStale(path: string): void {
  const { socket, bind, close } = openLibrary("the C library", libcCandidates(), {
    socket: { prototype: "int socket(int, int, int)", args: ["i32", "i32", "i32"], result: "i32" },
    bind: { prototype: "int bind(int, const struct sockaddr *, socklen_t)", args: ["i32", "bytes", "u32"], result: "i32" },
    close: { prototype: "int close(int)", args: ["i32"], result: "i32" },
  });
  const fd = socket(1, 1, 0);
  const address = new Uint8Array(110);
  address[0] = 1;
  address.set(new TextEncoder().encode(path), 2);
  assertEquals(bind(fd, address, 110), 0);
  close(fd);
}
