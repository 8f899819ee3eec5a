/** What the README says is true: its programs run, in every pairing, and print what it says. */
import { mkdirSync, readFileSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { assert, assertEquals } from "@std/assert";
import * as publicSurface from "../../mod.ts";
import { currentRuntime, otherRuntime, runRuntime, type Runtime, skipWithout, spawnRuntime } from "../helpers/runtimes.ts";
import { ENVIRONMENT, TemporaryFolder, waitForFile } from "./helpers.ts";

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

/** Deno with nothing but what the README asks for. */
const FLAGS: Record<Runtime, string[]> = { deno: ["--no-prompt", "--allow-ffi"], bun: [] };

for (const consumerRuntime of [currentRuntime, otherRuntime] satisfies Runtime[]) {
  test(`README: the first programs, consumed by ${consumerRuntime}`, { skip: skipWithout(consumerRuntime) }, async () => {
    using folder = new TemporaryFolder();
    installProject(folder);
    const producerFile = folder.file("producer.ts", programFor(currentRuntime, "producer.ts"));
    const consumerFile = folder.file("consumer.ts", programFor(consumerRuntime, "consumer.ts"));
    const socket = join(folder.path, "socket");
    const options = { env: ENVIRONMENT, cwd: folder.path };
    await using producer = spawnRuntime(currentRuntime, producerFile, [socket], {
      ...options,
      flags: FLAGS[currentRuntime],
    });
    await waitForFile(socket);
    const consumer = await runRuntime(consumerRuntime, consumerFile, [socket], {
      ...options,
      flags: FLAGS[consumerRuntime],
    });
    assertEquals([consumer.stderr, consumer.code], ["", 0]);
    const { stdout, stderr, code } = await producer.exited;
    assertEquals([stderr, code, consumer.stdout + stdout], ["", 0, codeBlocks("text")[0]]);
  });
}

test("README: its other code runs where a device, two streams, a pool and a buffer are there", async () => {
  using folder = new TemporaryFolder();
  installProject(folder);
  const snippets = codeBlocks("ts").filter((block) => !block.startsWith("// "));
  assert(snippets.length >= 2);
  const name = currentRuntime === "deno" ? "@cuda-ipc/cuda-ipc" : "cuda-ipc";
  const program = `
    import { Device, HostPool, MemoryPool, SharedFence, VirtualMemory } from "${name}";
    using device = Device.open(0);
    using stream = device.createStream();
    using otherStream = device.createStream();
    using pool = MemoryPool.create(device, { ipc: true });
    using buffer = pool.allocate(1024, { stream });
    ${snippets.map((snippet) => `{ ${snippet} }`).join("\n")}
    console.log("done");`;
  const exit = await runRuntime(currentRuntime, folder.file("snippets.ts", program), [], { env: ENVIRONMENT, cwd: folder.path });
  assertEquals([exit.stdout, exit.stderr, exit.code], ["done\n", "", 0]);
});

test("README: its commands are scripts of package.json", () => {
  const { scripts } = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8"));
  const commands = [...README.matchAll(/npm (?:run )?(demo|soak|test:gpu|test)\b/g)].map((match) => match[1]);
  assert(commands.includes("demo") && commands.includes("test"));
  for (const command of commands) assert(command in scripts, command);
});

test("README: each error of its table is exported", () => {
  const names = [...README.matchAll(/^\| `(\w+Error)`/gm)].map((match) => match[1]);
  assert(names.length >= 10);
  for (const name of names) assert(name in publicSurface, name);
});
