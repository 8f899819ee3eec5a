/** The only place that turns a CUresult into an error. */
import { CudaDriverError, OutOfMemoryError } from "../errors.ts";
import { CUDA_ERROR_OUT_OF_MEMORY, RESULT_NAMES } from "./results.ts";

const NO_LEGACY = "Legacy handles do not work on MIG slices, on WSL2 and on integrated devices. Use pools";
const NO_EVENTS = "Interprocess events do not work on MIG slices, on WSL2 and on integrated devices. Use fences";

/** Likely causes, by call and code ("*" for any call), from what was measured and what users reported. */
const HINTS: ReadonlyMap<string, string> = new Map([
  ["* 3", "The driver was not initialized in this process: a forked child without exec cannot use CUDA"],
  ["* 4", "The driver is shutting down: the process is exiting"],
  ["* 46", "The device is in exclusive or prohibited compute mode, or all are busy: check nvidia-smi -q -d COMPUTE"],
  ["* 100", "No device is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES"],
  ["* 101", "No such device is visible here: check CUDA_VISIBLE_DEVICES in both processes"],
  ["* 201", "No context is current on this thread, or the handle was made by this same process"],
  ["* 304", "The operating system refused: in a container, check that /proc is the container's own"],
  ["* 500", "This driver is too old to have the function: install a newer one"],
  ["* 719", "A kernel failed before; the context is lost: restart the process"],
  [
    "* 800",
    "Not permitted here: fabric handles need an IMEX channel. Run nvidia-imex, or load the nvidia module with " +
    "NVreg_CreateImexChannel0=1; in a container, /dev/nvidia-caps-imex-channels must be there",
  ],
  ["* 803", "The installed driver is older than what this process needs"],
  ["cuIpcOpenEventHandle 205", "Both processes must see the same /dev/shm; in a container, mount the host's or use fences"],
  ["cuIpcOpenMemHandle 1", "The handle is not one, or its memory was freed"],
  ["cuIpcGetMemHandle 1", "Pool memory, managed memory and virtual memory have no legacy handle"],
  ["cuIpcGetMemHandle 400", NO_LEGACY],
  ["cuIpcGetMemHandle 801", NO_LEGACY],
  ["cuIpcGetEventHandle 400", NO_EVENTS],
  ["cuIpcGetEventHandle 801", NO_EVENTS],
  ["cuMemPoolCreate 1", "On WSL2 pools cannot be shared although the device says so"],
  ["cuMemPoolCreate 801", "The device has no memory pools, or not with this kind of handle"],
  ["cuMemPoolImportFromShareableHandle 999", "The file descriptor is closed, or is not a pool's"],
  ["cuMemPoolImportFromShareableHandle 801", "The file descriptor is not a pool's"],
  ["cuMemImportFromShareableHandle 801", "The handle is not virtual memory's; one of the fabric needs an IMEX channel"],
  ["cuMemPoolImportPointer 1", "The descriptor belongs to another pool, or its bytes are damaged"],
  ["cuMemSetAccess 2", "With free memory left: the process has too many mappings; use fewer, larger ones"],
]);

/** The code's name in cuda.h; a newer driver may know codes that this module does not. */
export function resultName(code: number): string {
  return RESULT_NAMES.get(code) ?? `CUDA_ERROR_${code}`;
}

/**
 * Throws unless `result` is CUDA_SUCCESS. `call` is the driver function; `subject` is what it was about: a text, or an
 * object whose `toString` is asked only on failure, so that the good path builds no string.
 */
export function check(result: number, call: string, subject?: { toString(): string }): void {
  if (result !== 0) throw driverError(result, call, subject);
}

function driverError(code: number, call: string, subject: { toString(): string } | undefined): CudaDriverError {
  const name = resultName(code);
  const hint = HINTS.get(`${call} ${code}`) ?? HINTS.get(`* ${code}`);
  const about = subject === undefined ? "" : ` for ${subject}`;
  const message = `${call} failed${about}: ${name} (${code})${hint === undefined ? "" : `. ${hint}`}`;
  const options = { code, resultName: name, call, hint };
  return code === CUDA_ERROR_OUT_OF_MEMORY ? new OutOfMemoryError(message, options) : new CudaDriverError(message, options);
}
