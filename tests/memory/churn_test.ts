/**
 * Nothing is lost by many cycles of allocate, export, import and free. CUDA_IPC_TEST_CYCLES says how many; the full
 * number is 10,000, from which on process memory is looked at too.
 */
import process from "node:process";
import { test } from "node:test";
import { assert, assertEquals } from "@std/assert";
import { Device, type DeviceBuffer, HostPool, legacy, MemoryPool, VirtualMemory } from "../../mod.ts";
import { collectGarbage } from "../helpers/garbage.ts";
import { currentRuntime, skipWithout } from "../helpers/runtimes.ts";
import { assertNoFdLeft, countFds, startPeer } from "./peer.ts";

const CYCLES = Number(process.env.CUDA_IPC_TEST_CYCLES ?? 200);
const FULL_CYCLES = 10_000;
const BATCH = 20;
const LENGTH = 100_000;
const ALLOWED_GROWTH_BYTES = 2 * 1024 * 1024;

async function ownMemory(): Promise<number> {
  for (let i = 0; i < 3; i++) {
    collectGarbage();
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return process.memoryUsage().rss;
}

for (const kind of ["pool", "virtual", "host", "legacy"] as const) {
  for (const runtime of ["deno", "bun"] as const) {
    test(`${CYCLES} cycles of ${kind} memory from ${currentRuntime} to ${runtime}`, { skip: skipWithout(runtime) }, async () => {
      using device = Device.open(0);
      using stream = device.createStream();
      using pool = MemoryPool.create(device, { ipc: true });
      using hosts = HostPool.create(device, { ipc: true });
      const allocate = (): DeviceBuffer => {
        switch (kind) {
          case "pool":
            return pool.allocate(LENGTH, { stream });
          case "virtual":
            return VirtualMemory.allocate(device, LENGTH, { ipc: true, stream });
          case "host":
            return hosts.allocate(LENGTH, { stream });
          case "legacy":
            return legacy.allocate(device, LENGTH, { stream });
        }
      };
      await using peer = await startPeer(runtime);
      {
        using handle = pool.exportHandle();
        await peer.ask({ do: "importPool", name: "pool", id: pool.id }, [handle.fd]);
        using hostHandle = hosts.exportHandle();
        await peer.ask({ do: "importHostPool", name: "host", id: hosts.id, withDevice: true }, [hostHandle.fd]);
      }
      const cycle = async (): Promise<void> => {
        const buffers = Array.from({ length: BATCH }, allocate);
        const descriptors = buffers.map((buffer) => buffer.ipcDescriptor);
        const handles = kind === "virtual" ? buffers.flatMap((buffer) => buffer.exportHandles()) : [];
        await peer.ask({ do: "openAndFree", pool: kind, descriptors }, handles.map(({ fd }) => fd));
        for (const handle of handles) handle.close();
        for (const buffer of buffers) await buffer.closeAsync();
      };
      const state = async () => ({ own: await ownMemory(), peer: await peer.ask({ do: "memory" }) as number });

      await cycle(); // what is made once is no leak
      await state();
      await stream.finished();
      const fds = { own: countFds(), peer: await peer.ask({ do: "fds" }) };
      const { freeBytes } = device.memoryInfo();
      let done = BATCH;
      for (; done < Math.min(CYCLES / 10, 1000); done += BATCH) await cycle();
      const early = await state();
      for (; done < CYCLES; done += BATCH) await cycle();
      const late = await state();
      await stream.finished();
      assertEquals(await peer.ask({ do: "fds" }), fds.peer);
      await assertNoFdLeft(fds.own);
      assertEquals(device.memoryInfo().freeBytes, freeBytes);
      if (CYCLES >= FULL_CYCLES) {
        const grown = { own: late.own - early.own, peer: late.peer - early.peer };
        assert(Math.max(grown.own, grown.peer) < ALLOWED_GROWTH_BYTES, `memory has grown by ${JSON.stringify(grown)} bytes`);
      }
      await peer.end();
    });
  }
}
