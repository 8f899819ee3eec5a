/**
 * The driver without a GPU: devices, memory and streams in TypeScript, over shared memory of the operating system. For
 * machines that have no GPU, and for tests.
 *
 * @module
 */
import type { Address } from "../../../ffi/mod.ts";
import { InvalidArgumentError } from "../../errors.ts";
import type { CudaDriver, Driver } from "../driver.ts";
import type { Control } from "./control.ts";
import { readMachine } from "./machine.ts";
import type { SimulatorControl } from "./simulator_control.ts";
import { SimulatedDriver } from "./simulator.ts";
import { ProcessState } from "./state.ts";
import { World } from "./world.ts";

export type { SimulatorControl, SimulatorFault, SimulatorObjects, SimulatorReport } from "./simulator_control.ts";

/** Opens the simulator for this thread. All threads of a process share one simulated driver. */
export function createSimulator(): CudaDriver {
  const machine = readMachine();
  return new SimulatedDriver(new World(machine, ProcessState.open(machine.name)));
}

/**
 * What tests do with the simulator besides calling it: faults, busy devices, a report of what is left, a reset.
 *
 * @example A pool that cannot be created
 * ```ts
 * const driver = openDriver("simulator");
 * const simulator = simulatorControl(driver);
 * simulator.injectFault({ call: "cuMemPoolCreate", code: 2, at: 1 });
 * MemoryPool.create(Device.open(0, { driver })); // throws an OutOfMemoryError
 * ```
 *
 * @param driver The simulator, as `openDriver("simulator")` gives it.
 * @throws {InvalidArgumentError} when `driver` is not the simulator.
 */
export function simulatorControl(driver: Driver): SimulatorControl {
  return controlOf(driver);
}

/** Queues work on a stream, by its driver handle, that does nothing and takes so long. */
export function occupyStream(driver: Driver, stream: Address, ms: number): void {
  controlOf(driver).occupyStream(stream, ms);
}

function controlOf(driver: Driver): Control {
  if (driver instanceof SimulatedDriver) return driver.control;
  throw new InvalidArgumentError('Cannot control the simulator: the driver is not one, expected openDriver("simulator")');
}
