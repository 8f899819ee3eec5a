import type { CudaDriver } from "../driver.ts";
export function createSimulator(): CudaDriver {
  throw new Error("not yet");
}
