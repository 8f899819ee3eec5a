/** What tests do with the simulator: faults, reports, resets. */
import { test } from "node:test";
import { assert, assertEquals, assertThrows } from "@std/assert";
import { CALLS } from "../../src/driver/simulator/calls.ts";
import { parseFaults } from "../../src/driver/simulator/faults.ts";
import { simulatorControl } from "../../src/driver/simulator/mod.ts";
import { SimulatedDriver } from "../../src/driver/simulator/simulator.ts";
import { DRIVER_SYMBOLS } from "../../src/driver/symbols.ts";
import { InvalidArgumentError } from "../../src/errors.ts";
import { currentRuntime } from "../helpers/runtimes.ts";
import { local } from "./local.ts";
import { Peer } from "./peer.ts";
import { address, size } from "./session.ts";

test("every function of the driver is there, under its name", () => {
  const methods = Object.getOwnPropertyNames(SimulatedDriver.prototype).filter((name) => name !== "constructor");
  const named = (name: string) => `cu${name[0].toUpperCase()}${name.slice(1)}`;
  assertEquals(new Set(methods.map(named)), new Set(CALLS));
  const symbols = Object.keys(DRIVER_SYMBOLS).map((name) => name.replace(/_v\d$/, ""));
  assertEquals(new Set(CALLS), new Set(symbols));
});

test("a fault meets the calls that it names, and no others", async () => {
  const { session, control } = local();
  await session.start();
  const version = () => session.code("driverGetVersion");
  control.injectFault({ call: "cuDriverGetVersion", code: 999, at: 2 });
  assertEquals([await version(), await version(), await version()], [0, 999, 0]);
  control.injectFault({ call: "cuDriverGetVersion", code: 46, at: 1, count: 2 });
  assertEquals([await version(), await version(), await version()], [46, 46, 0]);
  control.injectFault({ call: "cuDriverGetVersion", code: 3 });
  assertEquals([await version(), await version(), await version()], [3, 3, 3]);
  assertEquals(await session.code("deviceGetCount"), 0);
  control.clearFaults();
  assertEquals(await version(), 0);
  control.injectFault({ call: "*", code: 2, at: 2 });
  assertEquals([await version(), await session.code("deviceGetCount"), await version()], [0, 2, 0]);
  control.clearFaults();
});

test("a call that a fault meets has done nothing", async () => {
  const { session, control } = local();
  const stream = await session.start();
  const pool = await session.createPool();
  const before = control.report().liveObjects;
  for (
    const [call, method, ...args] of [
      ["cuMemAllocFromPoolAsync", "memAllocFromPoolAsync", size(4096), address(pool), address(stream)],
      ["cuMemPoolCreate", "memPoolCreate", { allocType: 1, handleTypes: 1, locationType: 1, locationId: 0 }],
      ["cuEventCreate", "eventCreate", 0],
      ["cuMemHostAlloc", "memHostAlloc", size(4096), 0],
      ["cuMemPoolDestroy", "memPoolDestroy", address(pool)],
    ] as const
  ) {
    control.injectFault({ call, code: 2, at: 1 });
    assertEquals(await session.code(method, ...args), 2, call);
  }
  assertEquals(control.report().liveObjects, before);
  control.clearFaults();
  await session.do("memPoolDestroy", address(pool));
  await session.do("streamDestroy", address(stream));
});

test("faults from the environment: codes, ranges, kills", async () => {
  const faults = "cuEventCreate@2=2; cuDeviceGetCount=100; cuMemAlloc@3-=2; cuMemsetD8Async=50ms; cuMemFree@1=kill";
  await using peer = await Peer.start(currentRuntime, { CUDA_IPC_SIM_FAULTS: faults });
  const stream = await peer.start();
  assertEquals([await peer.code("eventCreate", 0), await peer.code("eventCreate", 0), await peer.code("eventCreate", 0)], [
    0,
    2,
    0,
  ]);
  assertEquals(await peer.code("deviceGetCount"), 100);
  const plain = (await peer.do("memAlloc", size(4096))).address;
  await peer.do("memAlloc", size(4096));
  assertEquals([await peer.code("memAlloc", size(1)), await peer.code("memAlloc", size(1))], [2, 2]);
  await peer.fill(plain, 1, 16, stream);
  assertEquals(await peer.code("streamQuery", address(stream)), 600);
  await peer.code("memFree", address(plain)).catch(() => {});
  assertEquals((await peer.process.exited).signal, "SIGKILL");
});

