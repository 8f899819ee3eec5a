/** cuMemcpy… and cuMemset…, on streams. */
import { CU_MEM_LOCATION_TYPE_DEVICE, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_UNIFIED } from "../enums.ts";
import type { Memcpy2D } from "../driver.ts";
import { CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_VALUE } from "../results.ts";
import { canWrite, READ_WRITE } from "./access.ts";
import { copyBytes, fillElements, mapAnonymous, unmap } from "./native.ts";
import type { Pools } from "./pool.ts";
import { COPY, FILL, type Stream } from "./queue.ts";
import { POOL, POOL_IMPORT, type Range, VIRTUAL } from "./ranges.ts";
import { Refusal } from "./refusal.ts";
import type { Streams } from "./stream.ts";
import type { World } from "./world.ts";

/** One side of a copy: rows of memory, `pitch` apart. */
interface Side {
  readonly address: number;
  readonly pitch: number;
  /** Host memory is the caller's own affair; device memory is checked. */
  readonly isHost: boolean;
  /** A host pool's memory is refused there, although the device reaches it. */
  readonly mustBeDevice: boolean;
}

/** What work does with memory. */
type Use = "read" | "write" | "fill";

/** Which sides of a copy are host memory, in its work. */
const HOST_SOURCE = 1;
const HOST_DESTINATION = 2;

export class Copies {
  readonly #world: World;
  readonly #pools: Pools;
  readonly #streams: Streams;

  constructor(world: World, pools: Pools, streams: Streams) {
    this.#world = world;
    this.#pools = pools;
    this.#streams = streams;

    // a, b: destination and its pitch; c, d: source and its pitch; e, f: bytes of a row, rows; g: host sides; h: staging
    world.queue.defineEffect(COPY, ({ a, b, c, d, e, f, g, h }) => {
      const isMapped = ((g & HOST_DESTINATION) !== 0 || this.#isMapped(a, b * (f - 1) + e)) &&
        ((g & HOST_SOURCE) !== 0 || this.#isMapped(c, d * (f - 1) + e));
      if (isMapped) {
        if (f === 1 || (b === e && d === e)) copyBytes(a, c, e * f);
        else for (let row = 0; row < f; row++) copyBytes(a + row * b, c + row * d, e);
      }
      dropStaging(e, f, h);
      return isMapped ? 0 : CUDA_ERROR_ILLEGAL_ADDRESS;
    }, ({ e, f, h }) => dropStaging(e, f, h));
    // a, b: destination and its pitch; c: value; d: bytes of an element; e, f: elements of a row, rows
    world.queue.defineEffect(FILL, ({ a, b, c, d, e, f }) => {
      if (!this.#isMapped(a, b * (f - 1) + d * e)) return CUDA_ERROR_ILLEGAL_ADDRESS;
      for (let row = 0; row < f; row++) fillElements(a + row * b, c, d, e);
    });
  }

  /** Memory that was freed while work on it was queued may still be there (stale, as on hardware) or be gone: a fault. */
  #isMapped(address: number, byteLength: number): boolean {
    if (this.#world.ranges.covers(address, byteLength)) return true;
    for (const memory of this.#world.tables.memories.rows()) {
      const end = memory.address + memory.mappedBytes;
      if (memory.address !== 0 && address >= memory.address && address + byteLength <= end) return true;
    }
    return false;
  }

  // ---- copies

  hostToDevice(destination: number, source: number, byteLength: number, stream: number): number {
    return this.#copy1D(device(destination), host(source), byteLength, stream);
  }
  deviceToHost(destination: number, source: number, byteLength: number, stream: number): number {
    return this.#copy1D(host(destination), device(source), byteLength, stream);
  }
  deviceToDevice(destination: number, source: number, byteLength: number, stream: number): number {
    return this.#copy1D(device(destination), device(source), byteLength, stream);
  }

  /** Either side may be any memory: what the driver does not know is the host's. */
  unified(destination: number, source: number, byteLength: number, stream: number): number {
    return this.#copy1D(this.#anyMemory(destination), this.#anyMemory(source), byteLength, stream);
  }

  #anyMemory(address: number): Side {
    const isHost = this.#world.ranges.find(address) === undefined;
    return { address, pitch: 0, isHost, mustBeDevice: false };
  }

  #copy1D(destination: Side, source: Side, byteLength: number, stream: number): number {
    const row = (side: Side) => ({ ...side, pitch: byteLength });
    return this.#copy(row(destination), row(source), byteLength, 1, stream);
  }

  copy2D(copy: Memcpy2D, stream: number): number {
    const { WidthInBytes: width = 0, Height: height = 0 } = copy;
    const from = this.#sideOf(copy.srcMemoryType, copy.srcHost, copy.srcDevice);
    const to = this.#sideOf(copy.dstMemoryType, copy.dstHost, copy.dstDevice);
    const source = rows(from, copy.srcPitch, copy.srcXInBytes, copy.srcY, width);
    const target = rows(to, copy.dstPitch, copy.dstXInBytes, copy.dstY, width);
    return this.#copy(target, source, width, height, stream);
  }

  #sideOf(memoryType: number | undefined, hostAddress: Memcpy2D["srcHost"], deviceAddress: Memcpy2D["srcDevice"]): Side {
    switch (memoryType) {
      case CU_MEMORYTYPE_HOST:
        return host(Number(hostAddress ?? 0));
      case CU_MEMORYTYPE_DEVICE:
        return device(Number(deviceAddress ?? 0));
      case CU_MEMORYTYPE_UNIFIED:
        return this.#anyMemory(Number(deviceAddress ?? 0));
      default:
        throw new Refusal(CUDA_ERROR_INVALID_VALUE);
    }
  }

