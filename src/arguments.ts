/** Checks of what users pass: wrong input is refused here, before the driver sees it. */
import { InvalidArgumentError } from "./errors.ts";

/** A value as it may stand in a message: short, and never calling the user's code. */
export function shown(value: unknown): string {
  switch (typeof value) {
    case "string":
      return JSON.stringify(value.length > 60 ? value.slice(0, 57) + "…" : value);
    case "bigint":
      return `${value}n`;
    case "number":
    case "boolean":
    case "undefined":
      return String(value);
    case "function":
      return "a function";
    case "symbol":
      return "a symbol";
    default:
      return value === null ? "null" : Array.isArray(value) ? "an array" : withArticle(className(value as object));
  }
}

/** "a Device", "an AllocationHandle". */
export function withArticle(name: string): string {
  return `${/^[AEIOU]/i.test(name) ? "an" : "a"} ${name}`;
}

function className(value: object): string {
  const name: unknown = Object.getPrototypeOf(value)?.constructor?.name;
  return typeof name === "string" && name !== "" ? name : "object";
}

/** What was attempted, for messages. A text that is made only when it is shown. */
export interface Text {
  toString(): string;
}

/** A verb and the object that it is about, whose name is asked for only when the text is shown. */
export class Action implements Text {
  readonly #verb: string;
  readonly #object: Text;

  constructor(verb: string, object: Text) {
    this.#verb = verb;
    this.#object = object;
  }

  toString(): string {
    return `${this.#verb} ${this.#object}`;
  }
}

/** `action` starts with a verb: "allocate from MemoryPool …". */
export function invalid(action: Text, name: string, value: unknown, wanted: string): InvalidArgumentError {
  const given = shown(value);
  const hint = given === wanted ? ": it was made by another copy of this module. Import one of them everywhere" : "";
  return new InvalidArgumentError(`Cannot ${action}: ${name} is ${given}, expected ${wanted}${hint}`);
}

/** An integer within a range, ends included. */
export function checkInteger(
  action: Text,
  name: string,
  value: unknown,
  min: number,
  max: number = Number.MAX_SAFE_INTEGER,
): number {
  if (!Number.isSafeInteger(value) || (value as number) < min || (value as number) > max) {
    throw invalid(action, name, value, `an integer from ${min} to ${max}`);
  }
  return value as number;
}

/** `true` or `false`; absent gives the default. */
export function checkBoolean(action: Text, name: string, value: unknown, whenAbsent: boolean): boolean {
  if (value === undefined) return whenAbsent;
  if (typeof value !== "boolean") throw invalid(action, name, value, "true or false");
  return value;
}

/** An options object; absent gives an empty one. Other names than these are refused: a misspelled one would go unseen. */
export function checkOptions<T extends object>(
  action: Text,
  options: T | undefined,
  names: readonly (keyof T & string)[],
): Partial<T> {
  if (options === undefined) return {};
  if (typeof options !== "object" || options === null || Array.isArray(options)) {
    throw invalid(action, "options", options, "an object");
  }
  for (const name in options) {
    if (!names.includes(name)) {
      throw new InvalidArgumentError(`Cannot ${action}: there is no option ${shown(name)}, expected ${names.join(", ")}`);
    }
  }
  return options;
}

/** An AbortSignal, or absent. Throws its reason when it is aborted already. */
export function checkSignal(action: Text, signal: unknown): AbortSignal | undefined {
  if (signal === undefined) return undefined;
  if (!(signal instanceof AbortSignal)) throw invalid(action, "signal", signal, "an AbortSignal");
  signal.throwIfAborted();
  return signal;
}

/** Any view of bytes, as a Uint8Array over the same memory. A detached or empty one is refused. */
export function checkBytes(action: Text, name: string, value: unknown): Uint8Array {
  if (!ArrayBuffer.isView(value)) {
    throw invalid(action, name, value, "a Uint8Array or another view of an ArrayBuffer");
  }
  if (value.byteLength === 0) throw new InvalidArgumentError(`Cannot ${action}: ${name} is empty or detached`);
  return new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
}
