/** Threads of one process share one simulated driver; the current context is each thread's own. */
import { test } from "node:test";
import { assert, assertEquals } from "@std/assert";
import { local } from "./local.ts";
import { address, size } from "./session.ts";
import { Thread } from "./thread.ts";

const MiB = 2 ** 20;

test("a thread uses the objects of another, and sees its work", async () => {
  const { session, occupyStream } = local();
  await using thread = await Thread.start();
  const stream = await session.start();
  const pool = await session.createPool();
  const pointer = await session.allocate(pool, MiB, stream);
  occupyStream(stream, 300);
  await session.fill(pointer, 4, MiB, stream);
  assertEquals(await thread.code("streamQuery", address(stream)), 600);
  assert(await thread.isFilled(pointer, 4, MiB, stream));
  const theirs = await thread.allocate(pool, MiB, stream);
  await thread.fill(theirs, 5, MiB, stream);
  assert(await session.isFilled(theirs, 5, MiB, stream));
  await thread.do("memFreeAsync", address(pointer), address(stream));
  await session.do("streamSynchronize", address(stream));
  assertEquals(await session.code("memFree", address(pointer)), 1);
  await session.do("memFree", address(theirs));
  await thread.do("memPoolDestroy", address(pool));
  assertEquals(await session.code("memPoolDestroy", address(pool)), 1);
  await session.do("streamDestroy", address(stream));
});

test("a thread without a current context: what works and what gives 201", async () => {
  const { session } = local();
  await using thread = await Thread.start();
  const stream = await session.start();
  const pool = await session.createPool();
  const pointer = await session.allocate(pool, 4096, stream);
  const event = (await session.do("eventCreate", 2 | 4)).address;
  const host = (await session.do("memHostAlloc", size(4096), 0)).address;
  await session.exportPool(pool).then((fd) => session.do("closeFd", fd));

  assertEquals((await thread.do("ctxGetCurrent")).address, 0n);
  for (
    const [method, ...args] of [
      ["streamSynchronize", address(stream)],
      ["streamQuery", address(stream)],
      ["eventRecord", address(event), address(stream)],
      ["streamWaitEvent", address(stream), address(event), 0],
      ["eventSynchronize", address(event)],
      ["eventQuery", address(event)],
      ["memsetD8Async", address(pointer), 1, size(16), address(stream)],
      ["memcpyDtoHAsync", address(host), address(pointer), size(16), address(stream)],
      ["memPoolExportPointer", address(pointer)],
      ["memPoolTrimTo", address(pool), size(0)],
    ] as const
  ) assertEquals(await thread.code(method, ...args), 0, method);
  const another = await thread.allocate(pool, 4096, stream);
  await thread.do("memFreeAsync", address(another), address(stream));
  for (
    const [method, ...args] of [
      ["eventCreate", 0],
      ["streamCreateWithPriority", 1, 0],
      ["memAlloc", size(4096)],
      ["memHostAlloc", size(4096), 0],
      ["memGetInfo"],
      ["ipcGetEventHandle", address(event)],
      ["memsetD8Async", address(pointer), 1, size(16), address(0n)],
    ] as const
  ) assertEquals(await thread.code(method, ...args), 201, method);

  const context = (await session.do("ctxGetCurrent")).address;
  await thread.do("ctxSetCurrent", address(context));
  await thread.do("eventCreate", 0).then(({ address: made }) => thread.do("eventDestroy", address(made)));
  await session.do("memFree", address(pointer));
  await session.do("memFreeHost", address(host));
  await session.do("memPoolDestroy", address(pool));
  await session.do("eventDestroy", address(event));
  await session.do("streamDestroy", address(stream));
});

test("a blocked thread lets others call", async () => {
  const { session, occupyStream } = local();
  await using thread = await Thread.start();
  const stream = await session.start();
  occupyStream(stream, 1000);
  thread.post("streamSynchronize", address(stream));
  const start = performance.now();
  for (let calls = 0; calls < 20; calls++) assertEquals(await session.code("streamQuery", address(stream)), 600);
  assert(performance.now() - start < 900);
  await session.do("streamSynchronize", address(stream));
  await session.do("streamDestroy", address(stream));
});

test("threads that call at once, and threads that are terminated in a call, leave a working driver", async () => {
  const { session, control } = local();
  const stream = await session.start();
  const pool = await session.createPool();
  const before = control.report().liveObjects.poolAllocations;
  const threads = await Promise.all([Thread.start(), Thread.start()]);
  await Promise.all(threads.map(async (thread) => {
    for (let round = 0; round < 50; round++) {
      const pointer = await thread.allocate(pool, 64 * 1024, stream);
      await thread.fill(pointer, 1, 64 * 1024, stream);
      await thread.do("memFreeAsync", address(pointer), address(stream));
    }
  }));
  await session.do("streamSynchronize", address(stream));
  assertEquals(control.report().liveObjects.poolAllocations, before);

  for (const thread of threads) {
    for (let calls = 0; calls < 200; calls++) thread.post("streamQuery", address(stream));
  }
  await Promise.all(threads.map((thread) => thread[Symbol.asyncDispose]()));
  await session.do("streamSynchronize", address(stream));
  await session.do("memPoolDestroy", address(pool));
  await session.do("streamDestroy", address(stream));
});
