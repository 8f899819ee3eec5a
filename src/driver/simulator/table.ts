/**
 * Records in shared memory. Every field is a number in a cell of 8 bytes (exact up to 2^53), so that all threads of a
 * process see the same records. Not locked: whoever uses a table holds the state's lock.
 */

/** Past any address that a process can have, so that a handle is never taken for memory. */
const HANDLE_BASE = 5 * 2 ** 48;
const HANDLE_KIND = 2 ** 40;
const HANDLE_GENERATION = 2 ** 20;
const GENERATIONS = 2 ** 20;

/** Cells before the rows: highest id ever used, first id of the free list, number of live rows. */
const HEADER_CELLS = 4;
const HIGHEST = 0;
const FIRST_FREE = 1;
const LIVE = 2;
/** Cells of each row before its fields: whether it is live (else the next free id), how often it was created. */
const ROW_CELLS = 2;

export interface TableShape {
  readonly fields: readonly string[];
  /** At most 2^20 - 1. */
  readonly capacity: number;
}

/** One record. Reading and writing a field reads and writes shared memory. */
export type Row<Field extends string = string> = { readonly id: number } & { [F in Field]: number };

/** All rows of a table are taken. */
export class TableFullError extends Error {}

export function cellsOf(shape: TableShape): number {
  return HEADER_CELLS + (shape.capacity + 1) * (ROW_CELLS + shape.fields.length);
}

export class Table<Field extends string> {
  readonly #name: string;
  readonly #kind: number;
  readonly #capacity: number;
  readonly #cells: Float64Array;
  readonly #longs: BigUint64Array;
  readonly #stride: number;
  readonly #offsets: Readonly<Record<Field, number>>;
  readonly #Row: new (id: number) => Row<Field>;

  /** `cells` is this table's part of the shared memory; `kind` makes its handles differ from other tables' handles. */
  constructor(name: string, kind: number, shape: { fields: readonly Field[]; capacity: number }, cells: Float64Array) {
    this.#name = name;
    this.#kind = kind;
    this.#capacity = shape.capacity;
    this.#cells = cells;
    this.#longs = new BigUint64Array(cells.buffer, cells.byteOffset, cells.length);
    this.#stride = ROW_CELLS + shape.fields.length;
    this.#offsets = Object.fromEntries(shape.fields.map((field, index) => [field, ROW_CELLS + index])) as Record<Field, number>;
    this.#Row = this.#makeRow(shape.fields);
  }

  #makeRow(fields: readonly Field[]): new (id: number) => Row<Field> {
    const cells = this.#cells;
    const stride = this.#stride;
    class TableRow {
      readonly id: number;
      readonly base: number;
      constructor(id: number) {
        this.id = id;
        this.base = HEADER_CELLS + id * stride;
      }
    }
    fields.forEach((field, index) =>
      Object.defineProperty(TableRow.prototype, field, {
        get(this: TableRow) {
          return cells[this.base + ROW_CELLS + index];
        },
        set(this: TableRow, value: number) {
          cells[this.base + ROW_CELLS + index] = value;
        },
      })
    );
    return TableRow as unknown as new (id: number) => Row<Field>;
  }

  #base(id: number): number {
    return HEADER_CELLS + id * this.#stride;
  }

  /** A new row, zeroed, with the given values. Ids start at 1. */
  create(values: { readonly [F in Field]?: number }): Row<Field> {
    const cells = this.#cells;
    let id = cells[FIRST_FREE];
    if (id !== 0) {
      cells[FIRST_FREE] = -cells[this.#base(id)];
    } else {
      id = cells[HIGHEST] + 1;
      if (id > this.#capacity) throw new TableFullError(`The simulator has no room for another of ${this.#name}`);
      cells[HIGHEST] = id;
    }
    const base = this.#base(id);
    const generation = cells[base + 1] + 1;
    cells.fill(0, base, base + this.#stride);
    cells[base] = 1;
    cells[base + 1] = generation;
    cells[LIVE]++;
    for (const field in values) cells[base + this.#offsets[field]] = values[field]!;
    return new this.#Row(id);
  }

  destroy(id: number): void {
    const base = this.#base(id);
    this.#cells[base] = -this.#cells[FIRST_FREE]; // 0 or negative: not live
    this.#cells[FIRST_FREE] = id;
    this.#cells[LIVE]--;
  }

  isLive(id: number): boolean {
    return id > 0 && id <= this.#cells[HIGHEST] && this.#cells[this.#base(id)] === 1;
  }

  /** How often the id was given out: tells a row from a later one with the same id. */
  generation(id: number): number {
    return this.#cells[this.#base(id) + 1];
  }

  at(id: number): Row<Field> {
    return new this.#Row(id);
  }

  /** One field without making a row: for searches. */
  get(id: number, field: Field): number {
    return this.#cells[HEADER_CELLS + id * this.#stride + this.#offsets[field]];
  }

  /** A field that holds all 64 bits. */
  getLong(id: number, field: Field): bigint {
    return this.#longs[this.#base(id) + this.#offsets[field]];
  }
  setLong(id: number, field: Field, value: bigint): void {
    this.#longs[this.#base(id) + this.#offsets[field]] = value;
  }

  get size(): number {
    return this.#cells[LIVE];
  }

  /** The live rows. Rows may be destroyed while one iterates. */
  *rows(): Generator<Row<Field>> {
    for (let id = 1; id <= this.#cells[HIGHEST]; id++) if (this.isLive(id)) yield this.at(id);
  }

  // ---- handles: what the driver's caller holds

  handle(id: number): number {
    return HANDLE_BASE + this.#kind * HANDLE_KIND + (this.generation(id) % GENERATIONS) * HANDLE_GENERATION + id;
  }

  /** The row of a handle, or undefined when it is no handle, another table's, or its object is gone. */
  find(handle: number): Row<Field> | undefined {
    const id = handle % HANDLE_GENERATION;
    return this.isLive(id) && this.handle(id) === handle ? this.at(id) : undefined;
  }
}
