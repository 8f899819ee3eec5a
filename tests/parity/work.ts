/** Work that keeps a stream busy for about a given time: fills of much memory on a GPU, time itself on the simulator. */
import { type Address, toSize } from "../../ffi/mod.ts";
import { check } from "../../src/driver/check.ts";
import type { CudaDriver } from "../../src/driver/driver.ts";
import { occupyStream } from "../../src/driver/simulator/mod.ts";

const MAX_FILL_BYTES = 8 * 2 ** 30;

/** Memory to fill, and how long one fill takes. */
interface Filler {
  readonly address: Address;
  readonly byteLength: number;
  readonly ms: number;
}
let filler: Filler | undefined;

export function keepBusy(driver: CudaDriver, stream: Address, ms: number): void {
  if (driver.kind === "simulator") return occupyStream(driver, stream, ms);
  filler ??= createFiller(driver, stream);
  for (let fills = Math.ceil(ms / filler.ms); fills > 0; fills--) fill(driver, filler, stream);
}

/** Allocates what keepBusy needs, before anything is measured. */
export function prepareBusy(driver: CudaDriver, stream: Address): void {
  if (driver.kind === "cuda") filler ??= createFiller(driver, stream);
}

/** Gives the memory back that the work needed. */
export function endBusy(driver: CudaDriver): void {
  if (filler !== undefined) driver.memFree(filler.address);
  filler = undefined;
}

function createFiller(driver: CudaDriver, stream: Address): Filler {
  check(driver.memGetInfo(), "cuMemGetInfo");
  // Few and large: only about a thousand pieces of work can be queued before the host has to wait
  const byteLength = Math.min(MAX_FILL_BYTES, Math.floor(driver.out.readNumber(0) / 4 / 2 ** 20) * 2 ** 20);
  check(driver.memAlloc(toSize(byteLength)), "cuMemAlloc");
  const memory = { address: driver.out.readAddress(0), byteLength, ms: 0 };
  const rounds = 8;
  let start = 0;
  for (let round = -2; round < rounds; round++) {
    if (round === 0) {
      check(driver.streamSynchronize(stream), "cuStreamSynchronize");
      start = performance.now();
    }
    fill(driver, memory, stream);
  }
  check(driver.streamSynchronize(stream), "cuStreamSynchronize");
  return { ...memory, ms: (performance.now() - start) / rounds };
}

function fill(driver: CudaDriver, { address, byteLength }: Filler, stream: Address): void {
  check(driver.memsetD8Async(address, 0, toSize(byteLength), stream), "cuMemsetD8Async");
}
