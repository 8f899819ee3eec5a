/**
 * What a user's own tests may do with the simulator, by the public API alone. A process of its own, because a reset ends
 * every object of the process.
 */
import { assert, assertEquals, assertThrows } from "../assert.ts";
import {
  Device,
  MemoryPool,
  openDriver,
  OutOfMemoryError,
  type SimulatorControl,
  simulatorControl,
  type SimulatorFault,
  type SimulatorObjects,
  type SimulatorReport,
} from "../../mod.ts";

const driver = openDriver("simulator");
const simulator: SimulatorControl = simulatorControl(driver);
const nothing: SimulatorObjects = simulator.report().liveObjects;

/** The user's tests, each with a simulator that is as new. */
async function example(body: () => Promise<void>): Promise<void> {
  await body();
  simulator.reset();
  const { liveObjects, pendingWork, calls, blockedCalls }: SimulatorReport = simulator.report();
  assertEquals({ liveObjects, pendingWork, calls, blockedCalls }, {
    liveObjects: nothing,
    pendingWork: 0,
    calls: {},
    blockedCalls: {},
  });
}

assert(Object.values(nothing).every((count) => count === 0), "a process starts with nothing");

await example(async () => {
  using device = Device.open(0, { driver });
  using stream = device.createStream();
  using pool = MemoryPool.create(device);
  using buffer = pool.allocate(4096, { stream });
  const fault: SimulatorFault = { call: "cuMemAllocFromPoolAsync", code: 2, at: 2 };
  simulator.injectFault(fault);
  using _second = pool.allocate(4096, { stream });
  assertThrows(() => pool.allocate(4096, { stream }), OutOfMemoryError);
  using _fourth = pool.allocate(4096, { stream });

  simulator.injectFault({ call: "cuMemsetD8Async", workMs: 100, at: 1 });
  buffer.fill(7, { stream });
  assertEquals(stream.isIdle, false);
  assert(simulator.report().pendingWork > 0);
  await stream.finished();
  assertEquals(await buffer.read({ stream }), new Uint8Array(4096).fill(7));
  assertEquals(simulator.report().blockedCalls, {}, "nothing blocked the event loop");
});

await example(async () => {
  const device = Device.open(0, { driver });
  const pool = MemoryPool.create(device);
  const stream = device.createStream();
  const [kept, leaked] = [pool.allocate(64, { stream }), pool.allocate(64, { stream })];
  await kept.closeAsync();
  await pool.closeAsync();
  const { poolAllocations, pools, contexts } = simulator.report().liveObjects;
  assertEquals({ poolAllocations, pools, contexts }, { poolAllocations: 1, pools: 1, contexts: 1 }, "what a leaking test shows");
  await leaked.closeAsync();
  await stream.closeAsync();
  await device.closeAsync();
  assertEquals(simulator.report().liveObjects, nothing, "what a tidy test shows");
  simulator.injectFault({ call: "cuMemPoolCreate", code: 2 });
});

await example(async () => {
  await using device = Device.open(0, { driver });
  await using stream = device.createStream();
  await using pool = MemoryPool.create(device); // the fault has gone with the reset
  await using buffer = pool.allocate(16, { stream });
  await buffer.write(new Uint8Array(16).fill(3), { stream });
  simulator.occupyDevice(0, 50);
  buffer.fill(4, { stream });
  assertEquals(stream.isIdle, false);
  assertEquals(await buffer.read({ stream }), new Uint8Array(16).fill(4));
});

console.log("done");
