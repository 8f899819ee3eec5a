/** Makes calls of the C library fail, one at a time, and counts what is left open. */
import { readdirSync, readlinkSync } from "node:fs";
import { createHostView, libcCandidates, openLibrary, runtimeName } from "../../ffi/mod.ts";
import { errnoName } from "../../src/os/errno.ts";
import { type Libc, libc, LIBC_SYMBOLS, setLibcForTests } from "../../src/os/libc.ts";

const real = libc();
const { __errno_location, getpid } = openLibrary("the C library", libcCandidates(), {
  __errno_location: { prototype: "int *__errno_location(void)", args: [], result: "address" },
  getpid: { prototype: "pid_t getpid(void)", args: [], result: "i32", setsErrno: true },
});
const errnoWord = new Int32Array(createHostView(__errno_location(), 4).bytes.buffer);

/** -1 as mmap's result comes in each runtime: no address that could be made by hand. */
const MAP_FAILED = runtimeName() === "deno" ? 2n ** 64n - 1n : 2 ** 64;

/** These cannot fail, or their failure means nothing. */
const CANNOT_FAIL = new Set(["getpid", "geteuid", "gettid", "usleep", "memcpy", "memmove", "memset"]);

/** Called before each call of the C library; an errno makes it fail. */
export type Fault = (name: keyof Libc, args: unknown[]) => number | undefined;

/** The C library with faults. A failing close does close, as on Linux. */
export function setFault(fault: Fault | undefined): void {
  if (fault === undefined) return setLibcForTests(undefined);
  const table = Object.fromEntries(
    Object.entries(LIBC_SYMBOLS).map(([name, signature]) => [name, (...args: unknown[]) => {
      const call = real[name as keyof Libc] as (...args: unknown[]) => unknown;
      if (CANNOT_FAIL.has(name)) return call(...args);
      const code = fault(name as keyof Libc, args);
      if (code === undefined) return call(...args);
      if (name === "close") call(...args);
      errnoWord[0] = code;
      getpid(); // leaves errno alone, and ffi/ keeps it
      return signature.result === "address" ? MAP_FAILED : -1;
    }]),
  );
  setLibcForTests(table as unknown as Libc);
}

/** Open descriptors with what they refer to. */
export function openFds(): string[] {
  return readdirSync("/proc/self/fd").flatMap((fd) => {
    try {
      const target = readlinkSync(`/proc/self/fd/${fd}`);
      return target.startsWith("pipe:") ? [] : [`${fd} ${target}`]; // pipes are the runtime's, to its children
    } catch {
      return []; // the one that read the directory
    }
  }).sort();
}

/** What happened when one call failed. */
export interface FaultOutcome {
  readonly call: string;
  readonly error: unknown;
  /** Descriptors that are open now and were not before, or the reverse. */
  readonly leaked: string[];
}

/**
 * Runs `action` once to count its calls, then once for each call and errno, with that call failing. `action` must undo what it
 * did when it succeeds.
 */
export async function failEachCall(codes: readonly number[], action: () => unknown): Promise<FaultOutcome[]> {
  const calls: string[] = [];
  setFault((name) => void calls.push(name));
  try {
    await action();
  } finally {
    setFault(undefined);
  }
  const outcomes: FaultOutcome[] = [];
  for (const code of codes) {
    for (let failing = 0; failing < calls.length; failing++) {
      const before = openFds();
      let index = 0;
      let error: unknown;
      setFault(() => index++ === failing ? code : undefined);
      try {
        await action();
      } catch (caught) {
        error = caught;
      } finally {
        setFault(undefined);
      }
      const leaked = await leakedSince(before);
      outcomes.push({ call: `${failing} ${calls[failing]} ${errnoName(code)}`, error, leaked });
    }
  }
  return outcomes;
}

/** What is open now and was not before, or the reverse; what a thread gives back a moment later does not count. */
async function leakedSince(before: string[]): Promise<string[]> {
  for (let tries = 0;; tries++) {
    const after = openFds();
    const leaked = [...after.filter((fd) => !before.includes(fd)), ...before.filter((fd) => !after.includes(fd))];
    if (leaked.length === 0 || tries === 50) return leaked;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
