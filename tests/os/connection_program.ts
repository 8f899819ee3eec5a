/** What connection_test.ts starts: a server, a client, or a process with few descriptors. */
import process from "node:process";
import { libcCandidates, openLibrary, toSize } from "../../ffi/mod.ts";
import type { SystemCallError } from "../../src/errors.ts";
import { connect, UnixServer } from "../../src/os/connection.ts";
import { closeFd, discardFds, inspectFd, isCloseOnExec } from "../../src/os/fd.ts";
import { libc } from "../../src/os/libc.ts";
import { createSharedMemory } from "../../src/os/memory.ts";
import { openPeerPidfd, peerCredentials, pidOfPidfd } from "../../src/os/process.ts";
import { receiveBytes, sendBytes } from "../../src/os/socket.ts";
import { waitReadable } from "../../src/os/waiter.ts";

const [mode, path] = process.argv.slice(2);

/** The next bytes of a socket, and its fds. */
async function receive(socket: number): Promise<{ text: string; fds: number[] } | null> {
  for (;;) {
    const received = receiveBytes(socket);
    if (received === null) return null;
    if (received !== undefined) return { text: new TextDecoder().decode(received.bytes), fds: received.fds };
    await waitReadable(socket);
  }
}

function send(socket: number, text: string, fds: number[] = []): void {
  sendBytes(socket, new TextEncoder().encode(text), fds);
}

/** Opens descriptors until no more may be opened, and says how many. */
function fillUp(): number[] {
  const fds: number[] = [];
  for (;;) {
    const fd = libc().eventfd(0, 0x80000);
    if (fd < 0) return fds;
    fds.push(fd);
  }
}

switch (mode) {
  case "client": { // sends memory, gets it back, and says what it knows of its peer
    const socket = await connect(path);
    const memory = createSharedMemory("test", 4096 * 3);
    send(socket, "memory", [memory]);
    const answer = (await receive(socket))!;
    const pidfd = openPeerPidfd(socket);
    console.log(JSON.stringify({
      text: answer.text,
      isSame: inspectFd(answer.fds[0]).identity === inspectFd(memory).identity,
      isCloseOnExec: isCloseOnExec(answer.fds[0]),
      peer: peerCredentials(socket),
      peerPid: pidfd === undefined ? null : pidOfPidfd(pidfd),
      end: await receive(socket),
    }));
    break;
  }
  case "broken pipe": { // both runtimes ignore SIGPIPE, a program that embeds them may not
    const { signal } = openLibrary("the C library", libcCandidates(), {
      signal: { prototype: "void (*signal(int number, void (*handler)(int)))(int)", args: ["i32", "size"], result: "address" },
    });
    signal(13, toSize(0));
    const server = UnixServer.listen(path);
    const socket = await connect(path);
    closeFd((await server.accept())!);
    server.close();
    try {
      send(socket, "anyone?");
    } catch (error) {
      console.log((error as SystemCallError).errnoName);
    }
    break;
  }
  case "few fds: server": { // turns away who is too many, and goes on
    const server = UnixServer.listen(path);
    const ready = libc().eventfd(1, 0x80000);
    await waitReadable(ready); // so that the thread that waits has started: that takes descriptors
    closeFd(ready);
    console.log("listening");
    const held = fillUp();
    discardFds(held.pop()!, held.pop()!);
    for (let accepted = 0; accepted < 3;) {
      try {
        const socket = (await server.accept())!;
        accepted++;
        console.log("accepted");
        if (accepted === 3) send(socket, "welcome");
      } catch (error) {
        console.log((error as SystemCallError).errnoName);
        discardFds(held.pop()!); // room for the next
      }
    }
    process.exit();
    break;
  }
  case "few fds: receiver": { // loses descriptors on the way: a typed error, and none stays open
    const socket = await connect(path);
    await waitReadable(socket);
    const held = fillUp();
    const room = [held.pop()!, held.pop()!];
    discardFds(...room);
    let message = "no error";
    try {
      receiveBytes(socket);
    } catch (error) {
      message = String(error);
    }
    const isGivenBack = fillUp().length === room.length;
    discardFds(...held);
    console.log(JSON.stringify({ message, isGivenBack }));
    process.exit();
  }
}
