/** Chooses the driver by name, never silently. */
import { environmentVariable } from "../../ffi/mod.ts";
import { invalid, type Text } from "../arguments.ts";
import { DriverNotFoundError, LibraryNotFoundError } from "../errors.ts";
import { check } from "./check.ts";
import type { CudaDriver, Driver } from "./driver.ts";
import { createNativeDriver } from "./native.ts";
import { createSimulator } from "./simulator/mod.ts";

export { simulatorControl } from "./simulator/mod.ts";
export type { SimulatorControl, SimulatorFault, SimulatorObjects, SimulatorReport } from "./simulator/mod.ts";

/** The names of the drivers. */
export type DriverName = "cuda" | "simulator";

const opened = new Map<DriverName, CudaDriver>();

/**
 * Opens a driver, once per thread: later calls give the same object. Without a name the environment variable
 * `CUDA_IPC_DRIVER` decides, else it is `"cuda"`; there is no silent fallback to the simulator.
 *
 * @throws {DriverNotFoundError} when libcuda cannot be opened.
 * @throws {InvalidArgumentError} for a name that is no driver's.
 */
export function openDriver(name?: DriverName): Driver {
  return open(name);
}

function open(name: DriverName | undefined): CudaDriver {
  try {
    return openNamed(name);
  } catch (cause) {
    if (!(cause instanceof LibraryNotFoundError)) throw cause;
    throw new DriverNotFoundError(`Cannot open a driver: ${cause.message}`, { cause }); // Deno without --allow-ffi
  }
}

function openNamed(name: DriverName | undefined): CudaDriver {
  const chosen = name === undefined ? environmentVariable("CUDA_IPC_DRIVER") ?? "cuda" : name;
  if (chosen !== "cuda" && chosen !== "simulator") {
    const where = name === undefined ? "the environment variable CUDA_IPC_DRIVER" : "name";
    throw invalid("open a driver", where, chosen, '"cuda" or "simulator"');
  }
  const known = opened.get(chosen);
  if (known !== undefined) return known;
  const driver = chosen === "cuda" ? createNativeDriver(environmentVariable("CUDA_IPC_LIBCUDA")) : createSimulator();
  check(driver.init(0), "cuInit");
  opened.set(chosen, driver);
  return driver;
}

/** The driver that a user's option names: what `openDriver` gave in this thread, or by default what it gives. */
export function chosenDriver(action: Text, driver: unknown): CudaDriver {
  if (driver === undefined) return open(undefined);
  const known = [...opened.values()].find((candidate) => candidate === driver);
  if (known === undefined) throw invalid(action, "driver", driver, "what openDriver() gives");
  return known;
}
