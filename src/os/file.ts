/** Small files through libc, so that Deno needs no permission beyond `--allow-ffi`. */
import { errno, NativeBlock, toSize } from "../../ffi/mod.ts";
import { ENOENT } from "./errno.ts";
import { discardFds } from "./fd.ts";
import { cString, libc, retryInterrupted, systemError, systemErrorOf } from "./libc.ts";

const O_CLOEXEC = 0x80000;
const CHUNK_BYTES = 4096;

let chunk: NativeBlock | undefined;

/** The text of a small file, such as one of /proc. Undefined when there is none. */
export function readTextFile(path: string): string | undefined {
  const block = chunk ??= new NativeBlock(CHUNK_BYTES);
  const fd = retryInterrupted(() => libc().open(cString(path), O_CLOEXEC, 0));
  if (fd < 0) {
    const code = errno();
    if (code === ENOENT) return undefined;
    throw systemErrorOf(code, "open", `Cannot read ${path}`);
  }
  try {
    const decoder = new TextDecoder();
    let text = "";
    for (;;) {
      const count = retryInterrupted(() => libc().read(fd, block.addressAt(0), toSize(CHUNK_BYTES)));
      if (count < 0) throw systemError("read", `Cannot read ${path}`);
      if (count === 0) return text + decoder.decode();
      text += decoder.decode(block.bytes.slice(0, count), { stream: true });
    }
  } finally {
    discardFds(fd);
  }
}

/** Up to `byteLength` bytes (4 KiB at most) of an open file; fewer at its end. */
export function readBytesAt(fd: number, byteLength: number, byteOffset: number): Uint8Array {
  const block = chunk ??= new NativeBlock(CHUNK_BYTES);
  const count = retryInterrupted(() => libc().pread(fd, block.addressAt(0), toSize(byteLength), toSize(byteOffset)));
  if (count < 0) throw systemError("pread", `Cannot read file descriptor ${fd}`);
  return block.bytes.slice(0, count);
}
