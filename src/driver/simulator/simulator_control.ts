/** The public face of the simulator's control: what it can do, what it takes, what it gives. */

/** What happens to a driver call. Exactly one of `code`, `kill` and `workMs` is given. */
export interface SimulatorFault {
  /** The driver function by its name in CUDA's documentation, such as `cuMemPoolCreate`, or `"*"` for any. */
  readonly call: string;
  /** The call does nothing and gives this CUresult. */
  readonly code?: number;
  /** The process dies of SIGKILL in the call, before it has done anything. */
  readonly kill?: true;
  /** The call works, and the work that it queues takes so many milliseconds. */
  readonly workMs?: number;
  /** Which call from now on is the first to be met; 1, the next one, by default. */
  readonly at?: number;
  /** How many calls are met; by default 1, or all when `at` is left out too. */
  readonly count?: number;
}

/** What a process has of the simulated driver. All threads of the process count together. */
export interface SimulatorReport {
  /** The name of the simulated machine: CUDA_IPC_SIM_MACHINE when the process opened the simulator first. */
  readonly machine: string;
  /** How many objects of each kind exist now. */
  readonly liveObjects: SimulatorObjects;
  /** Pieces of work that are queued and not done. */
  readonly pendingWork: number;
  /** How often each driver function was called, by its name. */
  readonly calls: Readonly<Record<string, number>>;
  /** How often each driver function had to wait for queued work, and so blocked its thread. */
  readonly blockedCalls: Readonly<Record<string, number>>;
}

/** How many objects of each kind a process has in the simulated driver. */
export interface SimulatorObjects {
  /** Devices whose primary context is retained. */
  readonly contexts: number;
  /** Streams, without the default ones. */
  readonly streams: number;
  /** Events that this process created. */
  readonly events: number;
  /** Events of other processes, as often as they were opened. */
  readonly importedEvents: number;
  /** Pools that this process created. */
  readonly pools: number;
  /** Pools of other processes; the driver has no way to close these. */
  readonly importedPools: number;
  /** Allocations from pools. */
  readonly poolAllocations: number;
  /** Mapped allocations of imported pools. */
  readonly poolImports: number;
  /** Allocations from cuMemAlloc. */
  readonly deviceAllocations: number;
  /** Open legacy handles. */
  readonly legacyImports: number;
  /** Allocations from cuMemHostAlloc. */
  readonly hostAllocations: number;
  /** Host memory that is registered. */
  readonly hostRegistrations: number;
  /** Physical memory from cuMemCreate, imported or mapped. */
  readonly physicalMemories: number;
  /** Ranges from cuMemAddressReserve. */
  readonly addressReservations: number;
  /** Mappings from cuMemMap. */
  readonly mappings: number;
}

/** What tests do with the simulator besides calling it. It concerns this process, in all of its threads. */
export interface SimulatorControl {
  /**
   * Makes calls fail, kill the process, or queue work that takes long.
   *
   * @throws {InvalidArgumentError} when the fault makes no sense.
   */
  injectFault(fault: SimulatorFault): void;
  /** Ends all injected faults, those from CUDA_IPC_SIM_FAULTS too. */
  clearFaults(): void;
  /** The device does nothing for so long, from now or from the end of an earlier such time: streams stay busy. */
  occupyDevice(ordinal: number, ms: number): void;
  /** The device's context is lost, as after a failed kernel: queued work is dropped, and every use gives `code` (719). */
  loseContext(ordinal: number, code?: number): void;
  /** Drops all queued work undone, such as waits that will never end. */
  dropWork(): void;
  /** What the process has now, and what it has called since it started or was reset. */
  report(): SimulatorReport;
  /**
   * Ends every object of the process, drops queued work and injected faults, and sets the counts to 0, as if the process
   * had just started. Nobody may use objects from before.
   */
  reset(): void;
}
