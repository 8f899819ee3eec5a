import { test } from "node:test";
import { assert, assertEquals } from "@std/assert";
import { currentRuntime, otherRuntime, runRuntime, type Runtime, runtimePath, skipWithout, spawnRuntime } from "./runtimes.ts";

const fixture = new URL("./echo_program.ts", import.meta.url);

for (const runtime of [currentRuntime, otherRuntime] satisfies Runtime[]) {
  const skip = skipWithout(runtime);

  test(`${runtime}: a program gets its arguments and its exit code comes back`, { skip }, async () => {
    const exit = await runRuntime(runtime, fixture, ["exit", "7"]);
    assertEquals({ ...exit, stderr: "" }, { code: 7, signal: null, stdout: `${runtime}\n`, stderr: "", timedOut: false });
  });

  test(`${runtime}: lines go both ways`, { skip }, async () => {
    await using program = spawnRuntime(runtime, fixture, ["echo"]);
    assertEquals(await program.nextLine(), runtime);
    program.write("one\n");
    assertEquals(await program.nextLine(), "one");
    program.write("two\n");
    assertEquals(await program.nextLine(), "two");
  });

  test(`${runtime}: the time limit kills`, { skip }, async () => {
    const exit = await runRuntime(runtime, fixture, ["hang"], { timeoutMs: 1500 });
    assertEquals([exit.timedOut, exit.signal], [true, "SIGKILL"]);
  });
}

test("the two runtimes are different programs", { skip: skipWithout(otherRuntime) }, () => {
  assert(runtimePath(currentRuntime) !== runtimePath(otherRuntime));
});
