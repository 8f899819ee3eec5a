import { assertEquals } from "@std/assert";
import { test } from "node:test";
import { runRuntime, skipWithout } from "../helpers/runtimes.ts";

const PROGRAM = new URL("minimal_program.ts", import.meta.url);

test("in Deno --allow-ffi alone is enough", { skip: skipWithout("deno") }, async () => {
  const exit = await runRuntime("deno", PROGRAM, [], { flags: ["--no-prompt", "--no-check", "--allow-ffi"] });
  assertEquals([exit.stdout, exit.stderr, exit.code], ["7 true true 64\n", "", 0]);
});

test("in Deno without --allow-ffi the error names the permission", { skip: skipWithout("deno") }, async () => {
  const exit = await runRuntime("deno", PROGRAM, [], { flags: ["--no-prompt", "--no-check"] });
  assertEquals([exit.code, exit.stderr.includes("--allow-ffi")], [1, true]);
});
