import { existsSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import process from "node:process";
import { test } from "node:test";
import { assert, assertEquals, assertFalse, assertInstanceOf, assertStringIncludes, assertThrows } from "@std/assert";
import { libcCandidates, openLibrary } from "../../ffi/mod.ts";
import { CudaIpcError, InvalidArgumentError, ProtocolError, SystemCallError } from "../../src/errors.ts";
import { EACCES, EAGAIN, ECONNREFUSED, EINTR, EIO, EMFILE, errnoName } from "../../src/os/errno.ts";
import { closeFd, inspectFd, isCloseOnExec } from "../../src/os/fd.ts";
import { cString } from "../../src/os/libc.ts";
import { createSharedMemory } from "../../src/os/memory.ts";
import {
  connectSocket,
  Listener,
  MAX_FDS,
  MAX_PATH_BYTES,
  receiveBytes,
  sendBytes,
  shutdownSending,
} from "../../src/os/socket.ts";
import { skipUnderQemu } from "../helpers/runtimes.ts";
import { failEachCall, openFds, setFault } from "./faults.ts";
import { closeAll, connectedPair, directory, leaveStale, newPath } from "./sockets.ts";

function assertSystemError(action: () => unknown, name: string, text: string): void {
  const error = assertThrows(action, SystemCallError);
  assertEquals(error.errnoName, name);
  assertStringIncludes(error.message, text);
}

test("bytes and descriptors arrive, close-on-exec, and are what was sent", () => {
  const before = openFds();
  const [a, b] = connectedPair();
  const memory = [4096, 8192].map((byteLength) => createSharedMemory("test", byteLength));
  assertEquals(receiveBytes(b), undefined);
  assertEquals(sendBytes(a, new Uint8Array([1, 2, 3]), memory), 3);
  const received = receiveBytes(b)!;
  assertEquals(received.bytes, new Uint8Array([1, 2, 3]));
  assertEquals(received.fds.map((fd) => inspectFd(fd).byteLength), [4096, 8192]);
  assertEquals(received.fds.map((fd) => inspectFd(fd).identity), memory.map((fd) => inspectFd(fd).identity));
  for (const fd of [a, b, ...received.fds]) assert(isCloseOnExec(fd), `fd ${fd}`);
  shutdownSending(a);
  assertEquals(receiveBytes(b), null);
  closeAll(a, b, ...memory, ...received.fds);
  assertEquals(openFds(), before);
});

test("a started program inherits none of the sockets", () => {
  const path = newPath();
  const listener = Listener.open(path);
  const client = connectSocket(path)!;
  const accepted = listener.accept()!;
  // system() starts a shell with every descriptor that is not close-on-exec; the runtimes' own spawn closes more
  const { system } = openLibrary("the C library", libcCandidates(), {
    system: { prototype: "int system(const char *command)", args: ["bytes"], result: "i32" },
  });
  const output = newPath();
  assertEquals(system(cString(`ls -l /proc/self/fd > ${output}`)), 0);
  assertFalse(readFileSync(output, "utf8").includes("socket:"));
  listener.close();
  closeAll(client, accepted);
});

test("253 descriptors in one message", () => {
  const [a, b] = connectedPair();
  const memory = createSharedMemory("test", 4096);
  assertEquals(sendBytes(a, new Uint8Array(1), Array(MAX_FDS).fill(memory)), 1);
  const { fds } = receiveBytes(b)!;
  assertEquals(fds.length, MAX_FDS);
  closeAll(...fds);
  assertThrows(() => sendBytes(a, new Uint8Array(1), Array(MAX_FDS + 1).fill(memory)), InvalidArgumentError, "at most 253");
  closeAll(memory, a, b);
});

const skipLosing = skipUnderQemu("it loses the descriptors for which the buffer has no room");

test("more descriptors than wanted: ProtocolError, and all are closed", { skip: skipLosing }, () => {
  for (const [wanted, sent] of [[0, 1], [1, 2], [1, 3], [2, 3], [16, 253]]) {
    const [a, b] = connectedPair();
    const memory = createSharedMemory("test", 4096);
    sendBytes(a, new Uint8Array(1), Array(sent).fill(memory));
    const before = openFds();
    assertThrows(() => receiveBytes(b, wanted), ProtocolError, `more than ${wanted}`);
    assertEquals(openFds(), before);
    closeAll(memory, a, b);
  }
});

test("as many descriptors as wanted are no error", () => {
  for (const wanted of [1, 2, 3]) {
    const [a, b] = connectedPair();
    const memory = createSharedMemory("test", 4096);
    sendBytes(a, new Uint8Array(1), Array(wanted).fill(memory));
    closeAll(memory, a, b, ...receiveBytes(b, wanted)!.fds);
  }
});

test("a full socket takes a part, then nothing, and all bytes arrive in order", () => {
  const [a, b] = connectedPair();
  const bytes = new Uint8Array(2_000_000).map((_, index) => index * 7 + (index >> 8));
  let sent = 0;
  let refusals = 0;
  const parts: Uint8Array[] = [];
  let arrived = 0;
  while (arrived < bytes.length) {
    const count = sent < bytes.length ? sendBytes(a, bytes.subarray(sent)) : 0;
    sent += count;
    if (count === 0) {
      refusals++;
      const part = receiveBytes(b)!;
      parts.push(part.bytes);
      arrived += part.bytes.length;
    }
  }
  assert(refusals > 1);
  let at = 0;
  for (const part of parts) {
    assertEquals(part, bytes.slice(at, at + part.length));
    at += part.length;
  }
  closeAll(a, b);
});

test("sending to a closed peer is an error, not a signal", () => {
  const [a, b] = connectedPair();
  closeFd(b);
  assertSystemError(() => sendBytes(a, new Uint8Array(1)), "EPIPE", "The peer has closed");
  assertEquals(receiveBytes(a), null);
  closeFd(a);
});

test("a peer that closed with unread bytes gives what it sent, then the end", () => {
  const [a, b] = connectedPair();
  sendBytes(a, new Uint8Array(1));
  sendBytes(b, new Uint8Array([5]));
  closeFd(b);
  assertEquals(receiveBytes(a)?.bytes, new Uint8Array([5]));
  assertEquals(receiveBytes(a), null);
  closeFd(a);
});

test("a closed descriptor number is a typed error", () => {
  for (const fd of [-1, 1_000_000]) {
    assertSystemError(() => sendBytes(fd, new Uint8Array(1)), "EBADF", "Cannot send");
    assertSystemError(() => receiveBytes(fd), "EBADF", "Cannot receive");
    assertSystemError(() => shutdownSending(fd), "EBADF", "Cannot end sending");
  }
  const [a, b] = connectedPair();
  assertSystemError(() => sendBytes(a, new Uint8Array(1), [1_000_000]), "EBADF", "Cannot send");
  assertThrows(() => sendBytes(a, new Uint8Array(0)), InvalidArgumentError, "no bytes");
  closeAll(a, b);
});

test("paths: 107 bytes do, 108 do not; empty, abstract and NUL are refused", () => {
  const longest = join(directory, "x".repeat(MAX_PATH_BYTES - directory.length - 1));
  assertEquals(longest.length, MAX_PATH_BYTES);
  closeAll(...connectedPair(longest));
  const before = openFds();
  for (const path of [`${longest}x`, join(directory, "é".repeat(50)), "", "\0name", "a\0b", 7 as unknown as string]) {
    assertThrows(() => Listener.open(path), InvalidArgumentError, "Cannot listen at");
    assertThrows(() => connectSocket(path), InvalidArgumentError, "Cannot connect to");
  }
  assertEquals(openFds(), before);
});

test("nobody listens: the message says so", () => {
  const path = newPath();
  assertSystemError(() => connectSocket(path), "ENOENT", "There is no such socket: start the server first");
  assertSystemError(() => Listener.open(join(path, "nowhere", "x")), "ENOENT", "The directory does not exist");
  leaveStale(path);
  assertSystemError(() => connectSocket(path), "ECONNREFUSED", "Nobody listens there");
  assertSystemError(() => connectSocket(directory), "ECONNREFUSED", "A directory is there: give the path of a server's socket");
});

test("a listener's file goes with it, also when the process has changed its directory", () => {
  const before = process.cwd();
  const path = newPath();
  process.chdir(dirname(path));
  try {
    const listener = Listener.open(basename(path));
    assertEquals(listener.path, basename(path));
    process.chdir("/");
    listener.close();
    assertFalse(existsSync(path));
  } finally {
    process.chdir(before);
  }
});

test("a refused permission and a full table of descriptors: the message says what to do", () => {
  const cases = [["connect", EACCES, "Permission was refused"], ["socket", EMFILE, "raise the limit (ulimit -n)"]] as const;
  for (const [call, code, text] of cases) {
    const before = openFds();
    setFault((name) => name === call ? code : undefined);
    try {
      assertSystemError(() => connectSocket(newPath()), errnoName(code), text);
    } finally {
      setFault(undefined);
    }
    assertEquals(openFds(), before);
  }
});

test("a full backlog: connect says to try later", () => {
  const path = newPath();
  const listener = Listener.open(path, { backlog: 1 });
  const clients: (number | undefined)[] = [];
  do clients.push(connectSocket(path)); while (clients.at(-1) !== undefined && clients.length < 10);
  assertEquals(clients.pop(), undefined);
  assert(clients.length >= 1);
  closeFd(listener.accept()!);
  clients.push(connectSocket(path));
  assert(clients.at(-1) !== undefined);
  listener.close();
  closeAll(...clients as number[]);
});

test("the socket file is 0600 from the start and goes with its listener", () => {
  const path = newPath();
  const listener = Listener.open(path);
  assertEquals(statSync(path).mode & 0o777, 0o600);
  listener.close();
  listener.close();
  assertThrows(() => statSync(path));
});

test("a stale socket file is replaced; a live one is not, however full", () => {
  const path = newPath();
  leaveStale(path);
  const listener = Listener.open(path, { backlog: 0 });
  const before = openFds();
  assertSystemError(() => Listener.open(path), "EADDRINUSE", "Another process listens there");
  assertSystemError(() => Listener.open(path), "EADDRINUSE", "Another process listens there");
  assertEquals(openFds(), before);
  listener.close();
});

test("no other file is replaced, nor one behind a link", () => {
  const file = newPath();
  writeFileSync(file, "precious");
  assertSystemError(() => Listener.open(file), "EADDRINUSE", "regular file");
  assertEquals(readFileSync(file, "utf8"), "precious");
  const target = newPath();
  leaveStale(target);
  const link = newPath();
  symlinkSync(target, link);
  assertSystemError(() => Listener.open(link), "EADDRINUSE", "another kind");
});

test("closing leaves the file of a successor alone", () => {
  const path = newPath();
  const first = Listener.open(path);
  rmSync(path);
  const second = Listener.open(path);
  first.close();
  assertEquals(statSync(path).isSocket(), true);
  second.close();
});

test("a successor that was faster keeps the place", () => {
  const path = newPath();
  leaveStale(path);
  let rival: Listener | undefined;
  setFault((name) => {
    if (name === "rename" && rival === undefined) {
      rmSync(path);
      rival = Listener.open(path);
    }
    return undefined;
  });
  try {
    assertSystemError(() => Listener.open(path), "EADDRINUSE", "Another process listens there");
  } finally {
    setFault(undefined);
  }
  const client = connectSocket(path)!;
  closeAll(client, rival!.accept()!);
  rival!.close();
  assertThrows(() => statSync(path));
});

test("interrupted calls are made again", () => {
  const path = newPath();
  const interrupted = new Set<string>();
  setFault((name) => {
    if (!["accept4", "sendmsg", "recvmsg"].includes(name) || interrupted.has(name)) return undefined;
    interrupted.add(name);
    return EINTR;
  });
  try {
    const [a, b] = connectedPair(path);
    assertEquals(sendBytes(a, new Uint8Array(1)), 1);
    assertEquals(receiveBytes(b)?.bytes.length, 1);
    closeAll(a, b);
  } finally {
    setFault(undefined);
  }
  assertEquals(interrupted.size, 3);
});

test("no descriptor is lost whichever call fails", async () => {
  const memory = createSharedMemory("test", 4096);
  const outcomes = await failEachCall([EIO, EMFILE, ECONNREFUSED, EAGAIN], () => {
    const path = newPath();
    leaveStale(path);
    const owned: number[] = [];
    let listener: Listener | undefined;
    try {
      listener = Listener.open(path);
      const client = connectSocket(path);
      if (client === undefined) return;
      owned.push(client);
      const accepted = listener.accept();
      if (accepted === undefined) return;
      owned.push(accepted);
      if (sendBytes(client, new Uint8Array(8), [memory, memory, memory]) === 0) return;
      const received = receiveBytes(accepted);
      if (received) owned.push(...received.fds);
    } finally {
      for (const fd of owned) {
        try {
          closeFd(fd);
        } catch (error) {
          assertInstanceOf(error, SystemCallError);
        }
      }
      listener?.close();
    }
  });
  closeFd(memory);
  assert(outcomes.length > 60, `${outcomes.length}`);
  assertEquals(outcomes.filter((outcome) => outcome.leaked.length > 0), []);
  assertEquals(outcomes.filter(({ error }) => error !== undefined && !(error instanceof CudaIpcError)), []);
});
