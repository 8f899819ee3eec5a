/** What stands in for a device where host memory is used without one: a context that is never current, and no stream. */
import { addressFromNumber } from "../../ffi/mod.ts";
import { Context } from "../context.ts";
import type { CudaDriver } from "../driver/driver.ts";
import { NotSupportedError } from "../errors.ts";
import { NativeStream } from "../native_stream.ts";

/** Of a process that has called `cuInit` only. */
export class HostOnlyContext extends Context {
  constructor(driver: CudaDriver) {
    super(driver, -1, -1);
  }

  override hold(): void {}
  override release(): void {}
  override isIdle(): boolean {
    return true;
  }
  override makeCurrent(): void {
    throw new NotSupportedError(
      "Cannot use a device here: this host memory was imported without one. Use buffer.view, or import its pool with { device }",
    );
  }
  override toString(): string {
    return "the host";
  }
}

/** Never has work. */
export class NoStream extends NativeStream {
  constructor(context: HostOnlyContext) {
    super(context, addressFromNumber(0));
  }

  override hold(): void {}
  override release(): void {}
  override isIdle(): boolean {
    return true;
  }
}
