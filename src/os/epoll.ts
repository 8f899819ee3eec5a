/** One epoll instance: which descriptors became ready. Nothing here waits. */
import process from "node:process";
import { errno, NativeBlock, toSize } from "../../ffi/mod.ts";
import { ENOENT, EPERM } from "./errno.ts";
import { discardFds } from "./fd.ts";
import { libc, retryInterrupted, systemError, systemErrorOf } from "./libc.ts";

export const EPOLLIN = 0x1;
export const EPOLLOUT = 0x4;
/** Reported whether asked for or not: reading or writing will not wait, but fail or see the end. */
export const EPOLLERR_OR_HUP = 0x8 | 0x10;
const EPOLLONESHOT = 0x4000_0000;

const EPOLL_CLOEXEC = 0x80000;
const EPOLL_CTL_ADD = 1;
const EPOLL_CTL_DEL = 2;
const EPOLL_CTL_MOD = 3;
const EFD_NONBLOCK = 0x800;
const EFD_CLOEXEC = 0x80000;

/** struct epoll_event is u32 events, u64 data: packed on x86-64, and only there. */
const EVENT_DATA_OFFSET: number = process.arch === "x64" ? 4 : 8;
export const EVENT_BYTES: number = EVENT_DATA_OFFSET + 8;
/** How many events one call takes; those left over come first next time. */
export const MAX_EVENTS = 64;
/** The token of `wake()`. */
export const WAKE_TOKEN = 0;

/** A descriptor that became ready, by the token which it was armed with. */
export interface ReadyEvent {
  readonly token: number;
  readonly events: number;
}

/** Reads the structs that epoll_wait left. */
export function readEvents(view: DataView, count: number): ReadyEvent[] {
  return Array.from({ length: count }, (_, index) => ({
    events: view.getUint32(index * EVENT_BYTES, true),
    token: Number(view.getBigUint64(index * EVENT_BYTES + EVENT_DATA_OFFSET, true)),
  }));
}

export class Epoll {
  readonly fd: number;
  readonly #wakeFd: number;
  /** One event for epoll_ctl, then those of epoll_wait. */
  readonly #block: NativeBlock = new NativeBlock(16 + MAX_EVENTS * EVENT_BYTES);

  constructor() {
    const action = "Cannot wait for file descriptors";
    const opened: number[] = [];
    try {
      this.fd = libc().epoll_create1(EPOLL_CLOEXEC);
      if (this.fd < 0) throw systemError("epoll_create1", action);
      opened.push(this.fd);
      this.#wakeFd = libc().eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
      if (this.#wakeFd < 0) throw systemError("eventfd", action);
      opened.push(this.#wakeFd);
      if (this.#control(EPOLL_CTL_ADD, this.#wakeFd, EPOLLIN, WAKE_TOKEN) !== 0) throw systemError("epoll_ctl", action);
    } catch (error) {
      discardFds(...opened);
      this.#block.free();
      throw error;
    }
  }

  /** Reports the descriptor once when one of `events` happens, or an error, or the end. Replaces what was armed before. */
  arm(fd: number, events: number, token: number): void {
    if (this.#control(EPOLL_CTL_MOD, fd, events | EPOLLONESHOT, token) === 0) return;
    let code = errno();
    if (code === ENOENT) {
      if (this.#control(EPOLL_CTL_ADD, fd, events | EPOLLONESHOT, token) === 0) return;
      code = errno();
    }
    const hints = new Map([[EPERM, "It is always ready: a regular file or a directory"]]);
    throw systemErrorOf(code, "epoll_ctl", `Cannot wait for file descriptor ${fd}`, hints);
  }

  /** Forgets the descriptor; one that was closed is forgotten already. */
  remove(fd: number): void {
    this.#control(EPOLL_CTL_DEL, fd, 0, 0);
  }

  #control(operation: number, fd: number, events: number, token: number): number {
    this.#block.view.setUint32(0, events, true);
    this.#block.view.setBigUint64(EVENT_DATA_OFFSET, BigInt(token), true);
    return libc().epoll_ctl(this.fd, operation, fd, this.#block.addressAt(0));
  }

  /** What is ready now. */
  poll(): ReadyEvent[] {
    const events = this.#block.addressAt(16);
    const count = retryInterrupted(() => libc().epoll_wait(this.fd, events, MAX_EVENTS, 0));
    if (count < 0) throw systemError("epoll_wait", "Cannot wait for file descriptors");
    return readEvents(new DataView(this.#block.bytes.buffer, 16), count);
  }

  /** Ends a wait that is in progress on another thread; whether that could be done. */
  wake(): boolean {
    this.#block.writeU64(0, 1n);
    return Number(libc().write(this.#wakeFd, this.#block.addressAt(0), toSize(8))) === 8;
  }

  /** Takes back `wake()`. */
  clearWake(): void {
    libc().read(this.#wakeFd, this.#block.addressAt(0), toSize(8));
  }

  /** No thread may be waiting any more: the numbers will be used again. */
  close(): void {
    discardFds(this.fd, this.#wakeFd);
    this.#block.free();
  }
}
