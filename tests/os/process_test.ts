import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, readlinkSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { test } from "node:test";
import { assert, assertEquals, assertFalse, assertThrows } from "@std/assert";
import { InvalidArgumentError, ProtocolError, SystemCallError } from "../../src/errors.ts";
import { EMFILE } from "../../src/os/errno.ts";
import { closeFd, isCloseOnExec } from "../../src/os/fd.ts";
import { readTextFile } from "../../src/os/file.ts";
import {
  hasExited,
  openPeerPidfd,
  openPidfd,
  ownIdentity,
  peerCredentials,
  pidOfPidfd,
  processStartTime,
} from "../../src/os/process.ts";
import { connectSocket, Listener } from "../../src/os/socket.ts";
import { isSameProcess } from "../../src/wire/identity.ts";
import { otherRuntime, skipUnderQemu, skipWithout, spawnRuntime } from "../helpers/runtimes.ts";
import { failEachCall, openFds } from "./faults.ts";

/** Becomes true within a few seconds, or the test fails. */
async function eventually(what: string, condition: () => boolean): Promise<void> {
  for (let tries = 0; tries < 500; tries++) {
    if (condition()) return;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  throw new Error(`did not happen: ${what}`);
}

function state(pid: number): string {
  return readFileSync(`/proc/${pid}/stat`, "utf8").replace(/^.*\) /s, "")[0];
}

test("who this process is", () => {
  const identity = ownIdentity();
  assertEquals(identity.pid, process.pid);
  assertEquals(identity.bootId, readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim());
  assertEquals(readlinkSync("/proc/self/ns/pid"), `pid:[${identity.pidNamespace}]`);
  assertEquals(identity.startTime, processStartTime(process.pid));
  assert(identity.startTime > 0);
  assert(ownIdentity() === identity);
});

const skipOther = skipUnderQemu("it makes up its own /proc/self/stat") || skipWithout(otherRuntime);

test("another process is another one, seen the same by both runtimes", { skip: skipOther }, async () => {
  await using program = spawnRuntime(otherRuntime, new URL("./identity_program.ts", import.meta.url));
  const other = JSON.parse((await program.nextLine())!);
  assertFalse(isSameProcess(other, ownIdentity()));
  assert(
    isSameProcess(other, { ...ownIdentity(), pid: program.child.pid!, startTime: processStartTime(program.child.pid!)! }),
  );
});

test("Deno needs no permission but --allow-ffi", { skip: skipWithout("deno") }, async () => {
  const flags = ["--no-prompt", "--allow-ffi"];
  await using program = spawnRuntime("deno", new URL("./identity_program.ts", import.meta.url), [], { flags });
  assertEquals(JSON.parse((await program.nextLine())!).bootId, ownIdentity().bootId);
});

test("a program's name may hold anything, the start time is still found", async () => {
  const directory = mkdtempSync(join(tmpdir(), "os-"));
  const child = spawn("sh", ["-c", `cp /bin/sleep '${directory}/a) 1 2' && exec '${directory}/a) 1 2' 20`], { stdio: "ignore" });
  try {
    await eventually("exec", () => readFileSync(`/proc/${child.pid}/stat`, "utf8").includes("(a) 1 2)"));
    const startTime = processStartTime(child.pid!)!;
    const ownStart = ownIdentity().startTime;
    assert(startTime >= ownStart && startTime < ownStart + 100_000, `${startTime}, ours ${ownStart}`);
  } finally {
    child.kill("SIGKILL");
    rmSync(directory, { recursive: true });
  }
});

test("a pid that nobody has", () => {
  const before = openFds();
  assertEquals(processStartTime(0x3fff_fff0), undefined);
  assertEquals(openPidfd(0x3fff_fff0), undefined);
  for (const pid of [-1, 0, 1.5, NaN, 2 ** 31]) assertThrows(() => openPidfd(pid), InvalidArgumentError, "from 1 to");
  assertEquals(openFds(), before);
});

