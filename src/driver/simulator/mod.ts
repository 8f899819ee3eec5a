/** The driver without a GPU: devices, memory and streams in TypeScript, over shared memory of the operating system. */
import type { CudaDriver } from "../driver.ts";
import { readMachine } from "./machine.ts";
import { SimulatedDriver } from "./simulator.ts";
import { ProcessState } from "./state.ts";
import { World } from "./world.ts";

/** Opens the simulator for this thread. All threads of a process share one simulated driver. */
export function createSimulator(): CudaDriver {
  return new SimulatedDriver(new World(readMachine(), ProcessState.open()));
}
