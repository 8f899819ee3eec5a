/** The demo's promises that hold with any driver: registered by the suites of the simulator and of a GPU. */
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { freemem } from "node:os";
import process from "node:process";
import { test } from "node:test";
import { assert, assertEquals, assertStringIncludes } from "@std/assert";
import { currentRuntime, type Exit, otherRuntime, type Runtime, skipWithout } from "../helpers/runtimes.ts";
import { runDemo, SAMPLE, Sides, TemporaryFolder, waitForLine } from "./helpers.ts";

const MAX_SOCKET_BYTES = 4096;
/** The largest allocation of a pool that can be shared: what is longer is virtual memory. */
const MAX_POOL_BYTES = 4064 * 1024 * 1024;
const MEMORY_FOR_HUGE = MAX_POOL_BYTES + 2 * 1024 ** 3;
const KILL_LIMIT_MS = 2000;
/** Long enough that a side is still at work when it learns of the other's death. */
const LARGE_BYTES = { "simulator": 192 * 1024 * 1024, "CUDA driver": 1024 * 1024 * 1024 };
/** When to kill: once `speaker` has said `line`. A survivor that had not noticed would go on until it says `notReached`. */
const STAGES = [
  { stage: "the producer loads", speaker: "producer", line: "loads", notReached: { producer: "SHA-256", consumer: "mapped" } },
  { stage: "the consumer hashes", speaker: "consumer", line: "mapped", notReached: { producer: "digests", consumer: "SHA-256" } },
] as const;
const STUCK_CONSUMER = new URL("./stuck_consumer.ts", import.meta.url);

function digestsOf(output: string): string[] {
  return [...output.matchAll(/SHA-256 ([0-9a-f]{64})$/gm)].map((match) => match[1]);
}

function socketBytesOf(output: string): number[] {
  return [...output.matchAll(/(\d+) bytes crossed the socket/g)].map((match) => Number(match[1]));
}

function assertAgreement(exit: Exit, digest: string, driver: string): void {
  assertEquals(exit.stderr, "");
  assertEquals(exit.code, 0);
  assertStringIncludes(exit.stdout, "Deno to Bun: all agree");
  assertStringIncludes(exit.stdout, "Bun to Deno: all agree");
  assertEquals(digestsOf(exit.stdout), Array(4).fill(digest));
  assertEquals(exit.stdout.match(/process \d+, on .*$/gm)?.map((line) => line.includes(`(${driver})`)), Array(4).fill(true));
  const socketBytes = socketBytesOf(exit.stdout);
  assertEquals(socketBytes.length, 2);
  for (const bytes of socketBytes) assert(bytes > 0 && bytes < MAX_SOCKET_BYTES, `${bytes} bytes crossed the socket`);
}

function sha256(bytes: Uint8Array): string {
  return createHash("sha256").update(bytes).digest("hex");
}

/** On the simulator the buffer's memory is the host's, and the test takes ten seconds of two cores. */
function whyNotHuge(): string | false {
  if (process.env.CUDA_IPC_TEST_HUGE !== "1") return "takes 4 GiB of the host and some time: run it with CUDA_IPC_TEST_HUGE=1";
  return freemem() < MEMORY_FOR_HUGE ? "needs 6 GiB of free memory" : false;
}

