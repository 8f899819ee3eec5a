import { spawn } from "node:child_process";
import { statSync } from "node:fs";
import process from "node:process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { assert, assertEquals, assertRejects, assertStringIncludes } from "@std/assert";
import { CudaIpcError, SystemCallError } from "../../src/errors.ts";
import { connect, UnixServer } from "../../src/os/connection.ts";
import { EIO, EMFILE } from "../../src/os/errno.ts";
import { closeFd, inspectFd } from "../../src/os/fd.ts";
import { createSharedMemory } from "../../src/os/memory.ts";
import { connectSocket, Listener, receiveBytes, sendBytes } from "../../src/os/socket.ts";
import { stopWaiterForTests, waitReadable } from "../../src/os/waiter.ts";
import {
  currentRuntime,
  otherRuntime,
  runRuntime,
  type Runtime,
  runtimePath,
  skipUnderQemu,
  skipWithout,
  spawnRuntime,
} from "../helpers/runtimes.ts";
import { failEachCall, openFds, setFault } from "./faults.ts";
import { newPath } from "./sockets.ts";

const program = new URL("./connection_program.ts", import.meta.url);
const one = new Uint8Array(1);
const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

test("connections are accepted as they come; closing ends the waiting", async () => {
  const server = UnixServer.listen(newPath());
  const early = await connect(server.path);
  const first = await server.accept();
  const pending = server.accept();
  await sleep(20);
  const late = await connect(server.path);
  const second = await pending;
  const last = server.accept();
  await sleep(20);
  server.close();
  server.close();
  assertEquals(await last, null);
  assertEquals(await server.accept(), null);
  await assertRejects(() => connect(server.path), SystemCallError, "There is no such socket");
  for (const fd of [early, first!, late, second!]) closeFd(fd);
});

test("waiting for a connection can be aborted", async () => {
  const server = UnixServer.listen(newPath());
  const reason = new Error("enough");
  const controller = new AbortController();
  const pending = server.accept({ signal: controller.signal }).catch((error) => error);
  controller.abort(reason);
  assertEquals(await pending, reason);
  assertEquals(await server.accept({ signal: controller.signal }).catch((error) => error), reason);
  const client = await connect(server.path);
  closeFd((await server.accept())!);
  closeFd(client);
  server.close();
});

test("connecting waits while the backlog is full, until it is aborted or there is room", async () => {
  const path = newPath();
  const listener = Listener.open(path, { backlog: 0 });
  const clients: number[] = [];
  for (let client; (client = connectSocket(path)) !== undefined;) clients.push(client);
  const before = openFds();
  const aborted = await connect(path, { signal: AbortSignal.timeout(50) }).catch((error) => error);
  assertEquals(aborted.name, "TimeoutError");
  assertEquals(openFds(), before);
  const pending = connect(path);
  await sleep(20);
  closeFd(listener.accept()!);
  clients.push(await pending);
  listener.close();
  clients.forEach(closeFd);
});

test("many connections at once starve nothing", async () => {
  const server = UnixServer.listen(newPath(), { backlog: 200 });
  const clients = Array.from({ length: 100 }, () => connectSocket(server.path)!);
  let turns = 0;
  const counter = setInterval(() => turns++, 0);
  const accepted: number[] = [];
  await sleep(5);
  turns = 0;
  while (accepted.length < 100) accepted.push((await server.accept())!);
  await sleep(5);
  clearInterval(counter);
  assert(turns >= 2);
  server.close();
  [...clients, ...accepted].forEach(closeFd);
});

test("no descriptor is lost whichever call fails", async () => {
  await stopWaiterForTests();
  const outcomes = await failEachCall([EIO, EMFILE], async () => {
    const fds: number[] = [];
    const server = UnixServer.listen(newPath());
    try {
      fds.push(await connect(server.path));
      const accepted = await server.accept();
      if (accepted !== null) fds.push(accepted);
    } finally {
      for (const fd of fds) {
        try {
          closeFd(fd);
        } catch { /* a close that was made to fail */ }
      }
      try {
        server.close();
      } finally {
        await stopWaiterForTests();
      }
    }
  });
  assert(outcomes.length >= 20, `${outcomes.length}`);
  assertEquals(outcomes.filter(({ leaked }) => leaked.length > 0), []);
  assertEquals(outcomes.filter(({ error }) => error !== undefined && !(error instanceof CudaIpcError)), []);
});

test("when no descriptor is left the connection is turned away, and the server goes on", async () => {
  const server = UnixServer.listen(newPath());
  const client = await connect(server.path);
  let failures = 0;
  setFault((name) => name === "accept4" && failures++ === 0 ? EMFILE : undefined);
  await assertRejects(() => server.accept(), SystemCallError, "ulimit -n");
  setFault(undefined);
  await waitReadable(client);
  assertEquals(receiveBytes(client), null);
  const next = await connect(server.path);
  const accepted = (await server.accept())!;
  server.close();
  [client, next, accepted].forEach(closeFd);
});

