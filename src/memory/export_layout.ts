/**
 * The bytes that the driver exports for a pool allocation are opaque, and a forged offset or size in them kills the
 * importing process. Where this machine's driver is seen to use the measured layout, they are checked before use.
 */
import { addressFromNumber, toSize } from "../../ffi/mod.ts";
import type { Context } from "../context.ts";
import { OutOfMemoryError, ProtocolError } from "../errors.ts";
import { check } from "../driver/check.ts";
import type { PoolRange } from "../share/import_registry.ts";
import { type BufferDescriptor, opaqueOf } from "../wire/descriptor.ts";
import { readPoolExportData } from "../wire/export_data.ts";
import { NativePool } from "./native_pool.ts";

const PROBE_BYTES = 12_345;

const known = new WeakMap<Context, boolean>();

/** Learns from an export of our own what the layout is. */
export function learnExportLayout(context: Context, exportData: Uint8Array, byteLength: number): void {
  known.set(context, readPoolExportData(exportData).byteLength === BigInt(byteLength));
}

/**
 * Where the allocation lies in its pool, as the driver's bytes say; undefined where their layout is another. Throws
 * ProtocolError when they do not say what the descriptor says, or more than is safe. A pool's allocations lie within the range
 * of the device's memory.
 */
export function exportedRange(
  context: Context,
  descriptor: BufferDescriptor,
  totalMemoryBytes: number,
): PoolRange | undefined {
  if (!isLayoutKnown(context)) return undefined;
  const { byteLength, byteOffset } = readPoolExportData(opaqueOf(descriptor));
  if (byteLength !== BigInt(descriptor.allocationByteLength)) {
    throw new ProtocolError(
      `Cannot import a buffer: the driver's bytes name ${byteLength} bytes, its descriptor ${descriptor.allocationByteLength}`,
    );
  }
  if (byteOffset + byteLength > BigInt(totalMemoryBytes)) {
    throw new ProtocolError(
      `Cannot import a buffer: the driver's bytes name offset ${byteOffset}, beyond the device's ${totalMemoryBytes} bytes`,
    );
  }
  return { byteOffset: Number(byteOffset), byteLength: Number(byteLength) };
}

function isLayoutKnown(context: Context): boolean {
  let answer = known.get(context);
  if (answer === undefined) {
    answer = probe(context);
    if (answer !== undefined) known.set(context, answer);
  }
  return answer ?? false;
}

/** Exports a small allocation of our own; undefined when there is no memory for it now. */
function probe(context: Context): boolean | undefined {
  const { driver } = context;
  const pool = NativePool.create(context, "for the export layout", true, PROBE_BYTES);
  try {
    pool.exportOnce();
    const legacyStream = addressFromNumber(0);
    check(driver.memAllocFromPoolAsync(toSize(PROBE_BYTES), pool.handle, legacyStream), "cuMemAllocFromPoolAsync", pool);
    const address = driver.out.readAddress(0);
    try {
      check(driver.memPoolExportPointer(address), "cuMemPoolExportPointer", pool);
      return readPoolExportData(driver.out.bytes.slice(0, 64)).byteLength === BigInt(PROBE_BYTES);
    } finally {
      check(driver.memFreeAsync(address, legacyStream), "cuMemFreeAsync", pool);
    }
  } catch (error) {
    if (error instanceof OutOfMemoryError) return undefined;
    throw error;
  } finally {
    pool.release();
  }
}
