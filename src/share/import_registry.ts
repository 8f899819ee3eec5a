/**
 * One mapping for each imported allocation of this thread, counted. The driver maps an allocation once however often
 * it is imported, and the first free unmaps it for all: so the last user frees, and nobody before.
 */
import type { Address } from "../../ffi/mod.ts";
import type { CudaDriver } from "../driver/driver.ts";

/** The mapped address; for host memory, whose second import the driver refuses, its offset in the exporter's pool. */
type Key = Address | bigint;

/** By what the driver returned, never by what a peer claims: driver, pool handle, place. */
const mappings = new Map<CudaDriver, Map<Address, Map<Key, ImportedMapping>>>();

/** A mapped allocation of another process. */
export class ImportedMapping {
  readonly address: Address;
  readonly byteLength: number;
  readonly #driver: CudaDriver;
  readonly #pool: Address;
  readonly #key: Key;
  #users = 0;
  #generation = 0;

  private constructor(driver: CudaDriver, pool: Address, key: Key, address: Address, byteLength: number) {
    this.#driver = driver;
    this.#pool = pool;
    this.#key = key;
    this.address = address;
    this.byteLength = byteLength;
  }

  /** What is mapped at a place of a pool. */
  static find(driver: CudaDriver, pool: Address, key: Key): ImportedMapping | undefined {
    return mappings.get(driver)?.get(pool)?.get(key);
  }

  /** Registers what the driver has just mapped. */
  static add(driver: CudaDriver, pool: Address, key: Key, address: Address, byteLength: number): ImportedMapping {
    let byPool = mappings.get(driver);
    if (byPool === undefined) mappings.set(driver, byPool = new Map());
    let byKey = byPool.get(pool);
    if (byKey === undefined) byPool.set(pool, byKey = new Map());
    const mapping = new ImportedMapping(driver, pool, key, address, byteLength);
    byKey.set(key, mapping);
    return mapping;
  }

  /** Counts one user. Each is ended by `release`. */
  addUser(generation: number): void {
    this.#users++;
    this.#generation = Math.max(this.#generation, generation);
  }

  /** Whether a newer allocation of the exporter lies at the same place: the older descriptor's memory is gone. */
  isReused(generation: number): boolean {
    return generation < this.#generation;
  }

  /** Ends one user; the last one unmaps. Gives the driver's result. No work uses the mapping any more. */
  release(): number {
    if (--this.#users > 0) return 0;
    const result = this.#driver.memFree(this.address);
    if (result === 0) this.#forget(); // else it is still mapped, for a later import to find
    return result;
  }

  #forget(): void {
    const byPool = mappings.get(this.#driver)!;
    const byKey = byPool.get(this.#pool)!;
    byKey.delete(this.#key);
    if (byKey.size === 0) byPool.delete(this.#pool);
  }
}
