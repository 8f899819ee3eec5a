/** The simulated machine: devices, peers, visibility, memory of all processes together, profiles, and what kills. */
import { test } from "node:test";
import { assert, assertEquals, assertNotEquals, assertStringIncludes } from "@std/assert";
import { DEVICE_ATTRIBUTES } from "../../src/driver/device_attributes.ts";
import { currentRuntime, otherRuntime, skipWithout } from "../helpers/runtimes.ts";
import { Peer } from "./peer.ts";
import { address, bytes, type Session, size } from "./session.ts";

const MiB = 2 ** 20;
const skip = skipWithout(otherRuntime);
const IPC_EVENT = 2 | 4;
const PROP = { type: 1, requestedHandleTypes: 1, locationType: 1, locationId: 0 };

/** An own machine for each test: no other test has a part in its memory. */
let machines = 0;
function machine(env: Record<string, string> = {}): Record<string, string> {
  return { CUDA_IPC_SIM_MACHINE: `machine_test_${Date.now()}_${machines++}`, ...env };
}

async function uuid(session: Session, ordinal: number): Promise<string> {
  const hex = [...(await session.do("deviceGetUuid", ordinal)).bytes(16)].map((byte) => byte.toString(16).padStart(2, "0")).join(
    "",
  );
  return `GPU-${hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5")}`;
}

async function attribute(session: Session, name: keyof typeof DEVICE_ATTRIBUTES): Promise<number> {
  return (await session.do("deviceGetAttribute", DEVICE_ATTRIBUTES[name], 0)).i32;
}

test("one device by default, with what a data-centre GPU says", async () => {
  await using peer = await Peer.start(currentRuntime, machine());
  assertEquals((await peer.do("deviceGetCount")).i32, 1);
  assertEquals((await peer.do("deviceTotalMem", 0)).number(), 8 * 1024 * MiB);
  assertStringIncludes(new TextDecoder().decode((await peer.do("deviceGetName", 0)).bytes(64)), "Simulated GPU 0\0");
  assertEquals(await attribute(peer, "COMPUTE_CAPABILITY_MAJOR"), 9);
  assertEquals(await attribute(peer, "MEMPOOL_SUPPORTED_HANDLE_TYPES"), 1);
  assertEquals(await attribute(peer, "COMPUTE_MODE"), 0);
  assertEquals(await peer.code("deviceGetAttribute", 100000, 0), 1);
  assertEquals(await peer.code("deviceGet", 1), 101);
  assertEquals(await peer.code("devicePrimaryCtxRetain", 1), 101);
});

