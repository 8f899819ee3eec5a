/**
 * One mapping for each imported allocation of this process, counted over all its threads. The driver maps an allocation once
 * however often it is imported, and the first free unmaps it for all: so the last user frees, and nobody before.
 */
import { type Address, addressFromNumber } from "../../ffi/mod.ts";
import type { CudaDriver } from "../driver/driver.ts";
import { NotSupportedError } from "../errors.ts";
import { disownMapping, endMapping, type Entry, ownMapping, provideMappingRelease } from "./estate.ts";
import { IMPORT_CELLS, processMemory } from "./process_memory.ts";

/** Where an allocation lies in its exporter's pool. */
export interface PoolRange {
  readonly byteOffset: number;
  readonly byteLength: number;
}

/** What is mapped over a part of a range: memory that is in use here, or that was given up and waits for its streams' work. */
export type Overlap = "in use" | "ending";

// The table: heads of chains, one for each pool, then rows. 0 is no row.
const HEADS = 1024;
const USED_ROWS = 0; // how many rows were ever used
const FREE = 1; // the first free row
const HEADS_AT = 2;
const ROWS_AT = HEADS_AT + HEADS;
const ROW_CELLS = 9;
const MAX_ROWS = Math.floor((IMPORT_CELLS - ROWS_AT) / ROW_CELLS);
// Cells of a row
const DRIVER = 0;
const POOL = 1;
const ADDRESS = 2;
const BYTE_LENGTH = 3;
const BYTE_OFFSET = 4; // in the exporter's pool; UNKNOWN where the driver's bytes cannot be read
const USERS = 5;
const ENDING = 6; // how many of the users have given it up
const GENERATION = 7;
const NEXT = 8;
const UNKNOWN = -1;

const DRIVERS = { cuda: 1, simulator: 2 } as const;

/**
 * Runs an import and the counting of it, while no other thread of the process frees one: between the two the mapping would
 * be another's to unmap.
 */
export function whileImporting<T>(body: () => T): T {
  return processMemory().locked(body);
}

/** A mapped allocation of another process. */
export class ImportedMapping {
  readonly address: Address;
  readonly #driver: CudaDriver;
  readonly #cells: Float64Array;
  readonly #at: number;
  /** In the list of what this thread leaves behind. */
  #entry: Entry = 0;
  #isEnding = false;

