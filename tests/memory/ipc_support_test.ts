import process from "node:process";
import { test } from "node:test";
import { assertEquals, assertMatch } from "@std/assert";
import { Device, type IpcSupport } from "../../mod.ts";
import { currentRuntime, runRuntime, skipWithout } from "../helpers/runtimes.ts";
import { onGpu, skipOnGpu } from "./peer.ts";

const PROGRAM = new URL("./ipc_support_program.ts", import.meta.url);

test("every way of sharing is answered, and each no has a reason", () => {
  using device = Device.open(0);
  const before = device.memoryInfo().freeBytes;
  const support = device.ipcSupport();
  assertEquals(Object.keys(support), ["pool", "virtual", "fabric", "event", "fence", "legacy", "host"]);
  for (const { isSupported, reason } of Object.values(support)) assertEquals(reason === null, isSupported);
  if (!onGpu) assertEquals(device.memoryInfo().freeBytes, before);
});

/** What each machine denies, and what its reason must say. */
const DENIED: Record<string, Partial<Record<keyof IpcSupport, RegExp>>> = {
  "no-imex": { fabric: /800.*IMEX/ },
  imex: {},
  wsl2: {
    pool: /WSL2/,
    virtual: /801/,
    fabric: /801/,
    event: /WSL2/,
    legacy: /WSL2/,
    host: /WSL2/,
  },
  mig: { fabric: /IMEX/, event: /IPC_EVENT_SUPPORTED is 0/, legacy: /MIG/ },
  tegra: {
    pool: /MEMPOOL_SUPPORTED_HANDLE_TYPES is 0/,
    virtual: /HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED is 0/,
    fabric: /HANDLE_TYPE_FABRIC_SUPPORTED is 0/,
    event: /IPC_EVENT_SUPPORTED is 0/,
    legacy: /integrated/,
    host: /no memory pools/,
  },
  "old-driver": {
    fabric: /HANDLE_TYPE_FABRIC_SUPPORTED is 0/,
    fence: /CAN_USE_64_BIT_STREAM_MEM_OPS is 0/,
    host: /no memory pools/,
  },
  "no-pools": { pool: /MEMORY_POOLS_SUPPORTED is 0/, fabric: /IMEX/, host: /no memory pools/ },
  "no-virtual-memory": { virtual: /VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED is 0/, fabric: /VIRTUAL_MEMORY_MANAGEMENT/ },
  "no-host-pools": { fabric: /IMEX/, host: /no memory pools/ },
  "no-fences": { fabric: /IMEX/, fence: /CAN_USE_64_BIT_STREAM_MEM_OPS/ },
};

for (const [profile, denied] of Object.entries(DENIED)) {
  test(`what a machine like "${profile}" can share`, { skip: skipOnGpu || skipWithout(currentRuntime) }, async () => {
    const env = { CUDA_IPC_SIM_PROFILE: profile, CUDA_IPC_SIM_MACHINE: `support.${profile.replaceAll("-", "_")}.${process.pid}` };
    const exit = await runRuntime(currentRuntime, PROGRAM, [], { env });
    assertEquals([exit.code, exit.stderr], [0, ""]);
    const support: IpcSupport = JSON.parse(exit.stdout);
    const no = Object.entries(support).filter(([, { isSupported }]) => !isSupported).map(([name]) => name);
    assertEquals(no, Object.keys(denied));
    for (const name of Object.keys(denied) as (keyof IpcSupport)[]) assertMatch(support[name].reason!, denied[name]!);
  });
}
