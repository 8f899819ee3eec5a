/** The stream of memory that is not allocated on one. */
import type { Text } from "../arguments.ts";
import type { Context } from "../context.ts";
import { InvalidArgumentError } from "../errors.ts";
import { NativeStream, nativeStream } from "../native_stream.ts";
import type { CudaStream } from "../stream.ts";
import { HostOnlyContext, NoStream } from "./host_only.ts";

/** Calls `body` with the given stream of the device, or with a new one, which lives as long as `body`'s result holds it. */
export function withStream<T>(
  context: Context,
  given: CudaStream | undefined,
  action: Text,
  body: (stream: NativeStream) => T,
): T {
  if (given !== undefined) {
    const stream = nativeStream(given, action);
    if (stream.context === context) return body(stream);
    throw new InvalidArgumentError(`Cannot ${action}: the stream belongs to ${stream.context}, expected one of ${context}`);
  }
  const stream = context instanceof HostOnlyContext ? new NoStream(context) : NativeStream.create(context, true, 0);
  try {
    return body(stream);
  } finally {
    stream.release();
  }
}