  #copy(destination: Side, source: Side, width: number, height: number, streamHandle: number): number {
    const stream = this.#streams.resolve(streamHandle);
    if (width === 0 || height === 0) return 0;
    for (const side of [destination, source]) {
      const { isHost, mustBeDevice, address, pitch } = side;
      if (isHost) continue;
      if (mustBeDevice && this.#isHostPool(address)) throw new Refusal(CUDA_ERROR_INVALID_VALUE);
      this.#check(address, pitch * (height - 1) + width, stream, side === destination ? "write" : "read");
    }
    const isPageable = (side: Side) => side.isHost && this.#world.ranges.find(side.address) === undefined;
    const mustStage = isPageable(source) && !this.#world.queue.startsAtOnce(stream, this.#world.faults.workMs);
    const from = mustStage ? stage(source, width, height) : source;
    this.#world.queue.enqueue(stream, COPY, {
      a: destination.address,
      b: destination.pitch,
      c: from.address,
      d: from.pitch,
      e: width,
      f: height,
      g: (source.isHost ? HOST_SOURCE : 0) + (destination.isHost ? HOST_DESTINATION : 0),
      h: mustStage ? from.address : 0,
    }, this.#world.faults.workMs);
    if (isPageable(destination)) this.#streams.waitFor(stream); // as the driver: it blocks for all that is queued
    return 0;
  }

  // ---- fills

  fill(
    elementBytes: number,
    destination: number,
    pitch: number,
    value: number,
    width: number,
    height: number,
    handle: number,
  ): number {
    const stream = this.#streams.resolve(handle);
    if (width === 0 || height === 0) return 0;
    const rowBytes = elementBytes * width;
    if (destination % elementBytes !== 0 || pitch % elementBytes !== 0 || (height > 1 && pitch < rowBytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    this.#check(destination, pitch * (height - 1) + rowBytes, stream, "fill");
    const values = { a: destination, b: pitch, c: value, d: elementBytes, e: width, f: height };
    this.#world.queue.enqueue(stream, FILL, values, this.#world.faults.workMs);
    return 0;
  }

  // ---- what may be touched

  /** Copies between pools need no access: the driver stages them, or takes a host's memory as such. Everything else does. */
  #check(address: number, byteLength: number, stream: Stream, use: Use): void {
    const { ranges } = this.#world;
    if (!ranges.covers(address, byteLength)) throw new Refusal(CUDA_ERROR_INVALID_VALUE);
    for (const range of ranges.between(address, address + byteLength)) {
      if (range.freeing !== 0 || !this.#isAccessible(range, stream.device, use)) throw new Refusal(CUDA_ERROR_INVALID_VALUE);
    }
  }

  #isHostPool(address: number): boolean {
    const range = this.#world.ranges.find(address);
    return range !== undefined && (range.kind === POOL || range.kind === POOL_IMPORT) &&
      this.#world.tables.pools.get(range.owner, "locationType") !== CU_MEM_LOCATION_TYPE_DEVICE;
  }

  #isAccessible(range: Range, device: number, use: Use): boolean {
    switch (range.kind) {
      case VIRTUAL:
        return use === "read" ? range.access !== 0 : canWrite(range.access);
      case POOL:
      case POOL_IMPORT:
        return use !== "fill" || this.#pools.accessFor(range.owner, device) === READ_WRITE;
      default:
        return true;
    }
  }
}

function device(address: number): Side {
  return { address, pitch: 0, isHost: false, mustBeDevice: true };
}

function host(address: number): Side {
  return { address, pitch: 0, isHost: true, mustBeDevice: false };
}

function dropStaging(width: number, height: number, staging: number): void {
  if (staging !== 0) unmap(staging, width * height);
}

/** The rows of a 2D copy on one side; without a pitch they follow each other. */
function rows(side: Side, pitch = 0, x = 0, y = 0, width: number): Side {
  const rowPitch = pitch === 0 ? x + width : pitch;
  return { ...side, address: side.address + y * rowPitch + x, pitch: rowPitch };
}

/** Takes a copy of pageable memory, as the driver does, so that the caller may change it at once. */
function stage(source: Side, width: number, height: number): Side {
  const address = mapAnonymous(width * height);
  for (let row = 0; row < height; row++) copyBytes(address + row * width, source.address + row * source.pitch, width);
  return { address, pitch: width, isHost: true, mustBeDevice: false };
}
