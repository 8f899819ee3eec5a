/** The file that the demo shares, read in pieces. */
import { type FileHandle, open, stat } from "node:fs/promises";
import { CudaIpcError, InvalidArgumentError } from "../../errors.ts";

const MIN_CHUNK_BYTES = 64 * 1024;
const MAX_CHUNK_BYTES = 8 * 1024 * 1024;
const CHUNKS = 256;

const REASONS: Readonly<Record<string, string>> = {
  ENOENT: "there is no such file",
  ENOTDIR: "a part of its path is not a directory",
  EACCES: "permission was refused",
  EPERM: "permission was refused",
};

/** Pieces of 64 KiB; larger ones for a large file, which then has a few hundred. Memory for one of them is enough. */
export function chunkBytesFor(byteLength: number): number {
  return Math.min(MAX_CHUNK_BYTES, Math.max(MIN_CHUNK_BYTES, Math.ceil(byteLength / CHUNKS)));
}

/** A file that can be shared: a regular one, and not empty. */
export class InputFile {
  readonly path: string;
  readonly byteLength: number;
  readonly chunkBytes: number;
  readonly #file: FileHandle;

  private constructor(path: string, byteLength: number, file: FileHandle) {
    this.path = path;
    this.byteLength = byteLength;
    this.chunkBytes = chunkBytesFor(byteLength);
    this.#file = file;
  }

  /**
   * Opens a file.
   *
   * @throws {InvalidArgumentError} when it is missing, unreadable, empty, or no regular file.
   */
  static async open(path: string): Promise<InputFile> {
    let file: FileHandle;
    let byteLength: number;
    try {
      const info = await stat(path); // before the opening, which would wait for the writer of a fifo
      if (!info.isFile()) throw unreadable(path, info.isDirectory() ? "it is a directory" : "it is not a regular file");
      byteLength = info.size;
      file = await open(path);
    } catch (error) {
      if (error instanceof CudaIpcError) throw error;
      const { code, message } = error as NodeJS.ErrnoException;
      throw unreadable(path, REASONS[code ?? ""] ?? message);
    }
    if (byteLength > 0) return new InputFile(path, byteLength, file);
    await file.close();
    throw unreadable(path, "it is empty, and there would be nothing to share");
  }

  /** The file's bytes, piece by piece. Each piece is good until the next one is asked for. */
  async *chunks(): AsyncGenerator<Uint8Array, void, void> {
    const chunk = new Uint8Array(this.chunkBytes);
    for (let at = 0; at < this.byteLength;) {
      const wanted = Math.min(this.chunkBytes, this.byteLength - at);
      for (let filled = 0; filled < wanted;) {
        const { bytesRead } = await this.#file.read(chunk, filled, wanted - filled, at + filled);
        if (bytesRead === 0) throw unreadable(this.path, "it became shorter while it was read");
        filled += bytesRead;
      }
      yield chunk.subarray(0, wanted);
      at += wanted;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#file.close();
  }
}

function unreadable(path: string, reason: string): InvalidArgumentError {
  return new InvalidArgumentError(`Cannot share ${path}: ${reason}. Name another file with --file`);
}
