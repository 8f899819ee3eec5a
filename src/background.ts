/** What is done for nobody who waits: from timers, and when other processes exit. */
import process from "node:process";

/** Runs it; a failure, which nobody could catch, is told as a warning. Tells whether it went well. */
export function inBackground(what: string, body: () => void, code = "CUDA_IPC_BACKGROUND"): boolean {
  try {
    body();
    return true;
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    process.emitWarning(`Cannot ${what}: ${reason}`, { type: "CudaIpcWarning", code });
    return false;
  }
}
