/** Chooses the driver by name, never silently. */
import { environmentVariable } from "../../ffi/mod.ts";
import { InvalidArgumentError } from "../errors.ts";
import { check } from "./check.ts";
import type { CudaDriver } from "./driver.ts";
import { createNativeDriver } from "./native.ts";
import { createSimulator } from "./simulator/mod.ts";

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
export function openDriver(name?: DriverName): CudaDriver {
  const chosen = name ?? environmentVariable("CUDA_IPC_DRIVER") ?? "cuda";
  if (chosen !== "cuda" && chosen !== "simulator") {
    throw new InvalidArgumentError(`Cannot open the driver "${chosen}", expected "cuda" or "simulator"`);
  }
  const known = opened.get(chosen);
  if (known !== undefined) return known;
  const driver = chosen === "cuda" ? createNativeDriver(environmentVariable("CUDA_IPC_LIBCUDA")) : createSimulator();
  check(driver.init(0), "cuInit");
  opened.set(chosen, driver);
  return driver;
}

/** Whether `value` is a driver that `openDriver` gave in this thread. */
export function isOpenDriver(value: unknown): value is CudaDriver {
  return [...opened.values()].some((driver) => driver === value);
}
