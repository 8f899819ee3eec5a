import { spawn } from "node:child_process";
import process from "node:process";
import { test } from "node:test";
import { assert, assertEquals, assertRejects } from "@std/assert";
import { NativeBlock, toSize } from "../../ffi/mod.ts";
import { ClosedError, CudaIpcError, SystemCallError } from "../../src/errors.ts";
import { EIO, EMFILE } from "../../src/os/errno.ts";
import { closeFd } from "../../src/os/fd.ts";
import { libc } from "../../src/os/libc.ts";
import { createSharedMemory } from "../../src/os/memory.ts";
import { hasExited, openPidfd } from "../../src/os/process.ts";
import { receiveBytes, sendBytes } from "../../src/os/socket.ts";
import { FdWatch, stopWaiterForTests, waitReadable, waitWritable } from "../../src/os/waiter.ts";
import { currentRuntime, otherRuntime, runRuntime, skipWithout, spawnRuntime } from "../helpers/runtimes.ts";
import { failEachCall, openFds } from "./faults.ts";
import { closeAll, connectedPair, newPath } from "./sockets.ts";

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** Whether the promise is still pending after a while. */
async function isPending(promise: Promise<unknown>, ms = 50): Promise<boolean> {
  return await Promise.race([promise.then(() => false, () => false), sleep(ms).then(() => true)]);
}

const one = new Uint8Array(1);
const eight = new NativeBlock(8);
function signalEventFd(fd: number): void {
  eight.writeU64(0, 1n);
  assertEquals(Number(libc().write(fd, eight.addressAt(0), toSize(8))), 8);
}
function createEventFd(): number {
  return libc().eventfd(0, 0x80800);
}
/** An eventfd with exactly this number, which is free. */
function createEventFdAs(fd: number): number {
  const any = createEventFd();
  if (any === fd) return fd;
  assertEquals(libc().fcntl(any, 1030, fd), fd); // F_DUPFD_CLOEXEC
  closeFd(any);
  return fd;
}

test("a wait ends when bytes arrive, and not before", async () => {
  const [a, b] = connectedPair();
  const readable = waitReadable(b);
  assert(await isPending(readable));
  sendBytes(a, one);
  await readable;
  await waitReadable(b); // what is there already is seen too
  assertEquals(receiveBytes(b)?.bytes, one);
  assert(await isPending(waitReadable(b, { signal: AbortSignal.timeout(300) })));
  closeAll(a, b);
});

test("a wait ends when there is room to write", async () => {
  const [a, b] = connectedPair();
  await waitWritable(a);
  while (sendBytes(a, new Uint8Array(65536)) > 0);
  const writable = waitWritable(a);
  assert(await isPending(writable));
  while (receiveBytes(b));
  await writable;
  closeAll(a, b);
});

test("one watch waits for both directions, each on its own", async () => {
  const [a, b] = connectedPair();
  const watch = new FdWatch(b);
  const readable = watch.readable();
  await watch.writable();
  assert(await isPending(readable));
  sendBytes(a, one);
  await readable;
  watch.close();
  closeAll(a, b);
});

test("several waits and watches of one descriptor all end", async () => {
  const [a, b] = connectedPair();
  const first = new FdWatch(b);
  const second = new FdWatch(b);
  const waits = [first.readable(), first.readable(), second.readable(), waitReadable(b)];
  first.close();
  await assertRejects(() => waits[0], ClosedError, "was closed");
  await assertRejects(() => waits[1], ClosedError, "was closed");
  sendBytes(a, one);
  await waits[2];
  await waits[3];
  second.close();
  closeAll(a, b);
});

test("the end of a connection wakes", async () => {
  const [a, b] = connectedPair();
  const readable = waitReadable(b);
  closeFd(a);
  await readable;
  assertEquals(receiveBytes(b), null);
  closeFd(b);
});

