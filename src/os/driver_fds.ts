/** Descriptors that the GPU's driver keeps for itself. */
import { listNumbers } from "./file.ts";
import { inspectFd, isCloseOnExec, setCloseOnExec } from "./fd.ts";

/** The character devices of NVIDIA's driver. */
export const NVIDIA_MAJOR = 195;

/**
 * Marks the driver's descriptors close-on-exec. It keeps one for each pool that was imported, without the mark: a program
 * that is started would have the whole pool by it.
 */
export function hideDriverFds(): void {
  for (const fd of listNumbers("/proc/self/fd")) {
    try {
      if (isCloseOnExec(fd)) continue;
      const { kind, deviceMajor } = inspectFd(fd);
      if (kind === "character device" && deviceMajor === NVIDIA_MAJOR) setCloseOnExec(fd);
    } catch {
      // It was closed meanwhile: by the listing itself, or by another thread
    }
  }
}
