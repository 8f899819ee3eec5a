/** R4, R5 and R6 against models: whatever the order of events, memory is held exactly as long as somebody may use it. */
import { assert, assertEquals } from "@std/assert";
import fc from "fast-check";
import { test } from "node:test";
import {
  Device,
  type DeviceBuffer,
  IpcChannel,
  type IpcMessage,
  IpcServer,
  type Lease,
  MemoryPool,
  openDriver,
} from "../../mod.ts";
import { contextOf } from "../../src/context.ts";
import { type Claim, type Hold, holdFor, leaseSent, newLease } from "../../src/channel/lease.ts";
import { PeerProcess } from "../../src/channel/peer_process.ts";
import { WordPool } from "../../src/channel/words.ts";
import { toSize } from "../../ffi/mod.ts";
import { Allocation } from "../../src/memory/allocation.ts";
import { nativeStream } from "../../src/native_stream.ts";
import { ownIdentity } from "../../src/os/process.ts";
import { BROKEN } from "../../src/share/fence_word.ts";
import { makeFolder, sleep } from "../channel/harness.ts";

const device = Device.open(0, { driver: openDriver("simulator") });
const stream = device.createStream();

/** Memory of nobody, which tells when it is given back. */
class FakeAllocation extends Allocation {
  override readonly kind = "foreign" as const;
  isBack = false;

  constructor() {
    const native = nativeStream(stream, "make a fake");
    super(contextOf(device, "make a fake"), native.handle, 4096, toSize(4096), native);
  }
  protected override giveBack(): () => boolean {
    assert(!this.isBack, "given back twice");
    this.isBack = true;
    return () => true;
  }
}

/** A process that exits when the test says so. */
class FakeProcess extends PeerProcess {
  #exited = false;
  readonly #waiting = new Set<() => void>();

  constructor() {
    super(ownIdentity(), undefined);
  }
  override hasExited(): boolean {
    return this.#exited;
  }
  override onExit(callback: () => void): () => void {
    if (this.#exited) callback();
    else this.#waiting.add(callback);
    return () => this.#waiting.delete(callback);
  }
  exit(): void {
    this.#exited = true;
    for (const callback of [...this.#waiting]) callback();
    this.#waiting.clear();
  }
}

const PROCESSES = 3;
type Step =
  | { kind: "claim"; hold: number; process: number }
  | { kind: "write" | "ring" | "cancel"; claim: number }
  | { kind: "exit"; process: number }
  | { kind: "free"; hold: number };
const step: fc.Arbitrary<Step> = fc.oneof(
  fc.record({ kind: fc.constant("claim" as const), hold: fc.nat(1), process: fc.nat(PROCESSES - 1) }),
  fc.record({ kind: fc.constantFrom("write" as const, "ring" as const, "cancel" as const), claim: fc.nat(5) }),
  fc.record({ kind: fc.constant("exit" as const), process: fc.nat(PROCESSES - 1) }),
  fc.record({ kind: fc.constant("free" as const), hold: fc.nat(1) }),
);

test("a lease ends when each of its holders has released or exited, in any order", { timeout: 60_000 }, async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 25, size: "max" }), async (steps) => {
      const words = new WordPool();
      const processes = Array.from({ length: PROCESSES }, () => new FakeProcess());
      let ends = 0;
      const lease = newLease(1, () => ends++);
      const allocations = [new FakeAllocation(), new FakeAllocation()];
      const holds: Hold[] = allocations.map((allocation) => holdFor(lease, allocation));
      const isFreed = [false, false];
      const exited = new Set<number>();
      const claims: { claim: Claim; hold: number; process: number; written: boolean; rung: boolean; gone: boolean }[] = [];
      const add = (hold: number, process: number) => {
        if (holds[hold].isEnded) return; // the owner refuses
        const claim = holds[hold].add(words.take("release"), processes[process], () => {});
        claims.push({ claim, hold, process, written: false, rung: false, gone: exited.has(process) });
      };
      // What the message was sent to
      add(0, 0);
      add(1, 0);
      leaseSent(lease);

      for (const step of steps) {
        const chosen = "claim" in step ? claims[step.claim % claims.length] : undefined;
        if (step.kind === "claim") add(step.hold, step.process);
        else if (step.kind === "exit") {
          exited.add(step.process);
          for (const other of claims) if (other.process === step.process && !other.claim.isEnded) other.gone = true;
          processes[step.process].exit();
        } else if (step.kind === "free") {
          if (!isFreed[step.hold]) allocations[step.hold].release();
          isFreed[step.hold] = true;
        } else if (step.kind === "write") {
          const { slot } = chosen!.claim;
          if (!chosen!.claim.isEnded && !exited.has(chosen!.process)) {
            slot.word.store(slot.value);
            chosen!.written = true;
          }
        } else if (step.kind === "ring") {
          chosen!.rung = true;
          chosen!.claim.watchWord();
        } else if (!chosen!.claim.isEnded) {
          chosen!.claim.cancel();
          chosen!.written = chosen!.rung = true;
        }
        if (claims.some(({ claim, written, rung }) => written && rung && !claim.isEnded)) await sleep(30);

        for (const { claim, written, rung, gone } of claims) assertEquals(claim.isEnded, gone || (written && rung));
        holds.forEach((hold, index) => {
          const own = claims.filter((claim) => claim.hold === index);
          assertEquals(hold.isEnded, own.every(({ claim }) => claim.isEnded));
          assertEquals(allocations[index].isBack, hold.isEnded && isFreed[index]);
        });
        assertEquals(lease.isReleased, holds.every((hold) => hold.isEnded));
        assertEquals(ends, lease.isReleased ? 1 : 0);
        if (lease.isReleased) {
          const wasLost = claims.some(({ gone, written }) => gone && !written);
          assertEquals(lease.outcome, wasLost ? "peer-gone" : "released");
        }
        for (const { claim: { slot }, gone, written } of claims) {
          // Nobody's word is touched before its process has exited
          if (!gone) assert(slot.word.block.words.length === 0 || slot.word.load() < BROKEN);
          else if (!written && slot.word.block.words.length > 0) assert(slot.word.load() >= slot.value);
        }
      }
      for (const process of processes) process.exit();
      assert(lease.isReleased);
      allocations.forEach((allocation, index) => {
        if (!isFreed[index]) allocation.release();
        assert(allocation.isBack);
      });
      words.close();
    }),
    { numRuns: 60 },
  );
});

