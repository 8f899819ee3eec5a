/** Two processes that take turns on one device. Rows PING-… of docs/driver-behaviour.md, which has their times. */
import { test } from "node:test";
import { assert, assertEquals } from "@std/assert";
import { MiB, PAGE, passFd, type Session, shareAllocation, shareRegistered, startPeer } from "./harness.ts";

test("PING-01 interprocess events hand a buffer over, both ways", async () => {
  await using first = await startPeer();
  await using second = await startPeer();
  const rounds = 50;
  const { address, imported } = await shareAllocation(first, second);
  const log = await second.allocatePlain();
  const [toSecond, toFirst] = [await first.createIpcEvent(), await second.createIpcEvent()];
  const fromFirst = await second.openEvent(await first.eventHandle(toSecond));
  const fromSecond = await first.openEvent(await second.eventHandle(toFirst));
  await first.host("keepBusy", first.stream, 50);
  for (let round = 1; round <= rounds; round++) {
    await first.do("memsetD8Async", address, round, 1, first.stream);
    await first.do("eventRecord", toSecond, first.stream);
    await second.do("streamWaitEvent", second.stream, fromFirst, 0);
    await second.do("memcpyDtoDAsync", log + BigInt(round), imported.address, 1, second.stream);
    await second.do("eventRecord", toFirst, second.stream);
    await first.do("streamWaitEvent", first.stream, fromSecond, 0);
  }
  assertEquals([await first.isFinished(), await second.isFinished()], [true, true]);
  for (let round = 1; round <= rounds; round++) assertEquals(await second.byteAt(log + BigInt(round)), round);
});

/** Words at both addresses, 0 to begin with; each side has its own buffer to fill. */
async function assertFencesAlternate(first: Session, words: bigint, second: Session, alias: bigint): Promise<void> {
  const rounds = 100;
  const [own, other] = [await first.allocatePlain(), await second.allocatePlain()];
  const codes = await Promise.all([
    first.host("enqueueFenceRounds", first.stream, own, words, words + 64n, rounds, true),
    second.host("enqueueFenceRounds", second.stream, other, alias + 64n, alias, rounds, false),
  ]);
  assertEquals(codes, [0, 0]);
  assertEquals(await Promise.all([first.isFinished(), second.isFinished()]), [true, true]);
  assertEquals([await first.byteAt(words), await first.byteAt(words + 64n)], [rounds, rounds]);
}

test("PING-03 fences alternate without a host in between: physical, plain and registered memory", async () => {
  await using first = await startPeer();
  await using second = await startPeer();
  const physical = await first.createVirtual(2 * MiB);
  const fd = await passFd(first, await first.exportVirtual(physical), second);
  const mapped = await first.mapVirtual([physical], 2 * MiB);
  await first.fill(mapped, 0);
  await assertFencesAlternate(first, mapped, second, await second.mapVirtual([await second.importVirtual(fd)], 2 * MiB));

  const plain = await first.allocatePlain();
  await first.fill(plain, 0);
  await assertFencesAlternate(first, plain, second, await second.openMemHandle(await first.memHandle(plain)));

  const { one, other } = await shareRegistered(first, second);
  await assertFencesAlternate(first, one.device, second, other.device);
});

test("PING-04 each host sees the other stream's fence, and lets its own stream answer", async () => {
  await using first = await startPeer();
  await using second = await startPeer();
  const { one, other } = await shareRegistered(first, second);
  const [own, theirs] = [await first.allocatePlain(), await second.allocatePlain()];
  const codes = await Promise.all([
    first.host("answerByStream", first.stream, own, one.device, one.host + 64n, 100, true),
    second.host("answerByStream", second.stream, theirs, other.device + 64n, other.host, 100, false),
  ]);
  assertEquals(codes, [0, 0]);
});

test("PING-05 a host sees a stream's fence, and answers by a plain store", async () => {
  await using first = await startPeer();
  await using second = await startPeer();
  const { one, other } = await shareRegistered(first, second, PAGE);
  const [code] = await Promise.all([
    first.host("askByStream", first.stream, one.device, one.host + 64n, 100),
    second.host("answerWords", other.host, other.host + 64n, 100),
  ]);
  assertEquals(code, 0);
  assert(await first.isFinished());
});
