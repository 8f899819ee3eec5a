/** What the README says is true: its programs run, in every pairing, and print what it says. */
import { mkdirSync, readFileSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { assert, assertEquals } from "@std/assert";
import * as publicSurface from "../../mod.ts";
import { currentRuntime, otherRuntime, runRuntime, type Runtime, runtimePath, skipWithout } from "../helpers/runtimes.ts";
import { ENVIRONMENT, TemporaryFolder } from "./helpers.ts";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const README = readFileSync(join(ROOT, "README.md"), "utf8");

function codeBlocks(language: string): string[] {
  return [...README.matchAll(new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\`$`, "gms"))].map((match) => match[1]);
}

/** The program as a reader of this runtime writes it. */
function programFor(runtime: Runtime, file: string): string {
  const block = codeBlocks("ts").find((block) => block.startsWith(`// ${file}\n`));
  assert(block !== undefined, `the README has no ${file}`);
  return runtime === "deno" ? block.replaceAll('from "cuda-ipc"', 'from "@cuda-ipc/cuda-ipc"') : block;
}

/** A project that has installed this module, for each runtime in its way. */
function installProject(folder: TemporaryFolder): void {
  mkdirSync(join(folder.path, "node_modules"));
  symlinkSync(ROOT, join(folder.path, "node_modules", "cuda-ipc"));
  folder.file("deno.json", JSON.stringify({ imports: { "@cuda-ipc/cuda-ipc": new URL("../../mod.ts", import.meta.url).href } }));
}

for (const consumerRuntime of [currentRuntime, otherRuntime] satisfies Runtime[]) {
  test(`README: the first programs, consumed by ${consumerRuntime}`, { skip: skipWithout(consumerRuntime) }, async () => {
    using folder = new TemporaryFolder();
    installProject(folder);
    const producer = folder.file("producer.ts", programFor(currentRuntime, "producer.ts"));
    const consumer = folder.file("consumer.ts", programFor(consumerRuntime, "consumer.ts"));
    const flags = consumerRuntime === "deno" ? ["run", "--no-prompt", "--allow-ffi"] : [];
    const args = [runtimePath(consumerRuntime), ...flags, consumer];
    const exit = await runRuntime(currentRuntime, producer, args, { env: ENVIRONMENT, cwd: folder.path });
    assertEquals([exit.stdout, exit.stderr, exit.code], [codeBlocks("text")[0], "", 0]);
  });
}

test("README: its commands are scripts of package.json", () => {
  const { scripts } = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8"));
  const commands = [...README.matchAll(/npm (?:run )?(demo|test)\b/g)].map((match) => match[1]);
  assertEquals(new Set(commands), new Set(["demo", "test"]));
  for (const command of commands) assert(command in scripts, command);
});

test("README: each error of its table is exported", () => {
  const names = [...README.matchAll(/^\| `(\w+Error)`/gm)].map((match) => match[1]);
  assert(names.length >= 10);
  for (const name of names) assert(name in publicSurface, name);
});