for (const signal of ["SIGKILL", "SIGTERM"] as const) {
  test(`a pidfd tells the exit by ${signal}, and a stopped process has not exited`, async () => {
    const child = spawn("sleep", ["20"], { stdio: "ignore" });
    const exited = once(child, "exit");
    const pidfd = openPidfd(child.pid!)!;
    try {
      assert(isCloseOnExec(pidfd));
      assertEquals(pidOfPidfd(pidfd), child.pid);
      assertFalse(hasExited(pidfd));
      process.kill(child.pid!, "SIGSTOP");
      await eventually("stop", () => state(child.pid!) === "T");
      assertFalse(hasExited(pidfd));
      process.kill(child.pid!, "SIGCONT");
      process.kill(child.pid!, signal);
      await exited;
      assert(hasExited(pidfd));
      assertEquals(pidOfPidfd(pidfd), -1);
    } finally {
      child.kill("SIGKILL");
      closeFd(pidfd);
    }
  });
}

test("the peer of a connection", () => {
  const directory = mkdtempSync(join(tmpdir(), "os-"));
  const path = join(directory, "s");
  const before = openFds();
  const listener = Listener.open(path);
  const client = connectSocket(path)!;
  const accepted = listener.accept()!;
  for (const socket of [client, accepted]) {
    const credentials = peerCredentials(socket);
    assertEquals(credentials, { pid: process.pid, uid: process.getuid!(), gid: process.getgid!() });
    const pidfd = openPeerPidfd(socket);
    if (pidfd === undefined) continue; // a kernel before 6.5
    assertEquals(pidOfPidfd(pidfd), process.pid);
    assert(isCloseOnExec(pidfd));
    assertFalse(hasExited(pidfd));
    closeFd(pidfd);
  }
  closeFd(client);
  closeFd(accepted);
  listener.close();
  rmSync(directory, { recursive: true });
  assertEquals(openFds(), before);
  assertThrows(() => peerCredentials(1_000_000), SystemCallError, "EBADF");
  assertThrows(() => openPeerPidfd(1_000_000), SystemCallError, "EBADF");
});

test("what is no pidfd is refused", () => {
  const directory = mkdtempSync(join(tmpdir(), "os-"));
  const listener = Listener.open(join(directory, "s"));
  assertThrows(() => pidOfPidfd(listener.fd), ProtocolError, "it is not one");
  assertThrows(() => pidOfPidfd(1_000_000), ProtocolError, "it is not one");
  assertThrows(() => hasExited(1_000_000), SystemCallError, "is closed");
  listener.close();
  rmSync(directory, { recursive: true });
});

test("no descriptor is lost whichever call fails", async () => {
  const outcomes = await failEachCall([EMFILE], () => {
    processStartTime("self");
    readTextFile("/proc/self/maps");
    const pidfd = openPidfd(process.pid)!;
    try {
      pidOfPidfd(pidfd);
      hasExited(pidfd);
    } finally {
      closeFd(pidfd);
    }
  });
  assert(outcomes.length >= 10);
  assertEquals(outcomes.filter(({ leaked }) => leaked.length > 0), []);
});

test("a zombie has exited", async () => {
  // The shell prints its child's pid and becomes a program that collects nobody
  const parent = spawn("sh", ["-c", "sleep 0.2 & echo $!; exec sleep 20"]);
  const exited = once(parent, "exit");
  try {
    const [output] = await once(parent.stdout, "data");
    const pid = Number(String(output));
    const pidfd = openPidfd(pid)!;
    try {
      assertFalse(hasExited(pidfd));
      await eventually("zombie", () => state(pid) === "Z");
      assert(hasExited(pidfd));
      assertEquals(pidOfPidfd(pidfd), pid);
      assert(processStartTime(pid)! > 0);
      const late = openPidfd(pid)!;
      assert(hasExited(late));
      closeFd(late);
    } finally {
      closeFd(pidfd);
    }
  } finally {
    parent.kill("SIGKILL");
    await exited;
  }
});
