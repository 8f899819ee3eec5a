/**
 * Runs the conformance suite and the tests of handles on an emulated Windows: both runtimes' Windows builds under Wine 10,
 * in a chroot with Debian 13, against C libraries of a Windows compiler. Optional: it needs root on Debian or Ubuntu
 * (x86-64), cuda.h, 2 GB in a cache folder and some minutes the first time, and installs the rest itself.
 *
 *   npm run test:windows
 *
 * What that proves: the ABI and the plumbing, tested under emulation; never run on the real platform.
 *
 * @module
 */
import { existsSync, mkdirSync, renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import type { Runtime } from "../tests/helpers/runtimes.ts";
import { buildLibraries, cacheFolder, installRuntime, needPrograms, report, ROOT, run, runTests } from "./emulation.ts";
import { skipWithoutCudaHeader } from "./gcc.ts";

const FILES = [
  "tests/conformance/driver_test.ts",
  "tests/ffi/calls_test.ts",
  "tests/ffi/guards_test.ts",
  "tests/ffi/memory_test.ts",
  "tests/wire/descriptor_test.ts",
  "tests/wire/export_data_test.ts",
  "tests/wire/hex_test.ts",
  "tests/wire/identity_test.ts",
  "tests/windows/handle_test.ts",
  "tests/windows/lookup_test.ts",
  "tests/windows/share_test.ts",
];

const cache = cacheFolder("cuda-ipc-windows");
const chroot = join(cache, "debian");
const drive = join(chroot, "wine/drive_c");
const PROGRAMS: Readonly<Record<Runtime, readonly [string, string]>> = {
  deno: ["@deno/win32-x64", "deno.exe"],
  bun: ["@oven/bun-windows-x64", "bin\\bun.exe"],
};

/**
 * A command in the chroot, in namespaces of its own: what is mounted and whatever still runs at its end go with it. The
 * repository is there as C:\cuda-ipc, read-only.
 */
function inChroot(script: string, env: Readonly<Record<string, string>> = {}): string[] {
  const mount = [
    "set -e",
    "mount --make-rprivate /",
    'mount -t proc proc "$1/proc"',
    'mount --rbind /dev "$1/dev"',
    'if [ -d "$2" ]; then mount --bind "$3" "$2"; mount -o remount,bind,ro "$2"; fi',
    'root=$1; shift 3; exec chroot "$root" "$@"',
  ].join("\n");
  const inside = {
    PATH: "/usr/bin:/bin",
    HOME: "/root",
    WINEPREFIX: "/wine",
    WINEDEBUG: "-all",
    XDG_RUNTIME_DIR: "/tmp",
    ...env,
  };
  const variables = Object.entries(inside).map(([name, value]) => `${name}=${value}`);
  const unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", mount, "sh"];
  return [...unshare, chroot, join(drive, "cuda-ipc"), ROOT, "env", "-i", ...variables, "sh", "-c", script, "sh"];
}

function install(): void {
  needPrograms({ "x86_64-w64-mingw32-gcc": "gcc-mingw-w64-x86-64", debootstrap: "debootstrap" });
  if (!existsSync(chroot)) {
    console.log("Installing Debian 13 with Wine (1.2 GB)");
    rmSync(`${chroot}.part`, { recursive: true, force: true });
    run("debootstrap", ["--variant=minbase", "--include=wine64", "trixie", `${chroot}.part`], { timeoutMs: 1_800_000 });
    rmSync(join(`${chroot}.part`, "var/cache/apt"), { recursive: true });
    renameSync(`${chroot}.part`, chroot);
  }
  if (!existsSync(join(chroot, "wine/system.reg"))) {
    console.log("Making a Windows for Wine");
    // the registry is written when Wine's server ends, and without it no drive has a name
    const [command, ...args] = inChroot("/usr/lib/wine/wine64 wineboot --init && /usr/lib/wine/wineserver -w");
    run(command, args, { timeoutMs: 300_000 });
  }
  mkdirSync(join(drive, "cuda-ipc"), { recursive: true });
}

async function main(): Promise<void> {
  if (process.platform !== "linux" || process.arch !== "x64" || process.getuid?.() !== 0) {
    throw new Error("Cannot emulate Windows: this needs root on Linux x86-64");
  }
  const reason = skipWithoutCudaHeader();
  if (reason) throw new Error(`Cannot build the driver for the tests: ${reason}`);
  install();
  buildLibraries("x86_64-w64-mingw32-gcc", join(drive, "libraries"), "--windows");

  const runtimes = Object.keys(PROGRAMS) as Runtime[];
  const paths = Object.fromEntries(runtimes.map((runtime) => {
    const [name, program] = PROGRAMS[runtime];
    const folder = installRuntime(runtime, name, join(drive, "runtimes"));
    return [runtime, `C:\\runtimes\\${folder.slice(folder.lastIndexOf("/") + 1)}\\${program}`];
  }));
  const env = {
    CUDA_IPC_DRIVER: "cuda",
    CUDA_IPC_TEST_BUN: paths.bun,
    CUDA_IPC_TEST_DENO: paths.deno,
    CUDA_IPC_TEST_EMULATED: "wine",
    CUDA_IPC_TEST_LIBRARIES: "C:\\libraries",
    NO_COLOR: "1",
  };
  const outcomes = [];
  for (const runtime of runtimes) {
    const script = 'cd /wine/drive_c/cuda-ipc && exec /usr/lib/wine/wine64 "$@"';
    outcomes.push(await runTests(runtime, [...inChroot(script, env), paths[runtime]], FILES));
    // each start of Deno leaves 97 MB there
    rmSync(join(drive, "users/root/AppData/Local/deno/node_compat_bin"), { recursive: true, force: true });
  }
  report(
    outcomes,
    "Windows: ABI and plumbing tested under emulation (Wine), never run on the real platform. Not proved: NVIDIA's driver,\n" +
      `Windows' own security, CUDA IPC on Windows. Kept for the next run: ${cache}`,
  );
}

try {
  await main();
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 1;
}
