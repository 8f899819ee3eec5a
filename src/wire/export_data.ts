/** The 64 bytes of `cuMemPoolExportPointer`. NVIDIA does not document them; this is their layout as measured. */
import { shown } from "../arguments.ts";
import { InvalidArgumentError } from "../errors.ts";

/** The length of `CUmemPoolPtrExportData`. */
export const POOL_EXPORT_DATA_BYTES: number = 64;

/** What is known of a pool pointer's export data. */
export interface PoolExportData {
  /** Differs for two allocations at the same address. */
  readonly generation: bigint;
  /** Where the allocation lies in its pool. */
  readonly byteOffset: bigint;
  /** The size as the exporter requested it. */
  readonly byteLength: bigint;
  /** An id, the same for one allocation. */
  readonly id: number;
}

/** Reads the known fields. They come from another process: compare them with what they must be before the driver sees them. */
export function readPoolExportData(opaque: Uint8Array): PoolExportData {
  const isBytes = ArrayBuffer.isView(opaque) && opaque instanceof Uint8Array;
  if (!isBytes || opaque.byteLength !== POOL_EXPORT_DATA_BYTES) {
    const given = isBytes ? `${(opaque as Uint8Array).byteLength} bytes` : shown(opaque);
    throw new InvalidArgumentError(
      `Cannot read pool export data: got ${given}, expected a Uint8Array of ${POOL_EXPORT_DATA_BYTES} bytes`,
    );
  }
  const view = new DataView(opaque.buffer, opaque.byteOffset, opaque.byteLength);
  return {
    generation: view.getBigUint64(16, true),
    byteOffset: view.getBigUint64(24, true),
    byteLength: view.getBigUint64(32, true),
    id: view.getUint32(40, true),
  };
}
