/** R12: whatever arrives, it is a typed error on that one channel; the others go on, and nothing is lost. */
import { assert, assertEquals, assertRejects } from "@std/assert";
import process from "node:process";
import { test } from "node:test";
import { BufferDescriptor, type IpcChannel, IpcServer, PeerRejectedError, ProtocolError } from "../../mod.ts";
import { MAX_GREETING_BYTES } from "../../src/channel/handshake.ts";
import { connect } from "../../src/os/connection.ts";
import { closeFd, discardFds, duplicateFd } from "../../src/os/fd.ts";
import { libc } from "../../src/os/libc.ts";
import { createSharedMemory } from "../../src/os/memory.ts";
import { openPidfd, ownIdentity } from "../../src/os/process.ts";
import { receiveBytes, sendBytes } from "../../src/os/socket.ts";
import { waitReadable, waitWritable } from "../../src/os/waiter.ts";
import { encodeFrame, type Frame, FRAME_TYPES, FrameDecoder, type FrameType } from "../../src/wire/frame.ts";
import { Balance, makeFolder, Pair, sleep, toolkit, until } from "./harness.ts";

/** A connection of which every byte is ours to choose. */
class RawPeer {
  readonly socket: number;
  readonly #decoder = new FrameDecoder();
  readonly #frames: Frame[] = [];

  private constructor(socket: number) {
    this.socket = socket;
  }

  static async connect(path: string): Promise<RawPeer> {
    return new RawPeer(await connect(path));
  }

  static async greeted(path: string): Promise<RawPeer> {
    const peer = await RawPeer.connect(path);
    await peer.send("hello", hello());
    const { type } = (await peer.next())!;
    assertEquals(type, "welcome");
    return peer;
  }

  async write(bytes: Uint8Array, fds: readonly number[] = []): Promise<void> {
    for (let at = 0; at < bytes.byteLength;) {
      const sent = sendBytes(this.socket, bytes.subarray(at), at === 0 ? fds : []);
      if (sent === 0) await waitWritable(this.socket, { signal: AbortSignal.timeout(5000) });
      at += sent;
    }
    discardFds(...fds);
  }

  async send(type: FrameType, json: unknown, fds: readonly number[] = [], binary: Uint8Array[] = []): Promise<void> {
    await this.write(encodeFrame(type, json, fds.length, binary), fds);
  }

  /** The next frame; null at the end. */
  async next(): Promise<Frame | null> {
    for (;;) {
      const frame = this.#frames.shift();
      if (frame !== undefined) {
        discardFds(...frame.fds);
        return frame;
      }
      await waitReadable(this.socket, { signal: AbortSignal.timeout(5000) });
      const received = receiveBytes(this.socket);
      if (received === null) return null;
      if (received !== undefined) this.#frames.push(...this.#decoder.push(received.bytes, received.fds));
    }
  }

  /** Frames until the end. */
  async rest(): Promise<Frame[]> {
    const frames: Frame[] = [];
    for (let frame = await this.next(); frame !== null; frame = await this.next()) frames.push(frame);
    return frames;
  }

  close(): void {
    closeFd(this.socket);
  }
}

function hello(changes: object = {}): object {
  const window = { messages: 64, bytes: 1 << 20, fds: 64 };
  return { runtime: "raw", identity: ownIdentity(), deviceUuids: [], capabilities: [], window, ...changes };
}

function header(
  changes: { magic?: number; version?: number; type?: number; length?: number; json?: number; fds?: number },
): Uint8Array {
  const bytes = new Uint8Array(24 + 2);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, changes.magic ?? 0x46504943, true);
  view.setUint16(4, changes.version ?? 1, true);
  view.setUint16(6, changes.type ?? FRAME_TYPES.credit, true);
  view.setUint32(8, changes.length ?? bytes.byteLength, true);
  view.setUint32(12, changes.json ?? 2, true);
  view.setUint16(16, changes.fds ?? 0, true);
  bytes.set(new TextEncoder().encode("{}"), 24);
  return bytes;
}

function random(length: number, seed: number): Uint8Array {
  let state = seed;
  return Uint8Array.from({ length }, () => (state = (state * 1103515245 + 12345) & 0x7fffffff) >>> 16);
}