test("the syntax of faults", () => {
  assertEquals(parseFaults(""), []);
  assertEquals(parseFaults("cuMemAlloc=2;"), [{ call: "cuMemAlloc", code: 2 }]);
  assertEquals(parseFaults(" *@7=719 ; cuMemFree@2-4=1.5ms"), [
    { call: "*", code: 719, at: 7 },
    { call: "cuMemFree", workMs: 1.5, at: 2, count: 3 },
  ]);
  assertEquals(parseFaults("cuMemAlloc@5-=kill"), [{ call: "cuMemAlloc", kill: true, at: 5, count: Infinity }]);
  for (const bad of ["cuMemAlloc", "cuMemAlloc=", "cuMemAlloc=x", "cuNothing=2", "cuMemAlloc@=2", "cuMemAlloc@x=2", "=2"]) {
    assertThrows(() => parseFaults(bad), InvalidArgumentError, bad);
  }
});

test("wrong uses of the control are errors", () => {
  const { control, occupyStream } = local();
  for (
    const bad of [
      { call: "cuNothing", code: 2 },
      { call: "cuMemAlloc" },
      { call: "cuMemAlloc", code: 2, workMs: 3 },
      { call: "cuMemAlloc", code: -1 },
      { call: "cuMemAlloc", code: NaN },
      { call: "cuMemAlloc", code: 2, at: 0 },
      { call: "cuMemAlloc", code: 2, count: 0 },
    ]
  ) assertThrows(() => control.injectFault(bad as never), InvalidArgumentError);
  assertThrows(() => control.occupyDevice(7, 10), InvalidArgumentError);
  assertThrows(() => control.occupyDevice(0, -1), InvalidArgumentError);
  assertThrows(() => occupyStream(0n, NaN), InvalidArgumentError);
  assertThrows(() => control.loseContext(9), InvalidArgumentError);
  assertThrows(() => simulatorControl({ kind: "cuda" } as never), InvalidArgumentError);
});

test("the report counts live objects, and a reset ends them all", async () => {
  await using peer = await Peer.start(currentRuntime);
  const empty = (await peer.report()).liveObjects;
  assert(Object.values(empty).every((count) => count === 0), JSON.stringify(empty));
  const free = await peer.start().then(() => peer.freeBytes());
  const stream = await peer.start();
  const pool = await peer.createPool();
  await peer.allocate(pool, 4096, stream);
  await peer.do("eventCreate", 0);
  await peer.do("memAlloc", size(4096));
  const pinned = (await peer.do("memHostAlloc", size(4096), 0)).address;
  const block = (await peer.do("hostBlock", 4096)).address;
  await peer.do("memHostRegister", address(block), size(4096), 3);
  const prop = { type: 1, requestedHandleTypes: 1, locationType: 1, locationId: 0 };
  const physical = (await peer.do("memCreate", size(2 * 2 ** 20), prop)).address;
  const start = (await peer.do("memAddressReserve", size(4 * 2 ** 20), size(0), address(0n))).address;
  await peer.do("memMap", address(start), size(2 * 2 ** 20), size(0), address(physical));
  const fd = await peer.exportPool(pool);
  await peer.do("memPoolImportFromShareableHandle", address(BigInt(fd)), 1);
  await peer.do("occupyStream", address(stream), 10_000);

  const report = await peer.report();
  assertEquals(report.liveObjects, {
    contexts: 1,
    streams: 2,
    events: 1,
    importedEvents: 0,
    pools: 1,
    importedPools: 1,
    poolAllocations: 1,
    poolImports: 0,
    deviceAllocations: 1,
    legacyImports: 0,
    hostAllocations: 1,
    hostRegistrations: 1,
    physicalMemories: 1,
    addressReservations: 1,
    mappings: 1,
  });
  assertEquals(report.pendingWork, 1);
  assertEquals(report.calls.cuMemPoolCreate, 1);

  await peer.do("reset");
  const after = await peer.report();
  assertEquals(after.liveObjects, empty);
  assertEquals(after.pendingWork, 0);
  assertEquals(await peer.code("streamQuery", address(stream)), 400);
  assertEquals(await peer.code("memFreeHost", address(pinned)), 1);
  await peer.start();
  assertEquals(await peer.freeBytes(), free);
});

test("a lost context answers with its error until its last reference is released", async () => {
  await using peer = await Peer.start(currentRuntime);
  const stream = await peer.start();
  await peer.do("loseContext", 0);
  assertEquals(await peer.code("streamSynchronize", address(stream)), 719);
  assertEquals(await peer.code("memAlloc", size(1)), 719);
  await peer.do("devicePrimaryCtxRelease", 0);
  assertEquals(await peer.code("streamQuery", address(stream)), 400);
  assertEquals(await peer.code("memAlloc", size(1)), 201);
  await peer.start();
  await peer.do("memAlloc", size(1));
});
