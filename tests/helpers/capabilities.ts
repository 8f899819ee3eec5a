/** What root may do that others may not, as far as tests need it. */
import { readFileSync } from "node:fs";

const CAP_DAC_READ_SEARCH = 2n;

/** For a test's options: the reason to skip where shared memory cannot be opened by its handle, else false. */
export function skipWithoutReadSearch(): string | false {
  const effective = BigInt("0x" + readFileSync("/proc/self/status", "utf8").match(/^CapEff:\s*(\w+)$/m)![1]);
  return (effective >> CAP_DAC_READ_SEARCH & 1n) === 0n && "needs CAP_DAC_READ_SEARCH, which root has";
}
