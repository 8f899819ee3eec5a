/** Which addresses are memory that the driver knows, and what each is. */
import type { ProcessState, RowOf } from "./state.ts";

export type Range = RowOf<"ranges">;

export const POOL = 1;
export const POOL_IMPORT = 2;
export const PLAIN = 3; // cuMemAlloc
export const HOST = 4; // cuMemHostAlloc
export const REGISTERED = 5; // cuMemHostRegister
export const VIRTUAL = 6; // cuMemMap
export const LEGACY_IMPORT = 7;

/** In place of how often a range was opened, which is not counted for imports of pool memory. */
const OVERLAPS = -1;

export class Ranges {
  readonly #table: ProcessState["tables"]["ranges"];
  readonly #order: Float64Array;
  readonly #state: ProcessState;

  constructor(state: ProcessState) {
    this.#state = state;
    this.#table = state.tables.ranges;
    this.#order = state.order;
  }

  get #count(): number {
    return this.#order[0];
  }

  /** The index of the first range that starts above `address`. */
  #indexAbove(address: number): number {
    let low = 1;
    let high = this.#count + 1;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (this.#table.get(this.#order[middle], "start") <= address) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Records a range of addresses; `span` is what it covers, `byteLength` what was asked for. */
  add(values: Partial<Omit<Range, "id">> & { kind: number; start: number; byteLength: number }): Range {
    const range = this.#table.create({ span: values.byteLength, references: 1, buffer: this.#state.process.buffer++, ...values });
    const index = this.#indexAbove(range.start);
    this.#order.copyWithin(index + 1, index, this.#count + 1);
    this.#order[index] = range.id;
    this.#order[0]++;
    return range;
  }

  remove(range: Range): void {
    const index = this.#indexAbove(range.start) - 1;
    this.#order.copyWithin(index, index + 1, this.#count + 1);
    this.#order[0]--;
    this.#table.destroy(range.id);
  }

  /** Only imports of pool memory may overlap. */
  markOverlap(range: Range, other: Range): void {
    range.references = other.references = OVERLAPS;
  }

  /** The range that covers the address; where imports overlap, the oldest one, as on hardware. */
  find(address: number): Range | undefined {
    const index = this.#indexAbove(address) - 1;
    if (index < 1) return undefined;
    const range = this.#table.at(this.#order[index]);
    if (range.references === OVERLAPS) return this.#oldest(index, address);
    return address < range.start + range.span ? range : undefined;
  }

  #oldest(last: number, address: number): Range | undefined {
    let found: Range | undefined;
    for (let index = last; index >= 1; index--) {
      const range = this.#table.at(this.#order[index]);
      if (range.kind !== POOL_IMPORT) break;
      if (address < range.start + range.span && (found === undefined || range.buffer < found.buffer)) found = range;
    }
    return found;
  }

  /** The range that starts exactly there. */
  startingAt(address: number): Range | undefined {
    const range = this.find(address);
    return range?.start === address ? range : undefined;
  }

  /** The ranges that touch [from, to), in order. Do not add or remove meanwhile. */
  *between(from: number, to: number): Generator<Range> {
    let index = this.#indexAbove(from) - 1;
    if (index < 1 || this.#end(index) <= from) index++;
    for (; index <= this.#count && this.#table.get(this.#order[index], "start") < to; index++) {
      yield this.#table.at(this.#order[index]);
    }
  }

  #end(index: number): number {
    const id = this.#order[index];
    return this.#table.get(id, "start") + this.#table.get(id, "span");
  }

  /** Whether every byte belongs to known memory. Neighbouring mappings of virtual memory count as one. */
  covers(address: number, byteLength: number): boolean {
    let at = address;
    do {
      const range = this.find(at);
      if (range === undefined) return false;
      at = range.start + range.span;
    } while (at < address + byteLength);
    return true;
  }
}
