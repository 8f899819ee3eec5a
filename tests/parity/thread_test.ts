/** What a thread without a current context may call. Rows THREAD-… of docs/driver-behaviour.md. */
import { test } from "node:test";
import { assertEquals } from "@std/assert";
import { CU_EVENT_DISABLE_TIMING, CU_STREAM_NON_BLOCKING } from "../../src/driver/enums.ts";
import { PAGE, startLocal, startThread } from "./harness.ts";

test("THREAD-01 what names a stream, an event, a pool or pool memory works on any thread", async () => {
  await using main = await startLocal();
  await using thread = await startThread();
  const { stream } = main;
  const pool = await main.createPool();
  await main.exportPool(pool);
  const address = await main.allocate(pool);
  await main.fill(address, 31);
  const event = await main.createEvent();

  assertEquals((await thread.do("ctxGetCurrent")).address, 0n);
  await thread.do("eventRecord", event, stream);
  await thread.do("streamWaitEvent", stream, event, 0);
  await thread.do("eventSynchronize", event);
  await thread.do("eventQuery", event);
  const own = (await thread.do("memAllocFromPoolAsync", PAGE, pool, stream)).address;
  await thread.do("memsetD8Async", own, 32, PAGE, stream);
  await thread.do("memcpyDtoDAsync", own, address, 1, stream);
  const target = await thread.host("allocate", 16);
  await thread.do("memcpyDtoHAsync", target, own, 2, stream);
  await thread.do("streamSynchronize", stream);
  await thread.do("streamQuery", stream);
  assertEquals(await thread.host("read", target, 2), Uint8Array.of(31, 32));
  await thread.do("memcpyHtoDAsync", own, target, 2, stream);
  await thread.do("memFreeAsync", own, stream);
  await thread.do("memPoolExportPointer", address);
  await thread.do("memPoolTrimTo", pool, 0);
});

test("THREAD-02 what makes something for a context, or asks for a handle, needs one: 201", async () => {
  await using main = await startLocal();
  await using thread = await startThread();
  const event = await main.createIpcEvent();
  assertEquals(await thread.code("eventCreate", CU_EVENT_DISABLE_TIMING), 201);
  assertEquals(await thread.code("streamCreateWithPriority", CU_STREAM_NON_BLOCKING, 0), 201);
  assertEquals(await thread.code("memAlloc", PAGE), 201);
  assertEquals(await thread.code("ipcGetEventHandle", event), 201);
});
