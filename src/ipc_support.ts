/** What can be shared from a device: the public words, and the hook by which the layer that knows how to probe gives them. */
import type { Context } from "./context.ts";

/** Whether one way of sharing works here. */
export interface IpcFeature {
  /** Whether it works: the device's attribute says so, and a real attempt has succeeded. */
  readonly isSupported: boolean;
  /** For a no: what is missing, in words. Null for a yes. */
  readonly reason: string | null;
}

/** What can be shared from a device. `device.ipcSupport()` gives it. */
export interface IpcSupport {
  /** Memory pools with `ipc`, by a file descriptor (on Windows a handle). */
  readonly pool: IpcFeature;
  /** Virtual memory with `ipc`, by file descriptors (on Windows handles). */
  readonly virtual: IpcFeature;
  /** Virtual memory with `fabric`, by handles that other nodes open too. */
  readonly fabric: IpcFeature;
  /** Events with `ipc`. */
  readonly event: IpcFeature;
  /** Fences that the GPU signals and waits for; without them the host does it. */
  readonly fence: IpcFeature;
  /** Legacy handles. */
  readonly legacy: IpcFeature;
  /** Pools of host memory in the driver; without them a HostPool uses registered shared memory. */
  readonly host: IpcFeature;
}

type Probe = (context: Context) => IpcSupport;
let probe: Probe;

/** memory/ipc_probe.ts knows how to try each. */
export function provideIpcProbe(provided: Probe): void {
  probe = provided;
}

/** The context is held. */
export function probeIpcSupport(context: Context): IpcSupport {
  return probe(context);
}
