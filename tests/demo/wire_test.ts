import { readdirSync } from "node:fs";
import { test } from "node:test";
import { assert, assertEquals, assertRejects } from "@std/assert";
import type { Peer } from "../../src/cli/demo/peer.ts";
import { Wire } from "../../src/cli/demo/wire.ts";
import { PeerGoneError, ProtocolError } from "../../src/errors.ts";
import { closeFd, inspectFd, isCloseOnExec } from "../../src/os/fd.ts";
import { createSharedMemory } from "../../src/os/memory.ts";
import { sendBytes } from "../../src/os/socket.ts";
import { TemporaryFolder } from "./helpers.ts";

/** Both ends in this process: what is sent before the peer is looked at needs no peer. */
const PEER = { goneError: () => new PeerGoneError("Cannot go on: the peer has gone") } as Peer;

async function connected(): Promise<[Wire, Wire]> {
  using folder = new TemporaryFolder();
  const path = `${folder.path}/socket`;
  return await Promise.all([Wire.accept(path), Wire.connect(path)]);
}

function openFds(): string[] {
  return readdirSync("/proc/self/fd");
}

async function sendText(wire: Wire, text: string, fds: number[] = []): Promise<void> {
  await Promise.resolve();
  sendBytes(wire.socket, new TextEncoder().encode(text), fds);
}

test("wire: messages arrive in order, with their descriptors, and are counted on both sides", async () => {
  const [a, b] = await connected();
  using _a = a;
  using _b = b;
  const fd = createSharedMemory("wire test", 1);
  await a.send("offer", { text: "grüße", list: [1, 2] }, [fd]);
  await a.send("verdict", { agreed: true });
  const { fields, fds } = await b.receive("offer", PEER, 1);
  assertEquals(fields, { text: "grüße", list: [1, 2] });
  assertEquals(inspectFd(fds[0]).identity, inspectFd(fd).identity);
  assert(isCloseOnExec(fds[0]));
  closeFd(fds[0]);
  closeFd(fd);
  assertEquals((await b.receive("verdict", PEER)).fields, { agreed: true });
  const bytes =
    new TextEncoder().encode('{"type":"offer","text":"grüße","list":[1,2]}\n{"type":"verdict","agreed":true}\n').byteLength;
  assertEquals([a.sentBytes, b.receivedBytes, a.receivedBytes, b.sentBytes], [bytes, bytes, 0, 0]);
});

test("wire: the two ends may come in any order", async () => {
  using folder = new TemporaryFolder();
  const path = `${folder.path}/socket`;
  const connecting = Wire.connect(path);
  await new Promise((resolve) => setTimeout(resolve, 60));
  using a = await Wire.accept(path);
  using b = await connecting;
  await b.send("released");
  assertEquals((await a.receive("released", PEER)).fields, {});
});

const REFUSED: Record<string, string> = {
  "another type": '{"type":"offer"}\n',
  "no type": "{}\n",
  "no object": "7\n",
  "null": "null\n",
  "no JSON": "hello\n",
  "no text": "\xff\n",
  "no end": "x".repeat(5000),
};
for (const [what, text] of Object.entries(REFUSED)) {
  test(`wire: a message that is ${what} is a ProtocolError`, async () => {
    const [a, b] = await connected();
    using _a = a;
    using _b = b;
    await sendText(a, text);
    await assertRejects(() => b.receive("verdict", PEER), ProtocolError);
  });
}

test("wire: too few or too many descriptors are a ProtocolError, and none stays open", async () => {
  const fd = createSharedMemory("wire test", 1);
  const before = openFds().length;
  for (const fds of [[], [fd, fd]]) {
    const [a, b] = await connected();
    await a.send("offer", {}, fds);
    await assertRejects(() => b.receive("offer", PEER, 1), ProtocolError, `it has ${fds.length} file descriptors, expected 1`);
    a[Symbol.dispose]();
    b[Symbol.dispose]();
  }
  closeFd(fd);
  assert(openFds().length <= before + 1, "descriptors were left open"); // the waiter may keep one of its own
});

test("wire: the end of the connection is the peer's end", async () => {
  const [a, b] = await connected();
  await a.send("offer");
  a[Symbol.dispose]();
  using _b = b;
  await b.receive("offer", PEER);
  await assertRejects(() => b.receive("verdict", PEER), PeerGoneError);
});