test("several devices: UUIDs, peers, and visibility by ordinal and by UUID", async () => {
  const env = machine({ CUDA_IPC_SIM_DEVICES: "3" });
  await using all = await Peer.start(currentRuntime, env);
  assertEquals((await all.do("deviceGetCount")).i32, 3);
  const uuids = [await uuid(all, 0), await uuid(all, 1), await uuid(all, 2)];
  assertEquals(new Set(uuids).size, 3);
  assertEquals((await all.do("deviceCanAccessPeer", 0, 1)).i32, 1);
  assertEquals((await all.do("deviceCanAccessPeer", 1, 1)).i32, 0);

  await using turned = await Peer.start(currentRuntime, { ...env, CUDA_VISIBLE_DEVICES: `2,${uuids[0]}` });
  assertEquals((await turned.do("deviceGetCount")).i32, 2);
  assertEquals([await uuid(turned, 0), await uuid(turned, 1)], [uuids[2], uuids[0]]);

  // memory of device 0 lies on the other process's device 1
  const stream = await all.start(0);
  const pool = await all.createPool();
  const pointer = await all.allocate(pool, 4096, stream);
  await all.fill(pointer, 6, 4096, stream);
  await all.do("streamSynchronize", address(stream));
  const fd = (await turned.do("openFdOf", all.process.pid, await all.exportPool(pool))).number();
  const data = (await all.do("memPoolExportPointer", address(pointer))).opaque;
  const turnedStream = await turned.start(1);
  const imported = (await turned.do("memPoolImportFromShareableHandle", address(BigInt(fd)), 1)).address;
  const mapped = (await turned.do("memPoolImportPointer", address(imported), bytes(data))).address;
  assertEquals((await turned.do("pointerGetAttribute", 9, address(mapped))).number(), 1);
  assert(await turned.isFilled(mapped, 6, 4096, turnedStream));

  // a stream of another device must be given access first, to write; to revoke is possible too
  const foreignStream = await turned.start(0);
  const fill = () => turned.code("memsetD8Async", address(mapped), 1, size(8), address(foreignStream));
  const access = (flags: number) => turned.do("memPoolSetAccess", address(imported), [{ locationType: 1, locationId: 0, flags }]);
  assertEquals(await fill(), 1);
  await access(3);
  assertEquals(await fill(), 0);
  assertEquals((await turned.do("memPoolGetAccess", address(imported), { type: 1, id: 0 })).i32, 3);
  await access(0);
  assertEquals(await fill(), 1);

  await using blind = await Peer.start(currentRuntime, { ...env, CUDA_VISIBLE_DEVICES: "1" });
  const blindFd = (await blind.do("openFdOf", all.process.pid, await all.exportPool(pool))).number();
  assertEquals(await blind.code("memPoolImportFromShareableHandle", address(BigInt(blindFd)), 1), 101);
  await using twice = await Peer.start(currentRuntime, { ...env, CUDA_VISIBLE_DEVICES: "0,0" });
  assertEquals((await twice.do("deviceGetCount")).i32, 0);
  await using cut = await Peer.start(currentRuntime, { ...env, CUDA_VISIBLE_DEVICES: "1,7,2" });
  assertEquals((await cut.do("deviceGetCount")).i32, 1);
  await using none = await Peer.start(currentRuntime, { ...env, CUDA_VISIBLE_DEVICES: "" });
  assertEquals((await none.do("deviceGetCount")).i32, 0);
});

test("which devices are peers can be said", async () => {
  const env = machine({ CUDA_IPC_SIM_DEVICES: "3", CUDA_IPC_SIM_PEERS: "0-2" });
  await using peer = await Peer.start(currentRuntime, env);
  const canAccess = async (device: number, of: number) => (await peer.do("deviceCanAccessPeer", device, of)).i32;
  assertEquals([await canAccess(0, 1), await canAccess(0, 2), await canAccess(2, 0), await canAccess(1, 2)], [0, 1, 1, 0]);
  await peer.start(0);
  const pool = await peer.createPool();
  const access = (locationId: number) =>
    peer.code("memPoolSetAccess", address(pool), [{ locationType: 1, locationId, flags: 3 }]);
  assertEquals([await access(1), await access(2)], [217, 0]);
});

test("device memory is shared by all processes, and a killed one gives its share back", { skip }, async () => {
  const env = machine({ CUDA_IPC_SIM_MEMORY: "256MiB" });
  await using first = await Peer.start(currentRuntime, env);
  const second = await Peer.start(otherRuntime, env);
  const [stream, secondStream] = [await first.start(), await second.start()];
  const pool = await first.createPool();
  const secondPool = await second.createPool();
  assertEquals(await first.freeBytes(), 256 * MiB);
  await second.allocate(secondPool, 100 * MiB, secondStream);
  await second.do("memCreate", size(64 * MiB), PROP);
  assertEquals(await first.freeBytes(), 64 * MiB);
  assertEquals(await first.code("memAllocFromPoolAsync", size(65 * MiB), address(pool), address(stream)), 2);
  assertEquals(await first.code("memAlloc", size(65 * MiB)), 2);
  assertEquals(await first.code("memCreate", size(66 * MiB), PROP), 2);
  await first.allocate(pool, 33 * MiB, stream);
  assertEquals(await second.code("memAllocFromPoolAsync", size(33 * MiB), address(secondPool), address(secondStream)), 2);
  await second.kill();
  assertEquals(await first.freeBytes(), 192 * MiB);
  await first.allocate(pool, 100 * MiB, stream);
});