test("an aborted wait rejects with the signal's reason", async () => {
  const [a, b] = connectedPair();
  const watch = new FdWatch(b);
  const controller = new AbortController();
  const reason = { any: "thing" };
  const wait = watch.readable({ signal: controller.signal });
  const other = watch.readable();
  controller.abort(reason);
  assertEquals(await wait.catch((error) => error), reason);
  assertEquals(await watch.readable({ signal: controller.signal }).catch((error) => error), reason);
  assertEquals(await waitReadable(b, { signal: AbortSignal.abort(7) }).catch((error) => error), 7);
  assert(await isPending(other));
  sendBytes(a, one);
  await other;
  watch.close();
  closeAll(a, b);
});

test("what cannot be waited for is a typed error", async () => {
  for (const fd of [-1, 1_000_000]) await assertRejects(() => waitReadable(fd), SystemCallError, "EBADF");
  const memory = createSharedMemory("test", 4096);
  await assertRejects(() => waitReadable(memory), SystemCallError, "It is always ready");
  closeFd(memory);
  const watch = new FdWatch(0);
  watch.close();
  watch.close();
  await assertRejects(() => watch.readable(), ClosedError, "Cannot wait for file descriptor 0");
});

test("a number that is used again is another descriptor", async () => {
  const [a, b] = connectedPair();
  const stale = new FdWatch(b);
  const staleWait = stale.readable().catch((error) => error);
  await sleep(30);
  sendBytes(a, one); // its event may be on its way while the number changes hands
  stale.close();
  closeFd(b);
  const reused = createEventFdAs(b);
  const wait = waitReadable(reused);
  assert(await isPending(wait));
  signalEventFd(reused);
  await wait;
  assert(await staleWait instanceof ClosedError);
  closeAll(a, reused);
});

test("a number that is used again while its old watch is open", async () => {
  const [a, b] = connectedPair();
  const stale = new FdWatch(b);
  const staleWait = stale.readable().catch((error) => error);
  closeFd(b);
  const reused = createEventFdAs(b);
  const fresh = new FdWatch(reused);
  const wait = fresh.readable();
  assert(await isPending(wait));
  signalEventFd(reused);
  await wait;
  stale.close();
  await staleWait;
  fresh.close();
  closeAll(a, reused);
});

test("1000 descriptors", async () => {
  const fds = Array.from({ length: 1000 }, createEventFd);
  const woken: number[] = [];
  const waits = fds.map((fd) => waitReadable(fd).then(() => woken.push(fd)));
  await sleep(20);
  assertEquals(woken.length, 0);
  fds.slice(0, 500).forEach(signalEventFd);
  await Promise.all(waits.slice(0, 500));
  assertEquals(woken.toSorted((a, b) => a - b), fds.slice(0, 500));
  fds.slice(500).forEach(signalEventFd);
  await Promise.all(waits);
  closeAll(...fds);
});

test("a descriptor that is always ready starves neither others nor timers", async () => {
  const busy = createEventFd();
  signalEventFd(busy);
  const [a, b] = connectedPair();
  let isOver = false;
  let rounds = 0;
  const loop = (async () => {
    const watch = new FdWatch(busy);
    for (; !isOver; rounds++) await watch.readable();
    watch.close();
  })();
  await sleep(20);
  const wait = waitReadable(b);
  setTimeout(() => sendBytes(a, one), 20);
  await wait;
  isOver = true;
  await loop;
  assert(rounds > 10, `${rounds}`);
  closeAll(a, b, busy);
});

test("the event loop runs while something waits", async () => {
  const [a, b] = connectedPair();
  const wait = waitReadable(b, { signal: AbortSignal.timeout(200) }).catch(() => {});
  let ticks = 0;
  const timer = setInterval(() => ticks++, 5);
  await wait;
  clearInterval(timer);
  assert(ticks >= 10, `${ticks}`);
  closeAll(a, b);
});

