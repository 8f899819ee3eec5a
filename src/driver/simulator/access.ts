/** Which devices may use a piece of memory: two bits for each device, as a number. */
import { CU_MEM_ACCESS_FLAGS_PROT_READWRITE } from "../enums.ts";

export const READ_WRITE = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

export function accessOf(access: number, device: number): number {
  return Math.floor(access / 4 ** device) % 4;
}

export function withAccess(access: number, device: number, flags: number): number {
  return access + (flags - accessOf(access, device)) * 4 ** device;
}

/** Whether any device may write. */
export function canWrite(access: number): boolean {
  for (let rest = access; rest > 0; rest = Math.floor(rest / 4)) if (rest % 4 === READ_WRITE) return true;
  return false;
}
