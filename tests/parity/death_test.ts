/** Processes that are killed while their work goes on. Rows DEATH-… of docs/driver-behaviour.md. */
import { test } from "node:test";
import { assert, assertEquals } from "@std/assert";
import { MiB, shareAllocation, shareRegistered, sleep, startLocal, startPeer } from "./harness.ts";

test("DEATH-01 a killed importer writes nothing more once its exit is seen", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const byteLength = 64 * MiB;
  const { address, imported } = await shareAllocation(exporter, importer, { byteLength, value: 1 });
  // Its work goes on for a second after the kill, and writes all the time
  for (let round = 0; round < 100; round++) {
    await importer.host("keepBusy", importer.stream, 10);
    await importer.do("memsetD8Async", imported.address, 0xee, byteLength, importer.stream);
  }
  await sleep(30);
  await importer.kill();

  await exporter.fill(address, 2, byteLength);
  const end = performance.now() + 1500;
  while (performance.now() < end) {
    for (const part of [0, 0.25, 0.5, 0.75]) {
      assertEquals(await exporter.byteAt(address + BigInt(part * byteLength) + 777n), 2, "the work of a dead process went on");
    }
    await sleep(5);
  }
});

test("DEATH-02 a stream that waits for a killed process's fence waits on, and a store of the host frees it", async () => {
  await using signaller = await startPeer();
  await using waiter = await startPeer(); // not this process, whose stream could be lost
  const { one, other } = await shareRegistered(signaller, waiter);
  await waiter.do("streamWaitValue64", waiter.stream, other.device, 5n, 0);
  await waiter.do("streamWriteValue64", waiter.stream, other.device + 8n, 1n, 0);
  await signaller.do("streamWriteValue64", signaller.stream, one.device, 4n, 0);
  await signaller.synchronize();
  assertEquals(await waiter.code("streamQuery", waiter.stream), 600);
  await signaller.kill();
  await sleep(200);
  assertEquals(await waiter.code("streamQuery", waiter.stream), 600);
  await waiter.host("storeWord", other.host, 5n);
  const start = performance.now();
  await waiter.synchronize();
  assert(performance.now() - start < 1000, "the stream went on soon");
  assertEquals(await waiter.host("loadWord", other.host + 8n), 1n);
});
