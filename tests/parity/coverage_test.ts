/** Every row of docs/driver-behaviour.md has its test, or a reason. And the driver is the one that this run is about. */
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import process from "node:process";
import { assert, assertEquals } from "@std/assert";
import { expectedKind, localDriver, startLocal } from "./harness.ts";

/** Rows without a test, and what it would need. */
const UNCOVERED: Readonly<Record<string, string>> = {
  "LIMIT-03": "only a program without JavaScript can show it: Python with cuda.core",
  "PING-02": "needs MPS",
  "PING-06": "needs MPS",
  "MPS-01": "needs MPS",
  "TORCH-01": "only a program without JavaScript can show it: Python with PyTorch",
  "TORCH-02": "only a program without JavaScript can show it: Python with CuPy",
};

const text = (path: string) => readFileSync(new URL(path, import.meta.url), "utf8");

function matches(source: string, pattern: RegExp): string[] {
  return [...source.matchAll(pattern)].map((match) => match[1]);
}

const documented = matches(text("../../docs/driver-behaviour.md"), /^\| ([A-Z]+(?:-[A-Z]+)*-\d\d) *\|/gm);
const tested = readdirSync(new URL(".", import.meta.url))
  .filter((name) => name.endsWith("_test.ts"))
  .flatMap((name) => matches(text(`./${name}`), /\btest\(\s*["'`]([A-Z]+(?:-[A-Z]+)*-\d\d) /g));

test("each row of the documentation has exactly one test, or a reason why it has none", () => {
  assert(documented.length > 80, `only ${documented.length} rows were found`);
  assertEquals(documented.filter((id, index) => documented.indexOf(id) !== index), [], "ids that are documented twice");
  assertEquals(tested.filter((id, index) => tested.indexOf(id) !== index), [], "ids that are tested twice");
  assertEquals(tested.filter((id) => !documented.includes(id)), [], "tests without a row");
  assertEquals(documented.filter((id) => !tested.includes(id) && !(id in UNCOVERED)), [], "rows without a test or a reason");
  assertEquals(Object.keys(UNCOVERED).filter((id) => tested.includes(id) || !documented.includes(id)), [], "reasons to drop");
  for (const [id, reason] of Object.entries(UNCOVERED)) console.log(`not covered: ${id} ${reason}`);
});

test("the driver is the one that the run is for, and it has a device", async () => {
  assertEquals(process.env.CUDA_IPC_DRIVER ?? "cuda", expectedKind, "CUDA_IPC_DRIVER");
  assertEquals(localDriver().kind, expectedKind);
  await using session = await startLocal();
  assert((await session.do("deviceGetCount")).i32 > 0, "there is no device");
  const version = (await session.do("driverGetVersion")).i32;
  const name = new TextDecoder().decode((await session.do("deviceGetName", 0)).out).replace(/\0.*/s, "");
  const kernelModule = "/proc/driver/nvidia/version";
  if (expectedKind === "cuda" && existsSync(kernelModule)) console.log(readFileSync(kernelModule, "utf8").split("\n")[0]);
  console.log(`driver ${localDriver().kind}, CUDA ${Math.floor(version / 1000)}.${(version % 1000) / 10}, ${name}`);
});