const memfd = (byteLength = 4096) => createSharedMemory("test", byteLength);
const unsealed = () => libc().memfd_create(new TextEncoder().encode("test\0"), 3);
const word = { block: 0, word: 0, value: 1 };
const message = { id: 1, ready: null, buffers: [], events: [], fences: [], handles: [] };
const descriptor = () =>
  new BufferDescriptor({
    memoryKind: "pool",
    deviceUuid: toolkit().device.uuid,
    exporter: ownIdentity(),
    poolId: crypto.randomUUID(),
    generation: 1,
    byteOffset: 0,
    byteLength: 4096,
    allocationByteLength: 4096,
    chunkByteLengths: [],
    opaque: random(64, 3),
  }).toBytes();
const poolJson = (changes: object = {}) => ({
  id: 0,
  memoryKind: "pool",
  deviceUuid: toolkit().device.uuid,
  poolId: crypto.randomUUID(),
  ...changes,
});

/** What an authorized peer may send to be thrown out, and a piece of the reason. */
const HOSTILE: [string, (peer: RawPeer) => Promise<void>, string][] = [
  ["random bytes", (peer) => peer.write(random(5000, 1)), "magic"],
  ["another magic", (peer) => peer.write(header({ magic: 0x50545448 })), "magic"],
  ["another version", (peer) => peer.write(header({ version: 2 })), "protocol version is 2, expected 1"],
  ["a length of 4 GiB", (peer) => peer.write(header({ length: 0xffff_ffff })), "length"],
  ["a length below the header's", (peer) => peer.write(header({ length: 3 })), "length"],
  ["JSON longer than the frame", (peer) => peer.write(header({ json: 100 })), "JSON length"],
  ["JSON that is none", (peer) => peer.write(header({ json: 1 })), "JSON is not valid"],
  ["fewer descriptors than announced", (peer) => peer.write(header({ fds: 1 })), "file descriptors"],
  ["descriptors that no frame announced", (peer) => peer.write(header({ type: 999 }), [memfd(), memfd()]), "file descriptors"],
  ["descriptors with a frame that takes none", (peer) => peer.send("credit", {}, [memfd()]), "came with 1 file descriptors"],
  ["a greeting again", (peer) => peer.send("hello", hello()), "after the greeting"],
  ["an array for an object", (peer) => peer.send("credit", [1]), "expected an object"],
  ["deep JSON", (peer) => peer.write(deepJson()), "Cannot read"],
  ["text for a number", (peer) => peer.send("credit", { messages: "1", bytes: 0, fds: 0 }), "messages"],
  ["credit for nothing", (peer) => peer.send("credit", { messages: 1, bytes: 1, fds: 1 }), "gives back more"],
  ["a block of a socket", (peer) => peer.send("block", { id: 0, byteLength: 4096 }, [duplicateFd(peer.socket)]), "is a socket"],
  ["a block without seals", (peer) => peer.send("block", { id: 0, byteLength: 4096 }, [unsealed()]), "not sealed"],
  ["a block of another size", (peer) => peer.send("block", { id: 0, byteLength: 8192 }, [memfd()]), "4096 bytes"],
  ["a block that is huge", (peer) => peer.send("block", { id: 0, byteLength: 2 ** 40 }, [memfd()]), "whole pages"],
  ["a block id twice", async (peer) => {
    await peer.send("block", { id: 0, byteLength: 4096 }, [memfd()]);
    await peer.send("block", { id: 0, byteLength: 4096 }, [memfd()]);
  }, "is in use"],
  ["a pool without a UUID", (peer) => peer.send("pool", poolJson({ poolId: "x" }), [memfd()]), "poolId"],
  ["a pool of another kind", (peer) => peer.send("pool", poolJson({ memoryKind: "legacy" }), [memfd()]), "memoryKind"],
  ["a pool id twice", async (peer) => {
    await peer.send("pool", poolJson(), [memfd()]);
    await peer.send("pool", poolJson(), [memfd()]);
  }, "a new number"],
  ["too many pools", async (peer) => {
    for (let id = 0; id <= 128; id++) await peer.send("pool", poolJson({ id }), [memfd()]);
  }, "at most 128"],
  ["too many blocks", async (peer) => {
    for (let id = 0; id <= 128; id++) await peer.send("block", { id, byteLength: 4096 }, [memfd()]);
  }, "128 blocks"],
  ["a buffer of a pool that was forgotten", async (peer) => {
    await peer.send("block", { id: 0, byteLength: 4096 }, [memfd()]);
    await peer.send("pool", poolJson(), [memfd()]);
    await peer.send("forget", { pools: [0, 5] });
    const bytes = descriptor();
    const buffers = [{ name: "a", pool: 0, descriptorBytes: bytes.byteLength, fds: 0, release: word }];
    await peer.send("message", { ...message, buffers }, [], [bytes]);
  }, "no pool 0"],
  ["a word of no block", (peer) => peer.send("message", { ...message, ready: word }), "no such word"],
  ["a word behind the block's end", async (peer) => {
    await peer.send("block", { id: 0, byteLength: 4096 }, [memfd()]);
    await peer.send("message", { ...message, ready: { ...word, word: 512 } });
  }, "no such word"],
  ["a value that is none", (peer) => peer.send("message", { ...message, ready: { ...word, value: -1 } }), "value"],
  ["a message id twice", async (peer) => {
    await peer.send("message", message);
    await peer.send("message", message);
  }, "Cannot take message 1"],
  ["a buffer of no pool", async (peer) => {
    await peer.send("block", { id: 0, byteLength: 4096 }, [memfd()]);
    const bytes = descriptor();
    const buffers = [{ name: "a", pool: 7, descriptorBytes: bytes.byteLength, fds: 0, release: word }];
    await peer.send("message", { ...message, buffers }, [], [bytes]);
  }, "no pool 7"],
  ["a descriptor that was changed", async (peer) => {
    await peer.send("block", { id: 0, byteLength: 4096 }, [memfd()]);
    const bytes = descriptor();
    bytes[40] ^= 1;
    const buffers = [{ name: "a", pool: null, descriptorBytes: bytes.byteLength, fds: 0, release: word }];
    await peer.send("message", { ...message, buffers }, [], [bytes]);
  }, "checksum"],
  ["a descriptor longer than the frame", async (peer) => {
    await peer.send("block", { id: 0, byteLength: 4096 }, [memfd()]);
    const buffers = [{ name: "a", pool: null, descriptorBytes: 2 ** 40, fds: 0, release: word }];
    await peer.send("message", { ...message, buffers });
  }, "fewer than it says"],
  ["binary data too much", (peer) => peer.send("message", message, [], [random(10, 1)]), "expected 0"],
  ["a message with descriptors too many", (peer) => peer.send("message", message, [memfd()]), "expected 0"],
  ["two things of one name", (peer) => {
    const handle = { name: "a", poolId: null };
    return peer.send("message", { ...message, handles: [handle, handle] }, [memfd(), memfd()]);
  }, "same name"],
  ["more messages than the window", async (peer) => {
    for (let id = 1; id <= 65; id++) await peer.send("message", { ...message, id });
  }, "on their way"],
  ["a release of what was not sent", (peer) => peer.send("release", { message: 5, buffers: [0] }), "was never sent"],
  ["a process that is none", (peer) => peer.send("process", { id: 0, identity: {} }, [memfd()]), "exporter.bootId"],
  [
    "a forward of no process",
    (peer) => peer.send("forward", { request: 1, message: 1, buffer: 0, process: 3, release: word }),
    "process 3",
  ],
];

