/** Events that several processes share. Rows EVENT-… of docs/driver-behaviour.md. */
import { test } from "node:test";
import { assertEquals } from "@std/assert";
import { CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS } from "../../src/driver/enums.ts";
import { sleep, startLocal, startPeer } from "./harness.ts";

test("EVENT-01 an interprocess event cannot have timing", async () => {
  await using session = await startLocal();
  assertEquals(await session.code("eventCreate", CU_EVENT_INTERPROCESS), 1);
  assertEquals(await session.code("eventCreate", CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING), 0);
});

test("EVENT-02 neither an event of one process nor an imported one has a handle", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  assertEquals(await exporter.code("ipcGetEventHandle", await exporter.createEvent()), 400);
  const imported = await importer.openEvent(await exporter.eventHandle(await exporter.createIpcEvent()));
  assertEquals(await importer.code("ipcGetEventHandle", imported), 400);
});

test("EVENT-03 the process that made an event cannot open its handle", async () => {
  await using exporter = await startLocal();
  const handle = await exporter.eventHandle(await exporter.createIpcEvent());
  assertEquals(await exporter.code("ipcOpenEventHandle", handle), 201);
});

test("EVENT-04 garbage is no handle", async () => {
  await using importer = await startPeer();
  for (const byte of [0, 0xa5]) assertEquals(await importer.code("ipcOpenEventHandle", new Uint8Array(64).fill(byte)), 205);
});

test("EVENT-05 an event can be opened after its exporter has destroyed it", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const event = await exporter.createIpcEvent();
  await exporter.do("eventRecord", event, exporter.stream);
  const handle = await exporter.eventHandle(event);
  await exporter.do("eventDestroy", event);
  assertEquals(await importer.code("ipcOpenEventHandle", handle), 0);
});

test("EVENT-06 an event is done before its first record, and not while its work goes on", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const event = await exporter.createIpcEvent();
  const imported = await importer.openEvent(await exporter.eventHandle(event));
  assertEquals(await importer.code("eventQuery", imported), 0);
  await exporter.host("keepBusy", exporter.stream, 500);
  await exporter.do("eventRecord", event, exporter.stream);
  assertEquals(await importer.code("eventQuery", imported), 600);
  await importer.do("eventSynchronize", imported);
  assertEquals(await importer.code("eventQuery", imported), 0);
  assertEquals(await exporter.code("eventQuery", event), 0);
});

test("EVENT-07 the importer may record an event, and open it a second time", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const event = await exporter.createIpcEvent();
  const handle = await exporter.eventHandle(event);
  const imported = await importer.openEvent(handle);
  await importer.host("keepBusy", importer.stream, 500);
  assertEquals(await importer.code("eventRecord", imported, importer.stream), 0);
  assertEquals(await exporter.code("eventQuery", event), 600);
  await exporter.do("eventSynchronize", event);
  assertEquals(await importer.code("ipcOpenEventHandle", handle), 0);
});

test("EVENT-08 there is no time between imported events", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const handle = await exporter.eventHandle(await exporter.createIpcEvent());
  const [first, second] = [await importer.openEvent(handle), await importer.openEvent(handle)];
  assertEquals(await importer.code("eventElapsedTime", first, second), 400);
});

test("EVENT-09 plain and interprocess events are recorded alike", async () => {
  await using session = await startLocal();
  for (const event of [await session.createEvent(), await session.createIpcEvent()]) {
    for (let round = 0; round < 100; round++) assertEquals(await session.code("eventRecord", event, session.stream), 0);
    await session.do("eventSynchronize", event);
    assertEquals(await session.code("eventQuery", event), 0);
  }
});

test("EVENT-10 an unfinished event of a killed exporter never ends, nor does a stream that waits for it", async () => {
  await using exporter = await startPeer();
  await using importer = await startPeer(); // not this process, whose stream would be lost
  const event = await exporter.createIpcEvent();
  const imported = await importer.openEvent(await exporter.eventHandle(event));
  await exporter.host("keepBusy", exporter.stream, 1500);
  await exporter.do("eventRecord", event, exporter.stream);
  assertEquals(await importer.code("eventQuery", imported), 600);
  await importer.do("streamWaitEvent", importer.stream, imported, 0);
  await exporter.kill();

  const end = performance.now() + 2500;
  while (performance.now() < end) {
    assertEquals(await importer.code("eventQuery", imported), 600);
    assertEquals(await importer.code("streamQuery", importer.stream), 600);
    await sleep(50);
  }
  const fresh = await importer.createStream();
  assertEquals(await importer.code("streamWaitEvent", fresh, imported, 0), 0);
  assertEquals(await importer.code("streamQuery", fresh), 600);
  assertEquals(await importer.code("eventDestroy", imported), 0);
  await sleep(100);
  assertEquals(await importer.code("streamQuery", importer.stream), 600);
});
