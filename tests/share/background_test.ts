/** What is done in the background may fail: that is told as a warning, and harms nothing else. */
import { assertEquals, assertMatch } from "@std/assert";
import process from "node:process";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Device, openDriver, simulatorControl } from "../../mod.ts";
import { contextOf } from "../../src/context.ts";
import { inBackground } from "../../src/background.ts";
import { watch } from "../../src/share/fence_watch.ts";
import { nativeStream } from "../../src/native_stream.ts";
import { currentRuntime, runRuntime } from "../helpers/runtimes.ts";
import { keepBusy, prepareBusy } from "../parity/work.ts";

/** The module's warnings while something is done. */
async function warningsOf(body: () => Promise<void>): Promise<string[]> {
  const messages: string[] = [];
  const listener = (warning: Error) => void (warning.name === "CudaIpcWarning" && messages.push(warning.message));
  process.on("warning", listener);
  try {
    await body();
    await sleep(20); // warnings are told in a later turn
  } finally {
    process.off("warning", listener);
  }
  return messages;
}

test("a failure becomes a warning", async () => {
  const messages = await warningsOf(() => {
    assertEquals(inBackground("do it", () => {}), true);
    assertEquals(
      inBackground("do it", () => {
        throw new Error("no");
      }),
      false,
    );
    return Promise.resolve();
  });
  assertEquals(messages, ["Cannot do it: no"]);
});

test("a watch that fails is told once and ends; the others go on", async () => {
  const seen: string[] = [];
  let looks = 0;
  const messages = await warningsOf(async () => {
    watch(
      () => {
        if (++looks > 1) throw new Error("no such word");
        return false;
      },
      () => seen.push("never"),
    );
    let isDone = false;
    watch(() => isDone, () => seen.push("done"));
    await sleep(30);
    isDone = true;
    while (seen.length === 0) await sleep(1); // a watch keeps no process alive
  });
  assertEquals([seen, looks, messages], [["done"], 2, ["Cannot watch a fence: no such word"]]);
});

test("a stream that cannot be destroyed when its work is done is told, and the next one is destroyed", async () => {
  const simulator = openDriver("simulator");
  using device = Device.open(0, { driver: simulator });
  const { driver } = contextOf(device, "test");
  const control = simulatorControl(simulator);
  const [first, second] = [device.createStream(), device.createStream()];
  for (const stream of [first, second]) {
    const { handle } = nativeStream(stream, "test");
    prepareBusy(driver, handle);
    keepBusy(driver, handle, 50);
    stream.close();
  }
  const { streams } = control.report().liveObjects;
  const messages = await warningsOf(async () => {
    control.injectFault({ call: "cuStreamDestroy", code: 700, at: 1, count: 1 });
    await sleep(300);
  });
  assertEquals(messages.length, 1);
  assertMatch(messages[0], /^Cannot destroy a stream: cuStreamDestroy failed .*CUDA_ERROR_ILLEGAL_ADDRESS/);
  assertEquals(control.report().liveObjects.streams, streams - 1);
});

test("a fence is not raised for work that was lost: who waits is told", async () => {
  const program = new URL("lost_context_program.ts", import.meta.url);
  const { stdout, stderr } = await runRuntime(currentRuntime, program, [], { env: { CUDA_IPC_SIM_PROFILE: "no-fences" } });
  assertMatch(stdout, /^PeerGoneError: Cannot wait for a fence: .* or its work has failed/, stderr);
});
