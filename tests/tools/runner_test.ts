import { test } from "node:test";
import { assertEquals } from "@std/assert";
import { readBunClosing, readDenoClosing } from "../../tools/test.ts";

test("Deno's closing line is read", () => {
  const read = (line: string) => readDenoClosing(`running 1 test\nok | not this\n${line}\n\nerror: Test failed\n`);
  assertEquals(read("ok | 12 passed | 0 failed (3s)"), {
    closing: "ok | 12 passed | 0 failed (3s)",
    counts: { passed: 12, failed: 0, skipped: 0 },
  });
  assertEquals(read("FAILED | 1 passed (2 steps) | 3 failed (1 step) | 4 ignored (11ms)")?.counts, {
    passed: 1,
    failed: 3,
    skipped: 4,
  });
  assertEquals(readDenoClosing("running 1 test\nokay | 1 passed\n"), null);
});

test("Bun's closing lines are read", () => {
  const closing = " 10 pass\n 2 skip\n 1 fail\n 1 error\n 30 expect() calls\nRan 13 tests across 2 files. [3.21s]";
  assertEquals(readBunClosing(`bun test\n\n 1 pass\nno\n\n${closing}\n`), {
    closing,
    counts: { passed: 10, failed: 1, skipped: 2 },
  });
  assertEquals(readBunClosing(" 1 pass\n 0 fail\nRan 1 test across 1 file. [20ms]\n")?.counts, {
    passed: 1,
    failed: 0,
    skipped: 0,
  });
  assertEquals(readBunClosing("bun test v1\n\ntests/a_test.ts:\n(pass) a [1ms]\n"), null);
});
