/** Which file descriptors of this process are this module's: the runtime opens and closes others as it likes. */
import { readdirSync, readFileSync, readlinkSync } from "node:fs";

const OURS = /^\/memfd:cuda-ipc|^anon_inode:\[pidfd\]|^\/dev\/nvidia/;

/** What they refer to: shared memory, processes, the driver's handles, and sockets that were accepted at a path with `name`. */
export function ownFds(name = "cuda-ipc"): string[] {
  const accepted = new Set(
    readFileSync("/proc/net/unix", "utf8").split("\n").map((line) => line.trim().split(/\s+/))
      .filter((fields) => fields[7]?.includes(name)).map((fields) => `socket:[${fields[6]}]`),
  );
  return readdirSync("/proc/self/fd").flatMap((fd) => {
    try {
      const link = readlinkSync(`/proc/self/fd/${fd}`);
      return OURS.test(link) || accepted.has(link) ? [link] : [];
    } catch {
      return []; // the one that was reading the directory
    }
  });
}