function deepJson(): Uint8Array {
  const text = new TextEncoder().encode("[".repeat(200_000));
  const bytes = new Uint8Array(24 + text.length);
  bytes.set(header({ length: bytes.length, json: text.length }).subarray(0, 24));
  bytes.set(text, 24);
  return bytes;
}

test("R12: hostile input ends its own channel with a typed error, and no other", async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  const balance = await Balance.take();
  for (const [name, attack, text] of HOSTILE) {
    const peer = await RawPeer.greeted(pair.server.path);
    const channel = (await pair.server.accept())!;
    await attack(peer);
    assertEquals(await channel.closed, "protocol-error", name);
    // Messages that were right may still be taken before
    let error: unknown;
    while (error === undefined) error = await channel.receive().then(() => undefined, (reason) => reason);
    assert(error instanceof ProtocolError, `${name}: ${error}`);
    assert(error.message.includes(text), `${name}: "${error.message}" does not contain "${text}"`);
    const frames = await peer.rest();
    assert(frames.some(({ type }) => type === "close"), `${name}: the peer is told`);
    peer.close();
    channel.close();
  }
  await balance.check();
  await pair.channel.send({ data: "alive" });
  assertEquals(await pair.peer.run(async (t) => (await t.kept.channel.receive()).data), "alive");
  assert(t.stream.isIdle);
});

