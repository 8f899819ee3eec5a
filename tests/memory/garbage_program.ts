/** Loses buffers of every kind, and waits until their memory is free again: see garbage_test.ts. */
import { DeviceBuffer } from "../../mod.ts";
import { collectGarbage } from "../helpers/garbage.ts";
import { KINDS, openAllocators } from "./allocators.ts";

const KEPT_BYTES = 4 * 1024 * 1024;

const here = openAllocators();
for (const kind of KINDS) here.allocate(kind, 100).free();
await here.finished();
const used = (): number => here.pool.attributes.usedBytes + here.hosts.attributes.usedBytes;
const { freeBytes } = here.device.memoryInfo();

function lose(): void {
  for (const kind of KINDS) {
    for (let i = 0; i < 3; i++) {
      const buffer = here.allocate(kind, 4_000_000);
      void buffer.ipcDescriptor;
      if (kind !== "host") DeviceBuffer.wrap(here.device, buffer.address, 100);
      buffer.subarray(0, 10);
    }
  }
}
lose();

for (let i = 0; i < 100; i++) {
  collectGarbage();
  await new Promise((resolve) => setTimeout(resolve, 20));
  await here.finished();
  // The driver keeps a little of what cuMemAlloc gave
  if (used() === 0 && here.device.memoryInfo().freeBytes >= freeBytes - KEPT_BYTES) {
    console.log("freed");
    break;
  }
}
here[Symbol.dispose]();
