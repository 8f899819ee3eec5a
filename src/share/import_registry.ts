/**
 * One mapping for each imported allocation of this process, counted over all its threads. The driver maps an allocation once
 * however often it is imported, and the first free unmaps it for all: so the last user frees, and nobody before.
 */
import { type Address, addressFromNumber } from "../../ffi/mod.ts";
import type { CudaDriver } from "../driver/driver.ts";
import { NotSupportedError } from "../errors.ts";
import { disownMapping, type Entry, ownMapping, provideMappingRelease } from "./estate.ts";
import { IMPORT_CELLS, processMemory } from "./process_memory.ts";

/** The mapped address; for host memory, whose second import the driver refuses, its offset in the exporter's pool. */
type Key = Address | bigint;

// The table: heads of chains, then rows. 0 is no row.
const HEADS = 8192;
const USED_ROWS = 0; // how many rows were ever used
const FREE = 1; // the first free row
const HEADS_AT = 2;
const ROWS_AT = HEADS_AT + HEADS;
const ROW_CELLS = 8;
const MAX_ROWS = Math.floor((IMPORT_CELLS - ROWS_AT) / ROW_CELLS);
// Cells of a row. The first three are its key: what the driver returned, never what a peer claims
const DRIVER = 0;
const POOL = 1;
const PLACE = 2;
const ADDRESS = 3;
const BYTE_LENGTH = 4;
const USERS = 5;
const GENERATION = 6;
const NEXT = 7;

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
  readonly byteLength: number;
  readonly #driver: CudaDriver;
  readonly #cells: Float64Array;
  readonly #at: number;
  /** In the list of what this thread leaves behind. */
  #entry: Entry = 0;

  private constructor(driver: CudaDriver, at: number) {
    this.#driver = driver;
    this.#cells = processMemory().imports;
    this.#at = at;
    this.address = addressFromNumber(this.#cells[at + ADDRESS]);
    this.byteLength = this.#cells[at + BYTE_LENGTH];
  }

  /** What is mapped at a place of a pool. Only inside `whileImporting`. */
  static find(driver: CudaDriver, pool: Address, key: Key): ImportedMapping | undefined {
    const cells = processMemory().imports;
    for (let row = cells[headOf(driver, pool, key)]; row !== 0;) {
      const at = rowAt(row);
      if (cells[at + PLACE] === Number(key) && cells[at + POOL] === Number(pool) && cells[at + DRIVER] === DRIVERS[driver.kind]) {
        return new ImportedMapping(driver, at);
      }
      row = cells[at + NEXT];
    }
    return undefined;
  }

  /** Registers what the driver has just mapped. Only inside `whileImporting`. */
  static add(driver: CudaDriver, pool: Address, key: Key, address: Address, byteLength: number): ImportedMapping {
    const cells = processMemory().imports;
    const row = takeRow(cells);
    const at = rowAt(row);
    const head = headOf(driver, pool, key);
    cells.set([DRIVERS[driver.kind], Number(pool), Number(key), Number(address), byteLength, 0, 0, cells[head]], at);
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

  /** Ends this user; the last one unmaps. Gives the driver's result. No work uses the mapping any more. */
  release(): number {
    return processMemory().locked(() => {
      disownMapping(this.#entry);
      return releaseUser(this.#driver, this.#at);
    });
  }
}

provideMappingRelease(releaseUser);

/** Only under the lock. */
function releaseUser(driver: CudaDriver, at: number): number {
  const cells = processMemory().imports;
  // Counted down before the free: a thread that is terminated in between leaks, and nobody frees twice
  if (--cells[at + USERS] > 0) return 0;
  const result = driver.memFree(addressFromNumber(cells[at + ADDRESS]));
  if (result === 0) forget(cells, driver, at); // else it is still mapped, for a later import to find
  return result;
}

function forget(cells: Float64Array, driver: CudaDriver, at: number): void {
  let link = headOf(driver, cells[at + POOL], cells[at + PLACE]);
  while (rowAt(cells[link]) !== at) link = rowAt(cells[link]) + NEXT;
  const row = cells[link];
  cells[link] = cells[at + NEXT];
  cells[at + NEXT] = cells[FREE];
  cells[FREE] = row;
}

function rowAt(row: number): number {
  return ROWS_AT + (row - 1) * ROW_CELLS;
}

/** The cell that begins the chain of a key. */
function headOf(driver: CudaDriver, pool: Address | number, key: Key | number): number {
  // Allocations are aligned to 512 bytes at least
  const mixed = Math.floor(Number(key) / 512) + Math.floor(Number(pool) / 16) * 31 + DRIVERS[driver.kind];
  return HEADS_AT + mixed % HEADS;
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
