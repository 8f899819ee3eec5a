/** Memory of `cuMemAlloc`, and what other processes have made of it known by a legacy handle. */
import { type Address, toSize } from "../../ffi/mod.ts";
import type { Text } from "../arguments.ts";
import type { Context } from "../context.ts";
import { check } from "../driver/check.ts";
import { CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS } from "../driver/enums.ts";
import { CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_OUT_OF_MEMORY } from "../driver/results.ts";
import { InvalidArgumentError, SameProcessError } from "../errors.ts";
import type { NativeStream } from "../native_stream.ts";
import { ownIdentity } from "../os/process.ts";
import { Allocation, type AllocationDescription, nextGeneration } from "./allocation.ts";
import { reap, reapWhenIdle } from "./reaper.ts";

/** The 64 bytes of `cuIpcGetMemHandle`, which name the whole allocation wherever in it the address is. */
export function legacyHandleOf(context: Context, address: Address): Uint8Array {
  context.makeCurrent();
  check(context.driver.ipcGetMemHandle(address), "cuIpcGetMemHandle", context);
  return context.driver.out.bytes.slice(0, 64);
}

/** The descriptor's part of memory that has a legacy handle. */
export function describeLegacy(
  context: Context,
  address: Address,
  allocationByteLength: number,
  deviceUuid: string,
): AllocationDescription {
  return {
    memoryKind: "legacy",
    deviceUuid,
    exporter: ownIdentity(),
    poolId: null,
    generation: nextGeneration(),
    allocationByteLength,
    chunkByteLengths: [],
    opaque: legacyHandleOf(context, address),
  };
}

/** Memory of this process. */
export class LegacyAllocation extends Allocation {
  override readonly kind = "legacy" as const;
  #description: AllocationDescription | undefined;

  private constructor(context: Context, address: Address, byteLength: number, stream: NativeStream) {
    super(context, address, byteLength, toSize(byteLength), stream);
    context.hold();
  }

  static create(context: Context, byteLength: number, stream: NativeStream): LegacyAllocation {
    const { driver } = context;
    const size = toSize(byteLength);
    context.makeCurrent();
    let result = driver.memAlloc(size);
    if (result === CUDA_ERROR_OUT_OF_MEMORY && reap() > 0) result = driver.memAlloc(size);
    check(result, "cuMemAlloc", `${byteLength} bytes on ${context}`);
    return new LegacyAllocation(context, driver.out.readAddress(0), byteLength, stream);
  }

  override describe(deviceUuid: string): AllocationDescription {
    return this.#description ??= describeLegacy(this.context, this.address, this.byteLength, deviceUuid);
  }

  protected override giveBack(): () => boolean {
    return reapWhenIdle(this.context, () => {
      this.context.makeCurrent();
      const result = this.context.driver.memFree(this.address);
      this.context.release();
      check(result, "cuMemFree", this.context);
    }, this.byteLength);
  }
}

/** A mapping of another process's memory. The driver counts: each opening is closed once. */
export class OpenedLegacyAllocation extends Allocation {
  override readonly kind = "legacy" as const;
  readonly #handle: Uint8Array;
  readonly #origin: AllocationDescription | undefined;

  private constructor(
    context: Context,
    address: Address,
    byteLength: number,
    stream: NativeStream,
    handle: Uint8Array,
    origin: AllocationDescription | undefined,
  ) {
    super(context, address, byteLength, toSize(byteLength), stream);
    this.#handle = handle;
    this.#origin = origin;
    context.hold();
  }

  static open(
    context: Context,
    handle: Uint8Array,
    stream: NativeStream,
    action: Text,
    origin?: AllocationDescription,
  ): OpenedLegacyAllocation {
    const { driver } = context;
    context.makeCurrent();
    const result = driver.ipcOpenMemHandle(handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result === CUDA_ERROR_INVALID_CONTEXT) { // a context is current, so this is the driver's other reason
      throw new SameProcessError(`Cannot ${action}: this process exported it. Use the original buffer`);
    }
    check(result, "cuIpcOpenMemHandle", context);
    const address = driver.out.readAddress(0);
    try {
      check(driver.memGetAddressRange(address), "cuMemGetAddressRange", context);
      const byteLength = driver.out.readNumber(8);
      return new OpenedLegacyAllocation(context, address, byteLength, stream, handle, origin);
    } catch (error) {
      driver.ipcCloseMemHandle(address);
      throw error;
    }
  }

  override get isImported(): boolean {
    return true;
  }

  override describe(_deviceUuid: string, action: Text): AllocationDescription {
    if (this.#origin !== undefined) return this.#origin;
    throw new InvalidArgumentError(
      `Cannot ${action}: it was opened by a bare handle, which does not say whose it is. Pass the handle itself on`,
    );
  }

  /** What it was opened by, which other processes can open too. */
  get handle(): Uint8Array {
    return this.#handle.slice();
  }

  protected override giveBack(): () => boolean {
    return reapWhenIdle(this.context, () => {
      this.context.makeCurrent();
      const result = this.context.driver.ipcCloseMemHandle(this.address);
      this.context.release();
      check(result, "cuIpcCloseMemHandle", this.context);
    }, this.byteLength);
  }
}