const BYTES = 4096;
type Action = { kind: "allocate" | "send" | "free" | "receive" | "release" | "freeOne" | "close"; index: number };
const action: fc.Arbitrary<Action> = fc.record({
  kind: fc.constantFrom(
    "allocate",
    "allocate",
    "send",
    "send",
    "send",
    "free",
    "receive",
    "receive",
    "release",
    "freeOne",
    "close",
  ),
  index: fc.nat(7),
});

test("over a channel, a pool holds exactly what is not freed or not released", { timeout: 60_000 }, async () => {
  using folder = makeFolder();
  await fc.assert(
    fc.asyncProperty(fc.array(action, { minLength: 10, maxLength: 40, size: "max" }), async (actions) => {
      using pool = MemoryPool.create(device, { ipc: true });
      await using server = IpcServer.listen(`${folder.path}/socket`, { device });
      const [theirs, ours] = await Promise.all([IpcChannel.connect(server.path, { device }), server.accept()]);
      const buffers: { buffer: DeviceBuffer; leases: number }[] = [];
      const sent: { lease: Lease; of: typeof buffers }[] = [];
      const received: { message: IpcMessage; of: typeof buffers; freed: Set<number> }[] = [];
      let isClosed = false;
      const expected = () => BYTES * buffers.filter(({ buffer, leases }) => !buffer.isFreed || leases > 0).length;
      for (const { kind, index } of [...actions, { kind: "close", index: 0 }]) {
        const open = buffers.filter(({ buffer }) => !buffer.isFreed);
        const { message, of, freed } = received[index % received.length] ?? { of: [] };
        if (kind === "allocate") buffers.push({ buffer: pool.allocate(BYTES, { stream }), leases: 0 });
        else if (kind === "send" && open.length > 0 && !isClosed) {
          const chosen = [open[index % open.length], open[(index + 1) % open.length]];
          const [{ buffer: a }, { buffer: b }] = chosen;
          sent.push({ lease: await ours!.send({ buffers: { a, b } }, { after: stream }), of: chosen });
          for (const one of chosen) one.leases++;
        } else if (kind === "free" && open.length > 0) open[index % open.length].buffer.free({ stream });
        else if (kind === "receive" && received.length < sent.length && !isClosed) {
          received.push({
            message: await theirs.receive({ stream }),
            of: sent[received.length].of,
            freed: new Set(),
          });
        } else if (kind === "release" && message !== undefined) {
          await message.release();
          of.forEach((one, place) => freed!.has(place) || one.leases--);
          of.forEach((_, place) => freed!.add(place));
        } else if (kind === "freeOne" && message !== undefined) {
          message.buffers.a.free({ stream });
          if (!freed!.has(0)) of[0].leases--;
          freed!.add(0);
        } else if (kind === "close" && !isClosed) {
          isClosed = true;
          await theirs.closeAsync();
          // What nobody has received is released; what was received stays
          for (const { of } of sent.slice(received.length)) for (const one of of) one.leases--;
        }
        for (let tries = 0; tries < 300 && pool.attributes.usedBytes !== expected(); tries++) await sleep(1);
        assertEquals(pool.attributes.usedBytes, expected(), kind);
      }
      for (const { message } of received) await message.release();
      await Promise.all(sent.map(({ lease }) => lease.released));
      for (const { buffer } of buffers) buffer.free({ stream });
      assertEquals(pool.attributes.usedBytes, 0);
      await ours!.closeAsync();
    }),
    { numRuns: 25 },
  );
});
