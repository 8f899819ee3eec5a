/** The error for a pool allocation that no process could import. */
import type { Text } from "../arguments.ts";
import { ImportLimitError } from "../errors.ts";
import { MAX_POOL_ALLOCATION_BYTES } from "../wire/limits.ts";

export function importLimitError(action: Text, byteLength: number): ImportLimitError {
  return new ImportLimitError(
    `Cannot ${action}: ${byteLength} bytes are more than ${MAX_POOL_ALLOCATION_BYTES} (4064 MiB), and importing such an ` +
      `allocation of a shareable pool would kill the importing process inside the driver. Use several buffers`,
  );
}
