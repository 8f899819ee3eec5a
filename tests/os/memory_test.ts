import { openSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { assert, assertEquals, assertThrows } from "@std/assert";
import { createHostView } from "../../ffi/mod.ts";
import { CudaIpcError, ProtocolError, SystemCallError } from "../../src/errors.ts";
import { EIO } from "../../src/os/errno.ts";
import { closeFd, duplicateFd, inspectFd, isCloseOnExec, setCloseOnExec } from "../../src/os/fd.ts";
import { cString, libc } from "../../src/os/libc.ts";
import {
  checkSharedMemory,
  createSharedMemory,
  mapMemory,
  openSharedMemoryHandle,
  SHARED_MEMORY_HANDLE_BYTES,
  sharedMemoryHandle,
  unmapMemory,
} from "../../src/os/memory.ts";
import { skipWithoutReadSearch } from "../helpers/capabilities.ts";
import { failEachCall, openFds } from "./faults.ts";
import { closeAll, connectedPair, newPath } from "./sockets.ts";

const BYTES = 8192;

test("two mappings of one memory see each other's writes", () => {
  const before = openFds();
  const fd = createSharedMemory("test", BYTES);
  checkSharedMemory(fd, BYTES);
  const addresses = [mapMemory(fd, BYTES), mapMemory(fd, 4096, 4096)];
  closeFd(fd);
  const views = [createHostView(addresses[0], BYTES), createHostView(addresses[1], 4096)];
  views[0].bytes[4096 + 5] = 42;
  assertEquals(views[1].bytes[5], 42);
  views.forEach((view) => view.detach());
  unmapMemory(addresses[0], BYTES);
  unmapMemory(addresses[1], 4096);
  assertEquals(openFds(), before);
});

test("its size cannot be changed, and it is close-on-exec", () => {
  const fd = createSharedMemory("test", BYTES);
  assert(isCloseOnExec(fd));
  for (const byteLength of [0, 4096, 2 * BYTES]) assertEquals(libc().ftruncate(fd, byteLength as never), -1);
  closeFd(fd);
});

test("a handle opens the same memory while somebody has it", { skip: skipWithoutReadSearch() }, () => {
  const before = openFds();
  const fd = createSharedMemory("test", BYTES);
  const handle = sharedMemoryHandle(fd)!;
  const opened = openSharedMemoryHandle(handle)!;
  assertEquals(inspectFd(opened).identity, inspectFd(fd).identity);
  assert(isCloseOnExec(opened));
  closeAll(fd, opened);
  assertEquals(openSharedMemoryHandle(handle), undefined);
  for (const byte of [0, 0xff]) {
    assertEquals(openSharedMemoryHandle(new Uint8Array(SHARED_MEMORY_HANDLE_BYTES).fill(byte)), undefined);
  }
  assertEquals(sharedMemoryHandle(1_000_000), undefined);
  assertEquals(openFds(), before);
});

test("a descriptor that is no sealed memory of the right size is refused", () => {
  const path = newPath();
  writeFileSync(path, new Uint8Array(BYTES));
  const file = openSync(path, "r+");
  const unsealed = libc().memfd_create(cString("test"), 1);
  const sealed = createSharedMemory("test", BYTES);
  const [a, b] = connectedPair();
  assertThrows(() => checkSharedMemory(file, BYTES), ProtocolError, "not sealed");
  assertThrows(() => checkSharedMemory(unsealed, 0), ProtocolError, "not sealed");
  assertThrows(() => checkSharedMemory(a, BYTES), ProtocolError, "it is a socket");
  assertThrows(() => checkSharedMemory(sealed, BYTES + 1), ProtocolError, `it has ${BYTES} bytes, expected ${BYTES + 1}`);
  assertThrows(() => checkSharedMemory(1_000_000, BYTES), SystemCallError, "EBADF");
  closeAll(file, unsealed, sealed, a, b);
});

test("what cannot be mapped is a typed error", () => {
  const [a, b] = connectedPair();
  assertThrows(() => mapMemory(a, 4096), SystemCallError, "Cannot map 4096 bytes");
  assertThrows(() => mapMemory(1_000_000, 4096), SystemCallError, "EBADF");
  closeAll(a, b);
});

test("a copy of a descriptor is the same file, close-on-exec", () => {
  const fd = createSharedMemory("test", BYTES);
  const other = createSharedMemory("test", BYTES);
  const copy = duplicateFd(fd);
  assert(isCloseOnExec(copy));
  assertEquals(inspectFd(copy).identity, inspectFd(fd).identity);
  assert(inspectFd(other).identity !== inspectFd(fd).identity);
  libc().fcntl(copy, 2, 0); // F_SETFD
  assertEquals(isCloseOnExec(copy), false);
  setCloseOnExec(copy);
  assert(isCloseOnExec(copy));
  closeAll(fd, other, copy);
  assertThrows(() => closeFd(copy), SystemCallError, `Cannot close file descriptor ${copy}`);
  assertThrows(() => duplicateFd(copy), SystemCallError, "EBADF");
  assertThrows(() => setCloseOnExec(copy), SystemCallError, "EBADF");
  assertThrows(() => isCloseOnExec(copy), SystemCallError, "EBADF");
});

test("no descriptor is lost whichever call fails", async () => {
  const outcomes = await failEachCall([EIO], () => {
    const fd = createSharedMemory("test", BYTES);
    try {
      checkSharedMemory(fd, BYTES);
      const address = mapMemory(fd, BYTES);
      unmapMemory(address, BYTES);
    } finally {
      closeFd(fd);
    }
  });
  assert(outcomes.length >= 7, `${outcomes.length}`);
  assertEquals(outcomes.filter(({ leaked, error }) => leaked.length > 0 || !(error instanceof CudaIpcError)), []);
});
