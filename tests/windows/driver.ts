/** Compiles driver.c, with the functions that it lacks answering "not supported". */
import { readFileSync } from "node:fs";
import { DRIVER_SYMBOLS } from "../../src/driver/symbols.ts";
import { compileLibrary } from "../../tools/gcc.ts";

/** The driver's absolute path. */
export function buildWindowsDriver(): string {
  const written = readFileSync(new URL("./driver.c", import.meta.url), "utf8");
  const missing = Object.entries(DRIVER_SYMBOLS).filter(([name]) => !written.includes(`CUDAAPI ${name}(`));
  const answers = missing.flatMap(([name, { prototype }]) => {
    const head = prototype.replace("CUresult ", "EXPORT CUresult CUDAAPI ");
    return [`#undef ${name}`, `${head} { return CUDA_ERROR_NOT_SUPPORTED; }`];
  });
  return compileLibrary([written, ...answers, ""].join("\n"));
}
