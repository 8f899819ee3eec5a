/**
 * One mapping for each imported allocation of this thread, counted. The driver maps an allocation once however often
 * it is imported, and the first free unmaps it for all: so the last user frees, and nobody before.
 */
import type { Address } from "../../ffi/mod.ts";
import type { CudaDriver } from "../driver/driver.ts";

/** By what the driver returned, never by what a peer claims: driver, pool handle, mapped address. */
const mappings = new Map<CudaDriver, Map<Address, Map<Address, ImportedMapping>>>();

/** A mapped allocation of another process. */
export class ImportedMapping {
  readonly address: Address;
  readonly #driver: CudaDriver;
  readonly #pool: Address;
  #users = 0;
  #generation = 0;

  private constructor(driver: CudaDriver, pool: Address, address: Address) {
    this.#driver = driver;
    this.#pool = pool;
    this.address = address;
  }

  /** Counts one user of the mapping that the driver has just returned. Each is ended by `release`. */
  static use(driver: CudaDriver, pool: Address, address: Address, generation: number): ImportedMapping {
    let byPool = mappings.get(driver);
    if (byPool === undefined) mappings.set(driver, byPool = new Map());
    let byAddress = byPool.get(pool);
    if (byAddress === undefined) byPool.set(pool, byAddress = new Map());
    let mapping = byAddress.get(address);
    if (mapping === undefined) byAddress.set(address, mapping = new ImportedMapping(driver, pool, address));
    mapping.#users++;
    mapping.#generation = Math.max(mapping.#generation, generation);
    return mapping;
  }

  /** Whether a newer allocation of the exporter lies at the same place: the older descriptor's memory is gone. */
  isReused(generation: number): boolean {
    return generation < this.#generation;
  }

  /** Ends one user; the last one unmaps. Gives the driver's result. No work uses the mapping any more. */
  release(): number {
    if (--this.#users > 0) return 0;
    const byPool = mappings.get(this.#driver)!;
    const byAddress = byPool.get(this.#pool)!;
    byAddress.delete(this.address);
    if (byAddress.size === 0) byPool.delete(this.#pool);
    return this.#driver.memFree(this.address);
  }
}