test("a process's exit wakes, a stop does not", async () => {
  const child = spawn("sleep", ["20"], { stdio: "ignore" });
  const pidfd = openPidfd(child.pid!)!;
  const exit = waitReadable(pidfd);
  process.kill(child.pid!, "SIGSTOP");
  assert(await isPending(exit));
  process.kill(child.pid!, "SIGKILL");
  await exit;
  assert(hasExited(pidfd));
  closeFd(pidfd);
});

test("descriptors and the thread are given back", async () => {
  await stopWaiterForTests();
  const before = openFds();
  for (let round = 0; round < 3; round++) {
    const [a, b] = connectedPair();
    const watch = new FdWatch(b);
    assert(await isPending(watch.readable(), 100));
    await stopWaiterForTests(); // in use: nothing happens
    sendBytes(a, one);
    await watch.readable();
    watch.close();
    await stopWaiterForTests();
    closeAll(a, b);
    assertEquals(openFds(), before);
  }
  const [a, b] = connectedPair();
  await waitWritable(b);
  closeAll(a, b);
  for (let tries = 0; tries < 100 && openFds().length !== before.length; tries++) await sleep(50);
  assertEquals(openFds(), before); // after a while by itself
});

test("no descriptor is lost whichever call fails, and the next wait works", async () => {
  await stopWaiterForTests();
  const [a, b] = connectedPair();
  sendBytes(a, one);
  const outcomes = await failEachCall([EIO, EMFILE], async () => {
    try {
      await waitReadable(b);
      await waitWritable(b);
    } finally {
      await stopWaiterForTests();
    }
  });
  assert(outcomes.length >= 10, `${outcomes.length}`);
  assertEquals(outcomes.filter(({ leaked }) => leaked.length > 0), []);
  assertEquals(outcomes.filter(({ error }) => error !== undefined && !(error instanceof CudaIpcError)), []);
  await waitReadable(b);
  closeAll(a, b);
});

for (const runtime of [currentRuntime, otherRuntime]) {
  const skip = skipWithout(runtime);
  const program = new URL("./waiter_program.ts", import.meta.url);

  test(`${runtime}: a wait keeps the process alive`, { skip }, async () => {
    await using started = spawnRuntime(runtime, program, ["ref", newPath()]);
    assertEquals(await started.nextLine(), "waiting");
    assert(await isPending(started.exited, 700));
  });

  const endings: [mode: string, output: string][] = [
    ["unref", ""],
    ["unref later", ""],
    ["ref again", "woken\n"],
    ["unref is woken", "woken\n"],
    ["there and back", "woken by 1 byte\n".repeat(4)],
    ["abort", "TimeoutError\n"],
    ["in a worker", "worker got 1 byte\n"],
    ["terminated worker", "waiting\nterminated\n"],
  ];
  for (const [mode, stdout] of endings) {
    test(`${runtime}: ${mode}: the process ends`, { skip }, async () => {
      const exit = await runRuntime(runtime, program, [mode, newPath()], { timeoutMs: 10_000 });
      assertEquals({ ...exit, signal: null }, { code: 0, signal: null, stdout, stderr: "", timedOut: false });
    });
  }

  for (const isRef of ["ref", "unref"]) {
    test(`${runtime}: an idle wait costs nothing (${isRef})`, { skip }, async () => {
      const exit = await runRuntime(runtime, program, ["idle", newPath(), isRef]);
      // bench/wakeup.ts measures it (below 1 %); a loop that never sleeps would take all of a core, on a busy machine too
      assert(Number(exit.stdout) < 0.1, `${100 * Number(exit.stdout)} % of a core ${exit.stderr}`);
    });
  }
}

test("Deno needs no permission but --allow-ffi", { skip: skipWithout("deno") }, async () => {
  const flags = ["--no-prompt", "--allow-ffi"];
  const program = new URL("./waiter_program.ts", import.meta.url);
  const exit = await runRuntime("deno", program, ["there and back", newPath()], { flags, timeoutMs: 10_000 });
  assertEquals(exit, { code: 0, signal: null, stdout: "woken by 1 byte\n".repeat(4), stderr: "", timedOut: false });
});
