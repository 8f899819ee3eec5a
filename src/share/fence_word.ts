/** One 64-bit word that one process raises, and others wait for: by streams and by hosts. */
import type { Address } from "../../ffi/mod.ts";
import type { Context } from "../context.ts";
import { check } from "../driver/check.ts";
import { DEVICE_ATTRIBUTES } from "../driver/device_attributes.ts";
import { CU_STREAM_WAIT_VALUE_GEQ, CU_STREAM_WRITE_VALUE_DEFAULT } from "../driver/enums.ts";
import type { NativeStream } from "../native_stream.ts";
import type { FenceBlock } from "./fence_block.ts";

/** A host stores it when the writing process has exited: every wait passes, and everyone sees that it is broken. */
export const BROKEN: bigint = 2n ** 62n;

const supports = new WeakMap<Context, boolean>();

/** Whether streams of the device can write and wait for words by themselves. */
export function hasStreamMemoryOperations(context: Context): boolean {
  let supported = supports.get(context);
  if (supported === undefined) {
    const attribute = DEVICE_ATTRIBUTES.CAN_USE_64_BIT_STREAM_MEM_OPS;
    check(context.driver.deviceGetAttribute(attribute, context.device), "cuDeviceGetAttribute", context);
    supports.set(context, supported = context.driver.out.readI32(0) !== 0);
  }
  return supported;
}

export class FenceWord {
  readonly block: FenceBlock;
  readonly index: number;
  #context: Context | undefined;
  #address: Address | undefined;

  constructor(block: FenceBlock, index: number) {
    this.block = block;
    this.index = index;
  }

  load(): bigint {
    return Atomics.load(this.block.words, this.index);
  }

  store(value: bigint): void {
    Atomics.store(this.block.words, this.index, value);
  }

  /** Frees whoever waits for a process that has exited. Only after its exit: until then the word is that process's. */
  break(): void {
    this.store(BROKEN);
  }

  get isBroken(): boolean {
    return this.load() >= BROKEN;
  }

  /** The stream writes the value behind its queued work, and behind what the device has written. */
  writeAfter(stream: NativeStream, value: bigint): void {
    const { driver } = stream.context;
    const address = this.#addressOn(stream.context);
    check(
      driver.streamWriteValue64(stream.handle, address, value, CU_STREAM_WRITE_VALUE_DEFAULT),
      "cuStreamWriteValue64",
      stream,
    );
  }

  /** Work that the stream gets from now on waits until the word has reached the value. */
  waitBefore(stream: NativeStream, value: bigint): void {
    const { driver } = stream.context;
    const address = this.#addressOn(stream.context);
    check(driver.streamWaitValue64(stream.handle, address, value, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue64", stream);
  }

  #addressOn(context: Context): Address {
    if (this.#context !== context) {
      this.#address = this.block.addressOn(context, this.index);
      this.#context = context;
    }
    return this.#address!;
  }
}
