/** Handles of real processes, copied from one to the other. */
import process from "node:process";
import { test } from "node:test";
import { assert, assertEquals, assertFalse, assertThrows } from "@std/assert";
import { ClosedError, PeerGoneError, SystemCallError } from "../../src/errors.ts";
import { AllocationHandle } from "../../src/memory/allocation_handle.ts";
import { ownIdentity } from "../../src/os/process.ts";
import { ProcessWatch } from "../../src/os/process_watch.ts";
import { closeHandle, copyHandleFrom } from "../../src/os/windows.ts";
import { isSameProcess } from "../../src/wire/identity.ts";
import { collectGarbage } from "../helpers/garbage.ts";
import { currentRuntime, otherRuntime, spawnRuntime } from "../helpers/runtimes.ts";
import { createEvent, isInherited, isSet, setEvent, skipElsewhere as skip } from "./kernel32.ts";
import { listen } from "./pipe.ts";

const owner = new URL("./owner_program.ts", import.meta.url);
const NO_HANDLE = 0x7fff_fffc;

test("who this process is", { skip }, () => {
  const { pid, startTime, pidNamespace } = ownIdentity();
  assertEquals([pid, pidNamespace], [process.pid, 0]);
  const startedMs = startTime - 11_644_473_600_000; // from 1601 to 1970
  assert(Math.abs(Date.now() - startedMs) < 3_600_000, `started at ${new Date(startedMs)}`);
  assert(ownIdentity() === ownIdentity());
});

test("an AllocationHandle owns a HANDLE: not inherited, closed once", { skip }, () => {
  const event = createEvent(true);
  assertEquals(isInherited(event), true);
  const handle = AllocationHandle.fromFd(event);
  assertEquals([handle.fd, isInherited(event)], [event, false]);
  handle.close();
  handle.close();
  assertEquals(isInherited(event), undefined, "closed");
  assertThrows(() => handle.fd, ClosedError);
});

test("a HANDLE that is not there: the error names the call and the system's code", { skip }, () => {
  for (let round = 0; round < 2000; round++) {
    const error = assertThrows(() => AllocationHandle.fromFd(NO_HANDLE), SystemCallError) as SystemCallError;
    assertEquals([error.errno, error.errnoName, error.call], [6, "ERROR_INVALID_HANDLE", "SetHandleInformation"]);
    if (round % 500 === 0) collectGarbage();
  }
  const error = assertThrows(() => closeHandle(NO_HANDLE), SystemCallError) as SystemCallError;
  assertEquals([error.errno, error.call], [6, "CloseHandle"]);
});

for (const runtime of [currentRuntime, otherRuntime]) {
  test(`a handle is copied out of a ${runtime} process, and both mean one object`, { skip, timeout: 60_000 }, async () => {
    const { name, accept } = await listen();
    await using program = spawnRuntime(runtime, owner, [name]);
    const peer = await accept(program);
    const { identity, event } = await peer.receive();
    assertFalse(isSameProcess(identity, ownIdentity()));

    const handle = AllocationHandle.fromProcess(identity, event);
    assertEquals([isInherited(handle.fd), isSet(handle.fd)], [false, false]);
    setEvent(handle.fd);
    peer.send({});
    assertEquals(await peer.receive(), { isSet: true });

    const wrong = assertThrows(() => copyHandleFrom(identity, NO_HANDLE), SystemCallError) as SystemCallError;
    assertEquals([wrong.errno, wrong.call], [6, "DuplicateHandle"]);
    const earlier = { ...identity, startTime: identity.startTime - 1 };
    assertThrows(() => copyHandleFrom(earlier, event), PeerGoneError, "has exited");
    const watch = new ProcessWatch(identity);
    const reused = new ProcessWatch(earlier);
    assertEquals([watch.hasExited(), reused.hasExited()], [false, true]);

    peer.send({});
    assertEquals((await program.exited).code, 0);
    assert(watch.hasExited());
    assertThrows(() => copyHandleFrom(identity, event), PeerGoneError, "has exited");
    assert(isSet(handle.fd), "the copy outlives its origin");
    watch.close();
    reused.close();
    handle.close();
    peer.close();
  });
}

test("a process that never was", { skip }, () => {
  const nobody = { ...ownIdentity(), pid: 0x7fff_fff0 };
  assertThrows(() => copyHandleFrom(nobody, 4), PeerGoneError, `process ${nobody.pid}`);
  const watch = new ProcessWatch(nobody);
  assert(watch.hasExited());
  watch.close();
});

test("1000 copies leave no handle behind", { skip }, () => {
  const event = createEvent();
  const numbers = new Set<number>();
  for (let round = 0; round < 1000; round++) {
    using handle = AllocationHandle.fromProcess(ownIdentity(), event);
    numbers.add(handle.fd);
  }
  assert(numbers.size < 20, `${numbers.size} different handles`);
  closeHandle(event);
});
