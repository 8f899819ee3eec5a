/** Names and the start. Rows SMALL-01 and SMALL-07 of docs/driver-behaviour.md. */
import { test } from "node:test";
import { assert, assertEquals } from "@std/assert";
import { isOnGpu, PAGE, startLocal, startPeer } from "./harness.ts";

test("SMALL-01 the names that cuda.h maps to are the ones that work", async () => {
  await using session = await startLocal();
  const word = await session.register(await session.host("mapShared", await session.host("createShared", PAGE), PAGE), PAGE);
  assertEquals(await session.code("streamWriteValue64", session.stream, word, 0n, 0), 0);
  assertEquals(await session.code("streamWaitValue64", session.stream, word, 0n, 0), 0);
  if (!isOnGpu) return; // the simulator has no plain names
  assertEquals(await session.host("callByName", "cuStreamWriteValue64", session.stream, word, 0n, 0n), 801);
  assertEquals(await session.host("callByName", "cuStreamWaitValue64", session.stream, word, 0n, 0n), 801);
});

test("SMALL-07 a fresh process starts the driver and has a context", async () => {
  await using peer = await startPeer({ context: false });
  assertEquals(await peer.code("init", 0), 0);
  assert((await peer.do("devicePrimaryCtxRetain", 0)).address !== 0n);
});