test("an import above the limit, or with a forged offset or size, kills the importer, and says why", async () => {
  const env = machine({ CUDA_IPC_SIM_MEMORY: "16GiB" });
  await using exporter = await Peer.start(currentRuntime, env);
  const stream = await exporter.start();
  const pool = await exporter.createPool();
  async function importInChild(data: Uint8Array): Promise<{ code: number } | { signal: string | null; stderr: string }> {
    await using importer = await Peer.start(currentRuntime, env);
    await importer.start();
    const fd = (await importer.do("openFdOf", exporter.process.pid, await exporter.exportPool(pool))).number();
    const imported = (await importer.do("memPoolImportFromShareableHandle", address(BigInt(fd)), 1)).address;
    try {
      return { code: await importer.code("memPoolImportPointer", address(imported), bytes(data)) };
    } catch {
      const { signal, stderr } = await importer.process.exited;
      return { signal, stderr };
    }
  }
  for (const [mib, dies] of [[1024, false], [5216, false], [5280, true], [8192, true]] as const) {
    const pointer = await exporter.allocate(pool, mib * MiB, stream);
    await exporter.exportPool(pool);
    const data = (await exporter.do("memPoolExportPointer", address(pointer))).opaque;
    const outcome = await importInChild(data);
    if (dies) {
      assert("signal" in outcome && outcome.signal === "SIGSEGV", `${mib} MiB: ${JSON.stringify(outcome)}`);
      assertStringIncludes(outcome.stderr, "cuda-ipc simulator");
    } else assertEquals(outcome, { code: 0 }, `${mib} MiB`);
    await exporter.do("memFree", address(pointer));
  }

  const pointer = await exporter.allocate(pool, MiB, stream);
  const data = (await exporter.do("memPoolExportPointer", address(pointer))).opaque.slice();
  const flip = (bit: number) => {
    const forged = data.slice();
    forged[bit >> 3] ^= 1 << (bit & 7);
    return importInChild(forged);
  };
  for (const bit of [0, 70, 130, 8 * 40]) assertEquals(await flip(bit), { code: 1 }, `bit ${bit}`); // pool, generation, id
  assertEquals(await flip(8 * 24 + 3), { code: 1 }); // no multiple of 512
  assertEquals(await flip(8 * 24 + 25), { code: 0 }); // another part of the pool
  assertEquals(await flip(8 * 32 + 24), { code: 0 }); // more of it
  for (const bit of [8 * 24 + 50, 8 * 32 + 40]) assert("signal" in await flip(bit), `bit ${bit}`);
});

test("profiles: what a machine says, and what it does", async () => {
  const codes = async (profile: string) => {
    await using peer = await Peer.start(currentRuntime, machine({ CUDA_IPC_SIM_PROFILE: profile, CUDA_IPC_SIM_DEVICES: "2" }));
    const stream = await peer.start();
    const pool = { allocType: 1, locationType: 1, locationId: 0 };
    const host = (await peer.do("hostBlock", 8)).address;
    await peer.do("memHostRegister", address(host), size(8), 3);
    const event = await peer.call("eventCreate", IPC_EVENT);
    return {
      says: await attribute(peer, "MEMPOOL_SUPPORTED_HANDLE_TYPES"),
      privatePool: await peer.code("memPoolCreate", { ...pool, handleTypes: 0 }),
      sharedPool: await peer.code("memPoolCreate", { ...pool, handleTypes: 1 }),
      hostPool: await peer.code("memPoolCreate", { ...pool, locationType: 3, handleTypes: 1 }),
      physical: await peer.code("memCreate", size(2 * MiB), PROP),
      fabric: await peer.code("memCreate", size(2 * MiB), { ...PROP, requestedHandleTypes: 8 }),
      event: event.code === 0 ? await peer.code("ipcGetEventHandle", address(event.address)) : event.code,
      legacy: await peer.code("ipcGetMemHandle", address((await peer.do("memAlloc", size(4096))).address)),
      fence: await peer.code("streamWriteValue64", address(stream), address(host), { u64: "1" }, 0),
      peers: (await peer.do("deviceCanAccessPeer", 0, 1)).i32,
    };
  };
  const all = {
    says: 1,
    privatePool: 0,
    sharedPool: 0,
    hostPool: 0,
    physical: 0,
    fabric: 800,
    event: 0,
    legacy: 0,
    fence: 0,
    peers: 1,
  };
  assertEquals(await codes(""), all);
  assertEquals(await codes("no-imex"), all);
  assertEquals(await codes("wsl2"), { ...all, sharedPool: 1, hostPool: 1, physical: 801, fabric: 801, event: 400, legacy: 400 });
  assertEquals(await codes("mig"), { ...all, event: 801, legacy: 801, peers: 0 });
  assertEquals(await codes("tegra"), {
    ...all,
    says: 0,
    sharedPool: 801,
    hostPool: 801,
    physical: 801,
    fabric: 801,
    event: 801,
    legacy: 801,
    peers: 0,
  });
  assertEquals(await codes("old-driver"), { ...all, hostPool: 801, fence: 500 });
  assertEquals(await codes("no-fences,no-peer"), { ...all, fence: 801, peers: 0 });
  assertEquals(await codes("no-host-pools"), { ...all, hostPool: 801 });
  assertEquals(await codes("no-pools"), { ...all, says: 0, privatePool: 801, sharedPool: 801, hostPool: 801 });
  assertEquals(await codes("no-virtual-memory"), { ...all, physical: 801, fabric: 801 });
  assertEquals(await codes("imex"), { ...all, fabric: 0 });
});

