/** Copies between allocations, in order with a stream's work: within a device, between devices, from and to the host. */
import { addOffset, type Address, addressToBigInt, type Size } from "../../ffi/mod.ts";
import type { Text } from "../arguments.ts";
import { check } from "../driver/check.ts";
import { CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST } from "../driver/enums.ts";
import { InvalidArgumentError, NotSupportedError } from "../errors.ts";
import type { NativeStream } from "../native_stream.ts";
import type { Allocation } from "./allocation.ts";

/** Where a copy begins. */
export interface Place {
  readonly allocation: Allocation;
  readonly address: Address;
}

/** A place whose rows begin `pitchBytes` apart. */
export interface PitchedPlace extends Place {
  readonly pitchBytes: number;
}

/**
 * Refuses a copy between rows that share bytes: the driver does not say what becomes of them. Two mappings of one physical
 * memory are not seen as one.
 */
export function checkOverlap(to: PitchedPlace, from: PitchedPlace, rowBytes: number, rows: number, action: Text): void {
  const [target, source] = [Number(to.address), Number(from.address)];
  for (let i = 0, j = 0; i < rows && j < rows;) {
    const start = target + i * to.pitchBytes;
    const other = source + j * from.pitchBytes;
    if (start + rowBytes <= other) i++;
    else if (other + rowBytes <= start) j++;
    else {
      throw new InvalidArgumentError(
        `Cannot ${action}: source and target overlap, the ${rowBytes} bytes from 0x${other.toString(16)} on and those from ` +
          `0x${start.toString(16)} on. Copy by way of another buffer`,
      );
    }
  }
}

/** The stream of a copy: of either side's device. */
export function checkStream(to: Allocation, from: Allocation, stream: NativeStream, action: Text): void {
  if (to.context.driver !== from.context.driver) {
    throw new InvalidArgumentError(`Cannot ${action}: the buffers belong to different drivers`);
  }
  if (stream.context !== to.context && stream.context !== from.context) {
    throw new InvalidArgumentError(
      `Cannot ${action}: the stream belongs to ${stream.context}. Use one of ${to.context} or ${from.context}`,
    );
  }
  stream.context.makeCurrent();
  for (const allocation of [to, from]) if (allocation.kind === "host") checkAccess(allocation, stream, action);
}

function checkAccess(allocation: Allocation, stream: NativeStream, action: Text): void {
  if (allocation.isAccessibleFrom(stream.context)) return;
  throw new NotSupportedError(
    `Cannot ${action}: ${stream.context} has no access to the memory of ${allocation.context}. Grant it with ` +
      `pool.setPeerAccess(), or import a host pool with { device }`,
  );
}

export function copy(to: Place, from: Place, size: Size, stream: NativeStream): void {
  const { context } = to.allocation;
  const { driver } = context;
  const source = from.allocation.context;
  if (from.allocation.kind === "host" || to.allocation.kind === "host") {
    // The calls that name both sides' kinds refuse a host pool's memory as a device's
    check(driver.memcpyAsync(to.address, from.address, size, stream.handle), "cuMemcpyAsync", context);
  } else if (source === context) {
    check(driver.memcpyDtoDAsync(to.address, from.address, size, stream.handle), "cuMemcpyDtoDAsync", context);
  } else {
    const result = driver.memcpyPeerAsync(to.address, context.handle, from.address, source.handle, size, stream.handle);
    check(result, "cuMemcpyPeerAsync", context);
  }
}

/** Copies `rows` rows of `rowBytes` each. Both sides must be accessible from the stream's device. */
export function copy2D(
  to: PitchedPlace,
  from: PitchedPlace,
  rowBytes: number,
  rows: number,
  stream: NativeStream,
  action: Text,
): void {
  for (const { allocation } of [to, from]) checkAccess(allocation, stream, action);
  const { context } = stream;
  const result = context.driver.memcpy2DAsync({
    ...(isHost(from) ? { srcMemoryType: CU_MEMORYTYPE_HOST, srcHost: hostAddressOf(from) } : deviceSource(from)),
    srcPitch: from.pitchBytes,
    ...(isHost(to) ? { dstMemoryType: CU_MEMORYTYPE_HOST, dstHost: hostAddressOf(to) } : deviceTarget(to)),
    dstPitch: to.pitchBytes,
    WidthInBytes: rowBytes,
    Height: rows,
  }, stream.handle);
  check(result, "cuMemcpy2DAsync", context);
}

/** Registered memory may have another address for the host than for the device. */
function hostAddressOf({ allocation, address }: Place): Address {
  const byteOffset = Number(addressToBigInt(address) - addressToBigInt(allocation.address));
  return addOffset(allocation.hostAddress!, byteOffset);
}

const isHost = ({ allocation }: Place): boolean => allocation.kind === "host";
const deviceSource = ({ address }: Place) => ({ srcMemoryType: CU_MEMORYTYPE_DEVICE, srcDevice: address });
const deviceTarget = ({ address }: Place) => ({ dstMemoryType: CU_MEMORYTYPE_DEVICE, dstDevice: address });