export function testAgreement(driver: "simulator" | "CUDA driver"): void {
  const skip = skipWithout(otherRuntime);

  test("demo: both directions agree about the file that ships", { skip }, async () => {
    const exit = await runDemo([]);
    assertAgreement(exit, sha256(readFileSync(SAMPLE)), driver);
    const chunks = [...exit.stdout.matchAll(/loaded (\d+) chunks/g)].map((match) => Number(match[1]));
    assertEquals(chunks.length, 2);
    for (const count of chunks) assert(count >= 3, `loaded in ${count} chunks`);
  });

  test("demo: a file of one byte", { skip }, async () => {
    using folder = new TemporaryFolder();
    const bytes = Uint8Array.of(0x78);
    assertAgreement(await runDemo(["--file", folder.file("one", bytes)]), sha256(bytes), driver);
  });

  test("demo: a file of some MiB sends as few bytes over the socket", { skip }, async () => {
    using folder = new TemporaryFolder();
    const bytes = Uint8Array.from({ length: 5 * 1024 * 1024 + 3 }, (_, index) => index * 7 + (index >> 11));
    assertAgreement(await runDemo(["--file", folder.file("some", bytes)]), sha256(bytes), driver);
  });

  const skipHuge = skip || (driver === "simulator" && whyNotHuge());
  test("demo: a file above 4064 MiB is shared as virtual memory", { skip: skipHuge, timeout: 120_000 }, async () => {
    using folder = new TemporaryFolder();
    const file = folder.sparseFile("huge", MAX_POOL_BYTES + 1);
    await using sides = new Sides(currentRuntime, `${folder.path}/socket`, file);
    const [producer, consumer] = await Promise.all([sides.producer.exited, sides.consumer.exited]);
    assertEquals([producer.stderr, producer.code, consumer.stderr, consumer.code], ["", 0, "", 0]);
    assertStringIncludes(producer.stdout, "the handles of virtual memory");
    assertEquals(new Set(digestsOf(producer.stdout + consumer.stdout)).size, 1);
    assert(/loaded \d\.\d GiB of 4\.0 GiB \(\d+ %\)/.test(producer.stdout), `no progress was told:\n${producer.stdout}`);
    const [bytes] = socketBytesOf(producer.stdout);
    assert(bytes > 0 && bytes < MAX_SOCKET_BYTES, `${bytes} bytes crossed the socket`);
  });

  test("demo: --corrupt fails on both sides, by the digests", { skip }, async () => {
    const exit = await runDemo(["--corrupt"]);
    assertEquals(exit.code, 1);
    for (const direction of ["Deno to Bun", "Bun to Deno"]) {
      assertStringIncludes(exit.stdout, `${direction}: FAILED (the producer ended with 1, the consumer with 1)`);
    }
    assertEquals(exit.stdout.match(/the digests differ/g)?.length, 2);
    assertEquals(new Set(digestsOf(exit.stdout)).size, 2);
  });

  for (const producerRuntime of [currentRuntime, otherRuntime] satisfies Runtime[]) {
    for (const victim of ["producer", "consumer"] as const) {
      for (const { stage, speaker, line, notReached } of STAGES) {
        test(`demo: ${producerRuntime} produces; killing the ${victim} while ${stage} ends the other`, { skip }, async () => {
          using folder = new TemporaryFolder();
          const file = folder.sparseFile("large", LARGE_BYTES[driver]);
          await using sides = new Sides(producerRuntime, `${folder.path}/socket`, file);
          await waitForLine(sides[speaker], line);
          await assertKillEndsOther(sides, victim, notReached);
        });
      }
    }
    test(`demo: ${producerRuntime} produces; it ends when the consumer dies with its GPU work unfinished`, { skip }, async () => {
      using folder = new TemporaryFolder();
      await using sides = new Sides(producerRuntime, `${folder.path}/socket`, folder.file("some", "text"), STUCK_CONSUMER);
      await waitForLine(sides.consumer, "stuck");
      await assertKillEndsOther(sides, "consumer", { producer: "digests", consumer: "" });
    });
  }
}

async function assertKillEndsOther(
  sides: Sides,
  victim: "producer" | "consumer",
  notReached: { readonly producer: string; readonly consumer: string },
): Promise<void> {
  const survivor = victim === "producer" ? "consumer" : "producer";
  sides[victim].kill("SIGKILL");
  const killed = performance.now();
  const exit = await sides[survivor].exited;
  const ms = performance.now() - killed;
  assertEquals((await sides[victim].exited).signal, "SIGKILL", `the ${victim} had ended before`);
  assertEquals(exit.code, 1, exit.stderr);
  assertStringIncludes(exit.stderr, `PeerGoneError: Cannot go on: the ${victim}, process ${sides[victim].pid}, has gone`);
  assert(!exit.stdout.includes(notReached[survivor]), `the ${survivor} went on:\n${exit.stdout}`);
  assert(ms < KILL_LIMIT_MS, `the ${survivor} ended ${ms.toFixed(0)} ms after the ${victim}'s death`);
}