  private constructor(driver: CudaDriver, at: number) {
    this.#driver = driver;
    this.#cells = processMemory().imports;
    this.#at = at;
    this.address = addressFromNumber(this.#cells[at + ADDRESS]);
  }

  /** What the driver has mapped at an address. Only inside `whileImporting`. */
  static at(driver: CudaDriver, pool: Address, address: Address): ImportedMapping | undefined {
    const place = Number(address);
    const at = findRow(driver, pool, (cells, at) => cells[at + ADDRESS] === place);
    return at === undefined ? undefined : new ImportedMapping(driver, at);
  }

  /** What is mapped of exactly that range. Only inside `whileImporting`. */
  static of(driver: CudaDriver, pool: Address, range: PoolRange): ImportedMapping | undefined {
    const at = findRow(driver, pool, (cells, at) => isRange(cells, at, range));
    return at === undefined ? undefined : new ImportedMapping(driver, at);
  }

  /** Registers what the driver has just mapped. Only inside `whileImporting`. */
  static add(
    driver: CudaDriver,
    pool: Address,
    address: Address,
    byteLength: number,
    range: PoolRange | undefined,
  ): ImportedMapping {
    const cells = processMemory().imports;
    const row = takeRow(cells);
    const at = rowAt(row);
    const head = headOf(driver, pool);
    const byteOffset = range?.byteOffset ?? UNKNOWN;
    cells.set([DRIVERS[driver.kind], Number(pool), Number(address), byteLength, byteOffset, 0, 0, 0, cells[head]], at);
    cells[head] = row;
    return new ImportedMapping(driver, at);
  }

  /** Makes this object a user, until its `release`. Only inside `whileImporting`. */
  addUser(generation: number): void {
    this.#entry = ownMapping(this.#driver, this.#at);
    this.#cells[this.#at + USERS]++;
    this.#cells[this.#at + GENERATION] = Math.max(this.#cells[this.#at + GENERATION], generation);
  }

  /** Whether a newer allocation of the exporter lies at the same place: the older descriptor's memory is gone. */
  isReused(generation: number): boolean {
    return generation < this.#cells[this.#at + GENERATION];
  }

  /** This user will release it when its work is done. */
  end(): void {
    this.#isEnding = true;
    processMemory().locked(() => {
      endMapping(this.#entry);
      this.#cells[this.#at + ENDING]++;
    });
  }

  /** Ends this user; the last one unmaps. Gives the driver's result. No work uses the mapping any more. */
  release(): number {
    return processMemory().locked(() => {
      disownMapping(this.#entry);
      return releaseUser(this.#driver, this.#at, this.#isEnding);
    });
  }
}

/**
 * What stands in the way of importing a range of a pool. The driver keeps wrong books on imports that overlap: it takes the
 * size of an older one, or does not find the newer one to free it. Only for the very same range it does well. Without a range,
 * where the driver's bytes cannot be read, whatever is ending may lie there. Only inside `whileImporting`.
 */
export function findOverlap(driver: CudaDriver, pool: Address, range: PoolRange | undefined): Overlap | undefined {
  let found: Overlap | undefined;
  findRow(driver, pool, (cells, at) => {
    const users = cells[at + USERS];
    const isEnding = users > 0 && cells[at + ENDING] === users;
    if (range === undefined) {
      if (isEnding) found = "ending";
      return isEnding;
    }
    if (!overlaps(cells, at, range) || isRange(cells, at, range)) return false;
    found = isEnding ? "ending" : "in use";
    return !isEnding;
  });
  return found;
}

function isRange(cells: Float64Array, at: number, { byteOffset, byteLength }: PoolRange): boolean {
  return cells[at + BYTE_OFFSET] === byteOffset && cells[at + BYTE_LENGTH] === byteLength;
}

function overlaps(cells: Float64Array, at: number, { byteOffset, byteLength }: PoolRange): boolean {
  const start = cells[at + BYTE_OFFSET];
  return start !== UNKNOWN && start < byteOffset + byteLength && byteOffset < start + cells[at + BYTE_LENGTH];
}

provideMappingRelease(releaseUser);

/** Only under the lock. `isEnding` tells whether the user has called `end`. */
function releaseUser(driver: CudaDriver, at: number, isEnding: boolean): number {
  const cells = processMemory().imports;
  // Counted down before the free: a thread that is terminated in between leaks, and nobody frees twice
  if (isEnding) cells[at + ENDING]--;
  if (--cells[at + USERS] > 0) return 0;
  const result = driver.memFree(addressFromNumber(cells[at + ADDRESS]));
  if (result === 0) removeRow(cells, driver, at); // else it is still mapped, for a later import to find
  return result;
}

/** The first row of a pool that matches. */
function findRow(
  driver: CudaDriver,
  pool: Address,
  matches: (cells: Float64Array, at: number) => boolean,
): number | undefined {
  const cells = processMemory().imports;
  for (let row = cells[headOf(driver, pool)]; row !== 0;) {
    const at = rowAt(row);
    if (cells[at + POOL] === Number(pool) && cells[at + DRIVER] === DRIVERS[driver.kind] && matches(cells, at)) return at;
    row = cells[at + NEXT];
  }
  return undefined;
}

function removeRow(cells: Float64Array, driver: CudaDriver, at: number): void {
  let link = headOf(driver, cells[at + POOL]);
  while (rowAt(cells[link]) !== at) link = rowAt(cells[link]) + NEXT;
  const row = cells[link];
  cells[link] = cells[at + NEXT];
  cells[at + NEXT] = cells[FREE];
  cells[FREE] = row;
}

function rowAt(row: number): number {
  return ROWS_AT + (row - 1) * ROW_CELLS;
}

/** The cell that begins the chain of a pool. */
function headOf(driver: CudaDriver, pool: Address | number): number {
  return HEADS_AT + (Math.floor(Number(pool) / 16) * 31 + DRIVERS[driver.kind]) % HEADS;
}

function takeRow(cells: Float64Array): number {
  const free = cells[FREE];
  if (free !== 0) {
    cells[FREE] = cells[rowAt(free) + NEXT];
    return free;
  }
  if (cells[USED_ROWS] === MAX_ROWS) {
    throw new NotSupportedError(`Cannot import a buffer: this process has ${MAX_ROWS} of them mapped. Free some`);
  }
  return ++cells[USED_ROWS];
}
