/**
 * Nothing is lost by many cycles of allocate, export, import and free. CUDA_IPC_TEST_CYCLES says how many; the full
 * number is 10,000, with which process memory is looked at too.
 */
import process from "node:process";
import { test } from "node:test";
import { assertEquals, assertLess } from "@std/assert";
import { currentRuntime, type Runtime, skipWithout } from "../helpers/runtimes.ts";
import { type Allocators, KINDS, openAllocators } from "./allocators.ts";
import { assertNoFdLeft, countFds, type Peer, startPeer } from "./peer.ts";

const CYCLES = Number(process.env.CUDA_IPC_TEST_CYCLES ?? 200);
const FULL_CYCLES = 10_000;
const BATCH = 20;
const LENGTH = 100_000;
const ALLOWED_GROWTH_BYTES = 2 * 1024 * 1024;

/** The optimizing compilers and young generations take megabytes while the loops get hot, which are no leak. */
function startFrugalPeer(runtime: Runtime): Promise<Peer> {
  const flags = runtime === "deno" ? ["-A", "--v8-flags=--no-opt,--max-semi-space-size=1"] : undefined;
  return startPeer(runtime, { BUN_JSC_useFTLJIT: "0" }, { timeoutMs: 200_000, flags });
}

async function introduce({ pool, hosts }: Allocators, peer: Peer): Promise<void> {
  using handle = pool.exportHandle();
  await peer.ask({ do: "importPool", name: "pool", id: pool.id }, [handle.fd]);
  using hostHandle = hosts.exportHandle();
  await peer.ask({ do: "importHostPool", name: "host", id: hosts.id, withDevice: true }, [hostHandle.fd]);
}

/** A figure that other processes' contexts and the driver's own work change for a while. */
async function settled(look: () => number): Promise<number> {
  let value = look();
  for (let equal = 0; equal < 10; equal++) {
    await new Promise((resolve) => setTimeout(resolve, 30));
    const next = look();
    if (next !== value) equal = -1;
    value = next;
  }
  return value;
}

for (const runtime of ["deno", "bun"] as const) {
  const kinds = KINDS.join(", ");
  test(`${CYCLES} cycles of ${kinds} memory from ${currentRuntime} to ${runtime}`, { skip: skipWithout(runtime) }, async () => {
    using here = openAllocators();
    await using peer = await startPeer(runtime, {}, { timeoutMs: 200_000 });
    await introduce(here, peer);
    for (const kind of KINDS) {
      const cycle = async (): Promise<void> => {
        const buffers = Array.from({ length: BATCH }, () => here.allocate(kind, LENGTH));
        const descriptors = buffers.map((buffer) => buffer.ipcDescriptor);
        const handles = kind === "virtual" ? buffers.flatMap((buffer) => buffer.exportHandles()) : [];
        await peer.ask({ do: "openAndFree", pool: kind, descriptors }, handles.map(({ fd }) => fd));
        for (const handle of handles) handle.close();
        for (const buffer of buffers) await buffer.closeAsync();
      };
      const settledBytes = async (): Promise<number> => {
        await here.finished();
        here.trim();
        return await settled(() => here.device.memoryInfo().freeBytes);
      };
      for (let i = 0; i < 5; i++) await cycle(); // what is made once is no leak
      const fds = { own: countFds(), peer: await peer.ask({ do: "fds" }) };
      const freeBytes = await settledBytes();
      for (let done = 0; done < CYCLES; done += BATCH) await cycle();
      assertEquals(await peer.ask({ do: "fds" }), fds.peer, kind);
      await assertNoFdLeft(fds.own);
      assertEquals(await settledBytes(), freeBytes, kind);
    }
    await peer.end();
  });
}

for (const kind of KINDS) {
  for (const runtime of ["deno", "bun"] as const) {
    const few = CYCLES < FULL_CYCLES ? "the first cycles show the runtime's own growth" : false;
    test(`${runtime}'s memory after many cycles of ${kind} memory`, { skip: few || skipWithout(runtime) }, async () => {
      using here = openAllocators();
      await using exporter = await startFrugalPeer(runtime);
      await using importer = await startFrugalPeer(runtime);
      await introduce(here, importer);
      const buffer = here.allocate(kind, LENGTH);
      const { ipcDescriptor: descriptor } = buffer;
      const repeat = async (count: number): Promise<void> => {
        await exporter.ask({ do: "repeatExport", kind, byteLength: LENGTH, count });
        const handles = kind === "virtual" ? buffer.exportHandles() : [];
        await importer.ask({ do: "repeat", pool: kind, descriptor, count }, handles.map(({ fd }) => fd));
        for (const handle of handles) handle.close();
      };
      const measure = async (): Promise<number[]> => [
        await exporter.ask({ do: "memory" }),
        await importer.ask({ do: "memory" }),
      ];
      await repeat(1000);
      let before = await measure();
      let grown: number[] = [];
      // A heap may settle late: then the same number of cycles again must not grow it
      for (let round = 0; round < 2; round++) {
        await repeat(CYCLES - 1000);
        const after = await measure();
        grown = after.map((bytes, index) => bytes - before[index]);
        if (Math.max(...grown) < ALLOWED_GROWTH_BYTES) break;
        before = after;
      }
      assertLess(Math.max(...grown), ALLOWED_GROWTH_BYTES, `the exporter and the importer have grown by ${grown} bytes`);
      await buffer.closeAsync();
      await exporter.end();
      await importer.end();
    });
  }
}
