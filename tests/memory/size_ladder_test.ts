/** Importing kills no process, whatever the size: a pool's memory up to 4064 MiB, virtual memory above. */
import process from "node:process";
import { test } from "node:test";
import { assertEquals } from "@std/assert";
import { Device, MemoryPool } from "../../mod.ts";
import { skipWithout } from "../helpers/runtimes.ts";
import { runTestFile, skipOnGpu, startPeer } from "./peer.ts";

const MIB = 2 ** 20;
const GIB = 2 ** 30;
const LADDER: readonly (readonly [string, number, string])[] = [
  ["1 byte", 1, "pool"],
  ["4064 MiB", 4064 * MIB, "pool"],
  ["4064 MiB and a byte", 4064 * MIB + 1, "virtual"],
  ["4.1 GiB", Math.round(4.1 * GIB), "virtual"],
  ["5.2 GiB", Math.round(5.2 * GIB), "virtual"],
  ["5.3 GiB", Math.round(5.3 * GIB), "virtual"],
  ["8 GiB", 8 * GIB, "virtual"],
  ["64 GiB", 64 * GIB, "virtual"],
];
const [{ totalMemoryBytes }] = Device.list();
const isLarge = totalMemoryBytes > 65 * GIB;

for (const [name, byteLength, kind] of LADDER) {
  for (const runtime of ["deno", "bun"] as const) {
    const skip = isLarge ? skipWithout(runtime) : "the device is too small";
    test(`${name} goes to ${runtime}`, { skip }, async () => {
      using device = Device.open(0);
      using stream = device.createStream();
      using pool = MemoryPool.create(device, { ipc: true });
      using buffer = pool.allocate(byteLength, { stream });
      assertEquals(buffer.kind, kind);
      const places = [...new Set([0, Math.floor(byteLength / 2), byteLength - 1])];
      for (const place of places) buffer.subarray(place, place + 1).fill(1 + place % 200, { stream });
      await stream.finished();
      await using peer = await startPeer(runtime);
      using handle = pool.exportHandle();
      await peer.ask({ do: "importPool", name: "p", id: pool.id }, [handle.fd]);
      await peer.open("a", buffer.ipcDescriptor, kind === "virtual" ? buffer.exportHandles() : [], "p");
      for (const place of places) {
        assertEquals(await peer.ask({ do: "read", name: "a", byteOffset: place, byteLength: 1 }), [1 + place % 200]);
        await peer.ask({ do: "fill", name: "a", value: 222, byteOffset: place, byteLength: 1 });
        assertEquals(await buffer.read({ byteOffset: place, byteLength: 1, stream }), new Uint8Array([222]));
      }
      await peer.ask({ do: "free", name: "a" });
      await peer.end();
      await buffer.closeAsync();
    });
  }
}

test(
  "the whole ladder on a device that is large enough",
  { skip: skipOnGpu || (isLarge ? "this is that run" : false) },
  async () => {
    const { code, output } = await runTestFile(new URL(import.meta.url), {
      CUDA_IPC_SIM_MEMORY: "128GiB",
      CUDA_IPC_SIM_MACHINE: `ladder.${process.pid}`,
    });
    assertEquals(code, 0, output);
  },
);