test("R12: a forged descriptor or pool is refused when it is opened, and the channel goes on", async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  const balance = await Balance.take();
  {
    const peer = await RawPeer.greeted(pair.server.path);
    const channel = (await pair.server.accept())!;
    const block = memfd();
    await peer.send("block", { id: 0, byteLength: 4096 }, [duplicateFd(block)]);
    // No pool of any driver
    await peer.send("pool", poolJson(), [memfd()]);
    const bytes = descriptor();
    const buffers = [{ name: "a", pool: 0, descriptorBytes: bytes.byteLength, fds: 0, release: word }];
    await peer.send("message", { ...message, buffers }, [], [bytes]);
    await assertRejects(() => channel.receive({ stream: t.stream }), t.cuda.CudaIpcError);
    await peer.send("message", { ...message, id: 2, data: 2 });
    assertEquals((await channel.receive()).data, 2);
    closeFd(block);
    peer.close();
    channel.close();
  }
  await balance.check();
});

test("R12: a pool's own descriptor with a changed part is refused", async () => {
  const t = toolkit();
  await using pair = await Pair.start();
  const { pool, buffer } = t.createBuffer(4096, 1);
  using handle = pool.exportHandle();
  const real = buffer.ipcDescriptor;
  const forged: Partial<BufferDescriptor>[] = [
    { byteLength: 1 << 20, allocationByteLength: 1 << 20 },
    { byteLength: 2 ** 40, allocationByteLength: 2 ** 40 },
    { memoryKind: "legacy" },
    { poolId: crypto.randomUUID() },
    { deviceUuid: `GPU-${crypto.randomUUID()}` },
    { opaque: random(64, 9) },
  ];
  const peer = await RawPeer.greeted(pair.server.path);
  const channel = (await pair.server.accept())!;
  await peer.send("block", { id: 0, byteLength: 4096 }, [memfd()]);
  await peer.send("pool", poolJson({ poolId: pool.id }), [duplicateFd(handle.fd)]);
  for (const [index, change] of forged.entries()) {
    const { memoryKind, deviceUuid, exporter, poolId, generation, allocationByteLength, chunkByteLengths, opaque } = real;
    const same = { memoryKind, deviceUuid, exporter, poolId, generation, allocationByteLength, chunkByteLengths, opaque };
    const bytes = new BufferDescriptor({ ...same, byteOffset: 0, byteLength: 4096, ...change }).toBytes();
    const buffers = [{ name: "a", pool: 0, descriptorBytes: bytes.byteLength, fds: 0, release: { ...word, word: index } }];
    await peer.send("message", { ...message, id: index + 1, buffers }, [], [bytes]);
    await assertRejects(() => channel.receive({ stream: t.stream }), t.cuda.CudaIpcError, "", `forgery ${index}`);
  }
  await peer.send("message", { ...message, id: 100, data: "still open" });
  assertEquals((await channel.receive()).data, "still open");
  peer.close();
  channel.close();
  buffer.free();
  pool.close();
});

test("R12: greetings that are wrong are refused with a reason, and the server goes on", async () => {
  using folder = makeFolder();
  const t = toolkit();
  await using server = IpcServer.listen(`${folder.path}/socket`, { device: t.device });
  const accepted = server.accept();
  const other = { ...ownIdentity(), pid: 1 };
  const greetings: [string, (peer: RawPeer) => Promise<void>, string][] = [
    ["random bytes", (peer) => peer.write(random(100, 7)), "magic"],
    ["another version", (peer) => peer.write(header({ version: 9 })), "protocol version is 9"],
    ["another frame", (peer) => peer.send("credit", {}), "its first frame is credit"],
    ["a frame that is too long", (peer) => peer.write(header({ length: MAX_GREETING_BYTES + 1 })), "length"],
    ["another process's identity", (peer) => peer.send("hello", hello({ identity: other })), "says that it is process 1"],
    ["no window", (peer) => peer.send("hello", hello({ window: undefined })), "window"],
    ["a device that is none", (peer) => peer.send("hello", hello({ deviceUuids: ["x"] })), "deviceUuid"],
    ["descriptors too many", (peer) => peer.send("hello", hello(), [memfd(), memfd()]), "2 file descriptors"],
  ];
  for (const [name, greet, text] of greetings) {
    const peer = await RawPeer.connect(server.path);
    await greet(peer);
    const [answer, ...more] = await peer.rest();
    assertEquals([answer?.type, more.length], ["reject", 0], name);
    assert((answer!.json as { reason: string }).reason.includes(text), `${name}: ${JSON.stringify(answer!.json)}`);
    peer.close();
  }
  server.close();
  assertEquals(await accepted, null);
});