/** Starts the program with so few descriptors that they run out. */
function startWithFewFds(runtime: Runtime, mode: string, path: string): { lines: AsyncIterator<string>; stop(): void } {
  const command = [runtimePath(runtime), ...(runtime === "deno" ? ["run", "-A"] : []), fileURLToPath(program), mode, path];
  const child = spawn("sh", ["-c", 'ulimit -n 64; exec "$@"', "sh", ...command], { stdio: ["ignore", "pipe", "inherit"] });
  const timer = setTimeout(() => child.kill("SIGKILL"), 20_000);
  async function* lines(): AsyncGenerator<string> {
    let text = "";
    for await (const chunk of child.stdout!) {
      text += chunk;
      for (let end; (end = text.indexOf("\n")) >= 0; text = text.slice(end + 1)) yield text.slice(0, end);
    }
  }
  return {
    lines: lines(),
    stop() {
      clearTimeout(timer);
      child.kill("SIGKILL");
    },
  };
}

for (const runtime of [currentRuntime, otherRuntime] satisfies Runtime[]) {
  const skip = skipWithout(runtime);

  test(`bytes, descriptors and credentials between ${currentRuntime} and ${runtime}`, { skip }, async () => {
    const server = UnixServer.listen(newPath());
    await using client = spawnRuntime(runtime, program, ["client", server.path]);
    const socket = (await server.accept())!;
    await waitReadable(socket);
    const { bytes, fds } = receiveBytes(socket)!;
    assertEquals(new TextDecoder().decode(bytes), "memory");
    assertEquals(fds.map((fd) => inspectFd(fd).byteLength), [4096 * 3]);
    assertEquals(sendBytes(socket, new TextEncoder().encode("back"), fds), 4);
    closeFd(socket);
    closeFd(fds[0]);
    server.close();
    const result = JSON.parse((await client.nextLine())!);
    const peer = { pid: process.pid, uid: process.getuid!(), gid: process.getgid!() };
    assertEquals(result.peerPid ?? process.pid, process.pid); // null before Linux 6.5
    assertEquals({ ...result, peerPid: undefined }, {
      text: "back",
      isSame: true,
      isCloseOnExec: true,
      peer,
      peerPid: undefined,
      end: null,
    });
    assertEquals((await client.exited).code, 0);
  });

  test(`${runtime}: sending to a peer that has closed is an error, not the end by SIGPIPE`, { skip }, async () => {
    const exit = await runRuntime(runtime, program, ["broken pipe", newPath()]);
    assertEquals(exit, { code: 0, signal: null, stdout: "EPIPE\n", stderr: "", timedOut: false });
  });

  // So slow there that another thread of the runtime may take the descriptor that was made free
  const skipFull = skip || skipUnderQemu("it is too slow to hold the last descriptor");
  test(`${runtime}: a server without free descriptors turns away and goes on`, { skip: skipFull }, async () => {
    const path = newPath();
    const { lines, stop } = startWithFewFds(runtime, "few fds: server", path);
    const clients: number[] = [];
    try {
      assertEquals((await lines.next()).value, "listening");
      for (const expected of ["accepted", "accepted", "EMFILE", "accepted"]) {
        clients.push(await connect(path));
        assertEquals((await lines.next()).value, expected);
      }
      await waitReadable(clients[2]);
      assertEquals(receiveBytes(clients[2]), null);
      await waitReadable(clients[3]);
      assertEquals(receiveBytes(clients[3])?.bytes, new TextEncoder().encode("welcome"));
    } finally {
      clients.forEach(closeFd);
      stop();
    }
  });

  test(`${runtime}: descriptors that do not fit are a typed error, and none stays open`, { skip }, async () => {
    const server = UnixServer.listen(newPath());
    const { lines, stop } = startWithFewFds(runtime, "few fds: receiver", server.path);
    try {
      const socket = (await server.accept())!;
      const memory = createSharedMemory("test", 4096);
      sendBytes(socket, one, Array(5).fill(memory));
      const { message, isGivenBack } = JSON.parse((await lines.next()).value!);
      assertStringIncludes(message, "ProtocolError");
      assertStringIncludes(message, "this process may not open more of them");
      assertEquals(isGivenBack, true);
      closeFd(socket);
      closeFd(memory);
    } finally {
      server.close();
      stop();
    }
  });
}

test("of many servers that start at once at a stale file, one wins", { skip: skipWithout(otherRuntime) }, async () => {
  const path = newPath();
  const stale = Listener.open(path);
  closeFd(stale.fd);
  assert(statSync(path).isSocket());
  const started = ["deno", "bun", "deno", "bun"].map((runtime) =>
    spawnRuntime(runtime as Runtime, new URL("./rival_program.ts", import.meta.url), [path])
  );
  const lines = await Promise.all(started.map((rival) => rival.nextLine()));
  started.forEach((rival) => rival.write("go\n"));
  const results = await Promise.all(started.map((rival) => rival.nextLine()));
  assertEquals(lines, Array(4).fill("ready"));
  assertEquals(results.toSorted(), ["EADDRINUSE", "EADDRINUSE", "EADDRINUSE", "listening"]);
  closeFd(await connect(path));
  for (const rival of started) await rival[Symbol.asyncDispose]();
});