test("the profile without a common /dev/shm cannot open events; an exclusive device takes one process", { skip }, async () => {
  const env = machine();
  await using exporter = await Peer.start(currentRuntime, env);
  await exporter.start();
  const event = (await exporter.do("eventCreate", IPC_EVENT)).address;
  const handle = (await exporter.do("ipcGetEventHandle", address(event))).opaque;
  await using container = await Peer.start(otherRuntime, { ...env, CUDA_IPC_SIM_PROFILE: "private-shm" });
  await container.start();
  assertEquals(await container.code("ipcOpenEventHandle", bytes(handle)), 205);

  const exclusive = { ...machine(), CUDA_IPC_SIM_PROFILE: "exclusive" };
  const holder = await Peer.start(currentRuntime, exclusive);
  await using other = await Peer.start(otherRuntime, exclusive);
  assertEquals(await attribute(other, "COMPUTE_MODE"), 3);
  await holder.start();
  assertEquals(await other.code("devicePrimaryCtxRetain", 0), 46);
  await holder.kill();
  await other.start();
});

test("fabric handles with an IMEX channel", { skip }, async () => {
  const env = machine({ CUDA_IPC_SIM_PROFILE: "imex" });
  await using exporter = await Peer.start(currentRuntime, env);
  await using importer = await Peer.start(otherRuntime, env);
  const prop = { ...PROP, requestedHandleTypes: 8 };
  const handle = (await exporter.do("memCreate", size(2 * MiB), prop)).address;
  const fabric = (await exporter.do("memExportToShareableHandle", address(handle), 8)).opaque;
  const imported = await importer.do("memImportFromShareableHandle", bytes(fabric), 8);
  assertNotEquals(imported.address, 0n);
  assertEquals(await importer.code("memImportFromShareableHandle", bytes(new Uint8Array(64).fill(1)), 8), 1);
  await exporter.do("memRelease", address(handle));
  assertEquals(await importer.code("memImportFromShareableHandle", bytes(fabric), 8), 1);
});

test("a variable that makes no sense is an error that names it", async () => {
  for (
    const [name, value] of [
      ["CUDA_IPC_SIM_DEVICES", "17"],
      ["CUDA_IPC_SIM_MEMORY", "8 gigs"],
      ["CUDA_IPC_SIM_PROFILE", "toaster"],
      ["CUDA_IPC_SIM_FAULTS", "cuMemPolCreate=2"],
      ["CUDA_IPC_SIM_MACHINE", "a/b"],
      ["CUDA_IPC_SIM_PEERS", "0-1"],
    ]
  ) {
    let message = "";
    await Peer.start(currentRuntime, { [name]: value }).catch((error) => message = String(error));
    assertStringIncludes(message, name);
    assertStringIncludes(message, value);
  }
});