test("R12: unknown fields and unknown frames are ignored", async () => {
  await using pair = await Pair.start();
  const peer = await RawPeer.connect(pair.server.path);
  await peer.send("hello", hello({ colour: "red" }), [openPidfd(process.pid)!]);
  const channel = (await pair.server.accept())!;
  await peer.write(header({ type: 999 }));
  await peer.send("message", { ...message, data: 4, colour: "blue" });
  assertEquals((await channel.receive()).data, 4);
  peer.close();
  channel.close();
});

test("R12: a peer that writes a byte at a time is understood, and delays nobody", async () => {
  await using pair = await Pair.start();
  const peer = await RawPeer.greeted(pair.server.path);
  const slow = (await pair.server.accept())!;
  const bytes = encodeFrame("message", { ...message, data: "slow" });
  for (const [index, byte] of bytes.entries()) {
    await peer.write(Uint8Array.of(byte));
    if (index % 40 === 0) {
      await pair.channel.send({ data: index });
      assertEquals(await pair.peer.run(async (t) => (await t.kept.channel.receive()).data), index);
    }
  }
  assertEquals((await slow.receive()).data, "slow");
  peer.close();
  slow.close();
});

test("R12: a thousand silent connections leave room for one that speaks", async () => {
  const t = toolkit();
  const balance = await Balance.take();
  {
    await using pair = await Pair.start();
    const sockets: number[] = [];
    for (let count = 0; count < 1000; count++) sockets.push(await connect(pair.server.path));
    let channel: IpcChannel | null = null;
    const accepted = pair.server.accept().then((accepted) => channel = accepted);
    const ours = await t.connect(pair.server.path);
    await accepted;
    await channel!.send({ data: "hello" });
    assertEquals((await ours.receive()).data, "hello");
    await pair.channel.send({ data: "you too" });
    assertEquals(await pair.peer.run(async (t) => (await t.kept.channel.receive()).data), "you too");
    ours.close();
    channel!.close();
    discardFds(...sockets);
  }
  await balance.check();
});

test("R12: the file descriptor limit is reached: connections fail, the rest goes on", async () => {
  await using pair = await Pair.start();
  const held = await pair.peer.run(async (t) => {
    // In the other process, so that the runner of this test keeps working
    const { folder } = { folder: `/tmp/cuda-ipc-limit-${t.pid}` };
    const server = t.kept.server = t.cuda.IpcServer.listen(folder, { device: t.device });
    const inside = t.connect(server.path);
    t.kept.outside = await server.accept();
    t.kept.inside = await inside;
    await t.sleep(100); // what the runtime opens late
    t.kept.hoard = t.hoardFds(2);
    const refused = await t.connect(server.path).then(() => "connected", (error: Error) => error.name);
    await t.kept.outside.send({ data: "alive" });
    const { data } = await t.kept.inside.receive();
    t.dropFds(t.kept.hoard);
    const again = t.connect(server.path);
    const accepted = await server.accept();
    await again;
    server.close();
    return { refused, data, accepted: accepted !== null };
  });
  assertEquals(held, { refused: held.refused, data: "alive", accepted: true });
  assert(held.refused !== "connected");
});

test("R12: another user is refused unless the server allows it; authorize has the last word", async () => {
  using folder = makeFolder();
  const t = toolkit();
  const nobody = IpcServer.listen(`${folder.path}/nobody`, { device: t.device, allowUids: [] });
  await assertRejects(() => t.connect(nobody.path), PeerRejectedError, "may not connect");
  nobody.close();
  const seen: number[] = [];
  const strict = IpcServer.listen(`${folder.path}/strict`, {
    device: t.device,
    authorize: async (peer) => {
      seen.push(peer.pid);
      await sleep(5);
      return false;
    },
  });
  await assertRejects(() => t.connect(strict.path), PeerRejectedError, "did not authorize");
  assertEquals(seen, [process.pid]);
  strict.close();
  await until("the file is gone", async () => await t.connect(strict.path).then(() => false, () => true));
});
