import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { assertEquals, assertStringIncludes } from "@std/assert";
import { errorText, formatBytes, Report } from "../../src/cli/demo/report.ts";
import { ClosedError } from "../../src/errors.ts";

test("progress is told once a job has taken a second, and then each second", async () => {
  const lines: string[] = [];
  const { log } = console;
  console.log = (line: string) => lines.push(line);
  try {
    const progress = new Report("consumer").progress("hashed", 4096);
    progress(1024);
    assertEquals(lines, []);
    await sleep(1050);
    progress(1024);
    progress(1024);
  } finally {
    console.log = log;
  }
  assertEquals(lines, ["  consumer  hashed 2.0 KiB of 4.0 KiB (50 %)"]);
});

test("sizes are exact, and short too where they are long", () => {
  assertEquals(formatBytes(1), "1 bytes");
  assertEquals(formatBytes(1023), "1023 bytes");
  assertEquals(formatBytes(1536), "1536 bytes (1.5 KiB)");
  assertEquals(formatBytes(4064 * 1024 * 1024), "4261412864 bytes (4.0 GiB)");
});

test("an expected error is told by its message, a defect by its stack", () => {
  assertEquals(errorText(new ClosedError("Cannot do it")), "ClosedError: Cannot do it");
  assertStringIncludes(errorText(new TypeError("a defect")), "report_test.ts");
});
