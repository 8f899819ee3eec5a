/** The simulator of the test's own process. */
import process from "node:process";
import { addressFromBigInt } from "../../ffi/mod.ts";
import { occupyStream, type SimulatorControl, simulatorControl } from "../../src/driver/simulator/mod.ts";
import type { CudaDriver } from "../../src/driver/driver.ts";
import { openDriver } from "../../src/driver/mod.ts";
import { LocalSession } from "./session.ts";

// Other test runs on this computer must not count as users of our devices.
process.env.CUDA_IPC_SIM_MACHINE ??= `test${process.pid}`;

export interface Local {
  readonly session: LocalSession;
  readonly control: SimulatorControl;
  readonly machine: string;
  occupyStream(stream: bigint, ms: number): void;
}

/** Other test files of the process may have objects of their own: nothing is reset here. */
export function local(): Local {
  const driver = openDriver("simulator") as CudaDriver;
  const control = simulatorControl(driver);
  return {
    session: new LocalSession(driver),
    control,
    machine: control.report().machine,
    occupyStream: (stream, ms) => occupyStream(driver, addressFromBigInt(stream), ms),
  };
}
