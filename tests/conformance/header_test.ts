import { test } from "node:test";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { assert, assertEquals, assertMatch } from "@std/assert";
import { cudaIncludeFolder, skipWithoutCudaHeader } from "../../tools/gcc.ts";
import { currentRuntime, runRuntime } from "../helpers/runtimes.ts";

const skip = skipWithoutCudaHeader();
const tool = new URL("../../tools/check_cuda_header.ts", import.meta.url);

test("constants, layouts, result codes and function names are those of this machine's cuda.h", { skip }, async () => {
  const { code, stdout, stderr } = await runRuntime(currentRuntime, tool);
  assertEquals([code, stderr], [0, ""]);
  assertMatch(stdout, /^cuda\.h \d+: \d+ numbers, \d+ result codes and \d+ function names compared, 0 differences\n$/);
});

test("another cuda.h: each difference is listed, and the exit code is 1", { skip }, async () => {
  const changes: readonly [RegExp, string, string][] = [
    [/CU_EVENT_INTERPROCESS\s+= 0x4/, "CU_EVENT_INTERPROCESS = 0x8", "CU_EVENT_INTERPROCESS: ours is 4, cuda.h says 8"],
    [/CU_MEM_HANDLE_TYPE_FABRIC(\s+=)/, "CU_MEM_HANDLE_TYPE_OTHER$1", "CU_MEM_HANDLE_TYPE_FABRIC: not in cuda.h"],
    [/(CUDA_ERROR_ALREADY_MAPPED\s+=) 208/, "$1 777", "CUDA_ERROR_ALREADY_MAPPED: cuda.h has code 777"],
    [/cuMemPoolTrimTo\(CUmemoryPool/, "cuMemPoolCutTo(CUmemoryPool", "cuMemPoolTrimTo: not in cuda.h"],
    [/(#define cuMemAlloc\s+cuMemAlloc)_v2/, "$1_v3", "cuMemAlloc_v2: cuda.h maps cuMemAlloc to cuMemAlloc_v3"],
    [/size_t maxSize;/, "int added; size_t maxSize;", "CUmemPoolProps.usage: offset: ours is 32, cuda.h says 40"],
  ];
  let header = readFileSync(join(cudaIncludeFolder()!, "cuda.h"), "utf8");
  for (const [from, to] of changes) {
    assertMatch(header, from);
    header = header.replace(from, to);
  }
  const folder = mkdtempSync(join(tmpdir(), "cuda-ipc-header-"));
  try {
    mkdirSync(join(folder, "include"));
    writeFileSync(join(folder, "include", "cuda.h"), header);
    const { code, stderr } = await runRuntime(currentRuntime, tool, [], { env: { CUDA_HOME: folder } });
    assertEquals(code, 1);
    for (const [, , line] of changes) assert(stderr.includes(line), `not listed: ${line}\n${stderr}`);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("no cuda.h: the exit code is 2 and the reason is said", { skip }, async () => {
  const { code, stderr } = await runRuntime(currentRuntime, tool, [], { env: { CC: "no-such-compiler" } });
  assertEquals(code, 2);
  assertMatch(stderr, /no C compiler: "no-such-compiler"/);
});
