/** The drivers that the suite runs against: one that has everything, an old one, and one that cannot be used. */
import { DRIVER_SYMBOLS } from "../../src/driver/symbols.ts";
import { LAYOUTS, SYMBOL_NAMES, type SymbolName } from "./calls.ts";
import { buildStub } from "./stub.ts";

export const VARIANTS = ["full", "old", "lacking"] as const;
export type Variant = (typeof VARIANTS)[number];

/** Symbols that a variant lacks. */
const OMITTED: Readonly<Record<Variant, readonly SymbolName[]>> = {
  full: [],
  old: SYMBOL_NAMES.filter((name) => "optional" in DRIVER_SYMBOLS[name]),
  lacking: ["cuMemPoolCreate"],
};

/** Compiles a variant of the stub and gives its absolute path. */
export function buildVariant(variant: Variant): string {
  return buildStub(DRIVER_SYMBOLS, LAYOUTS, { omit: OMITTED[variant] });
}
