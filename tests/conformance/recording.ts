/** What the conformance stub has recorded of the latest call, as seen from JavaScript. */
import { createHostView, openLibrary, type SymbolTable } from "../../ffi/mod.ts";
import { RECORDING } from "./stub.ts";

const CONTROL = {
  stub_recording: { prototype: "struct recording *stub_recording(void)", args: [], result: "address" },
  stub_layouts: { prototype: "const uint64_t *stub_layouts(void)", args: [], result: "address" },
} as const satisfies SymbolTable;

const { fields } = RECORDING;
const ARGUMENT_BYTES = 16;

export class Recording {
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  readonly #layouts: DataView;

  /** The stub at `path`, which the driver has opened too: both see one library. `layoutCount` numbers lie in its table. */
  constructor(path: string, layoutCount: number) {
    const control = openLibrary("the conformance stub", [path], CONTROL);
    this.#bytes = createHostView(control.stub_recording(), RECORDING.byteLength).bytes;
    this.#view = new DataView(this.#bytes.buffer);
    this.#layouts = new DataView(createHostView(control.stub_layouts(), layoutCount * 8).bytes.buffer);
  }

  /** What the stub's functions return from now on. */
  set result(code: number) {
    this.#view.setInt32(fields.result.offset, code, true);
  }
  /** The index in the symbol table of the function that was called. */
  get symbol(): number {
    return this.#view.getUint32(fields.symbol.offset, true);
  }
  get argumentCount(): number {
    return this.#view.getUint32(fields.argumentCount.offset, true);
  }
  /** The bytes of one argument as C got it: their number is its width. */
  argument(index: number): Uint8Array {
    return this.#bytesOf(index, 0);
  }
  /** The bytes behind an argument that is a pointer: what C read there, or what it wrote. */
  pointee(index: number): Uint8Array {
    return this.#bytesOf(index, 8);
  }
  /** sizeof and offsetof, as gcc says: see the stub's layout table. */
  layoutNumber(index: number): number {
    return Number(this.#layouts.getBigUint64(index * 8, true));
  }

  #bytesOf(index: number, at: number): Uint8Array {
    const place = fields.arguments.offset + index * ARGUMENT_BYTES + at;
    const begin = fields.bytes.offset + this.#view.getUint32(place, true);
    return this.#bytes.slice(begin, begin + this.#view.getUint32(place + 4, true));
  }
}
