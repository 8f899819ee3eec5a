/**
 * The functions of `@std/assert` that the tests use, over `node:assert/strict`, so that the suite needs no registry.
 * Names, argument order and results are those of `@std/assert`; deno.json says how to switch to the original.
 *
 * @module
 */
import strict from "node:assert/strict";

/** What a failed assertion throws. */
export const AssertionError: typeof strict.AssertionError = strict.AssertionError;

// deno-lint-ignore no-explicit-any
type AnyConstructor = new (...args: any[]) => any;
// deno-lint-ignore no-explicit-any
type ErrorClass<E extends Error> = new (...args: any[]) => E;

function because(message: string | undefined): string {
  return message === undefined ? "" : `: ${message}`;
}

// `msg!` below: node:assert's types refuse the undefined that its functions accept.

function show(value: unknown): string {
  if (typeof value === "string") return JSON.stringify(value);
  if (typeof value === "bigint") return `${value}n`;
  return String(value);
}

/** Fails always. */
export function fail(msg?: string): never {
  throw new AssertionError({ message: `Failed assertion${because(msg)}` });
}

/** `value` is truthy. */
export function assert(value: unknown, msg?: string): asserts value {
  if (!value) {
    throw new AssertionError({ message: msg ?? "Expected a truthy value", actual: value, expected: true, operator: "==" });
  }
}

/** `value` is falsy. */
export function assertFalse(value: unknown, msg?: string): asserts value is false | 0 | 0n | "" | null | undefined {
  if (value) {
    throw new AssertionError({ message: msg ?? "Expected a falsy value", actual: value, expected: false, operator: "==" });
  }
}

/** Both have the same structure, types and values. */
export function assertEquals<T>(actual: T, expected: T, msg?: string): void {
  strict.deepStrictEqual(actual, expected, msg!);
}

/** The two differ in structure, type or value. */
export function assertNotEquals<T>(actual: T, expected: T, msg?: string): void {
  strict.notDeepStrictEqual(actual, expected, msg!);
}

/** Both are one and the same by `Object.is`. */
export function assertStrictEquals<T>(actual: unknown, expected: T, msg?: string): asserts actual is T {
  strict.strictEqual(actual, expected, msg!);
}

/** The two are not the same by `Object.is`. */
export function assertNotStrictEquals<T>(actual: T, expected: T, msg?: string): void {
  strict.notStrictEqual(actual, expected, msg!);
}

/** `actual` is neither null nor undefined. */
export function assertExists<T>(actual: T, msg?: string): asserts actual is NonNullable<T> {
  if (actual === null || actual === undefined) fail(`expected a value, got ${actual}${because(msg)}`);
}

/** `actual` is an instance of `expectedType`. */
export function assertInstanceOf<T extends AnyConstructor>(
  actual: unknown,
  expectedType: T,
  msg?: string,
): asserts actual is InstanceType<T> {
  if (actual instanceof expectedType) return;
  const got = typeof actual === "object" && actual !== null ? actual.constructor?.name ?? "object" : typeof actual;
  fail(`expected an instance of ${expectedType.name}, got ${got}${because(msg)}`);
}

/** `actual` contains `expected`. */
export function assertStringIncludes(actual: string, expected: string, msg?: string): void {
  if (!actual.includes(expected)) fail(`expected ${show(actual)} to contain ${show(expected)}${because(msg)}`);
}

/** `actual` contains each element of `expected`, by structure. */
export function assertArrayIncludes<T>(actual: ArrayLike<T>, expected: ArrayLike<T>, msg?: string): void {
  const elements = Array.from(actual);
  for (const wanted of Array.from(expected)) {
    if (!elements.some((element) => equal(element, wanted))) fail(`expected the array to contain ${show(wanted)}${because(msg)}`);
  }
}

/** `actual` matches `expected`. */
export function assertMatch(actual: string, expected: RegExp, msg?: string): void {
  if (!expected.test(actual)) fail(`expected ${show(actual)} to match ${expected}${because(msg)}`);
}

/** `actual` does not match `expected`. */
export function assertNotMatch(actual: string, expected: RegExp, msg?: string): void {
  if (expected.test(actual)) fail(`expected ${show(actual)} not to match ${expected}${because(msg)}`);
}

/** `actual` > `expected`. */
export function assertGreater<T>(actual: T, expected: T, msg?: string): void {
  if (!(actual > expected)) fail(`expected ${show(actual)} > ${show(expected)}${because(msg)}`);
}

/** `actual` >= `expected`. */
export function assertGreaterOrEqual<T>(actual: T, expected: T, msg?: string): void {
  if (!(actual >= expected)) fail(`expected ${show(actual)} >= ${show(expected)}${because(msg)}`);
}

/** `actual` < `expected`. */
export function assertLess<T>(actual: T, expected: T, msg?: string): void {
  if (!(actual < expected)) fail(`expected ${show(actual)} < ${show(expected)}${because(msg)}`);
}

/** `actual` <= `expected`. */
export function assertLessOrEqual<T>(actual: T, expected: T, msg?: string): void {
  if (!(actual <= expected)) fail(`expected ${show(actual)} <= ${show(expected)}${because(msg)}`);
}

/** `actual` and `expected` differ by at most `tolerance` (by default a millionth of a percent of `expected`). */
export function assertAlmostEquals(actual: number, expected: number, tolerance?: number, msg?: string): void {
  if (Object.is(actual, expected)) return;
  const allowed = tolerance ?? (Number.isFinite(expected) ? Math.abs(expected * 1e-7) : 1e-7);
  if (!(Math.abs(expected - actual) <= allowed)) fail(`expected ${actual} to be within ${allowed} of ${expected}${because(msg)}`);
}

/** `error` is an Error, of the class and with the text asked for. */
export function assertIsError<E extends Error = Error>(
  error: unknown,
  errorClass?: ErrorClass<E>,
  msgMatches?: string | RegExp,
  msg?: string,
): asserts error is E {
  if (!(error instanceof Error)) fail(`expected an Error, got ${show(error)}${because(msg)}`);
  if (errorClass && !(error instanceof errorClass)) {
    fail(`expected ${errorClass.name}, got ${error.constructor.name}: ${error.message}${because(msg)}`);
  }
  if (typeof msgMatches === "string") assertStringIncludes(error.message, msgMatches, msg);
  else if (msgMatches) assertMatch(error.message, msgMatches, msg);
}

/** `fn` throws. Gives back what it threw. */
export function assertThrows(fn: () => unknown, msg?: string): unknown;
/** `fn` throws an error of the class whose message contains `msgIncludes`. Gives the error back. */
export function assertThrows<E extends Error = Error>(
  fn: () => unknown,
  errorClass: ErrorClass<E>,
  msgIncludes?: string,
  msg?: string,
): E;
export function assertThrows<E extends Error = Error>(
  fn: () => unknown,
  classOrMessage?: ErrorClass<E> | string,
  msgIncludes?: string,
  msg?: string,
): unknown {
  const errorClass = typeof classOrMessage === "string" ? undefined : classOrMessage;
  const note = typeof classOrMessage === "string" ? classOrMessage : msg;
  try {
    fn();
  } catch (error) {
    if (errorClass) assertIsError(error, errorClass, msgIncludes, note);
    return error;
  }
  fail(`expected the function to throw${because(note)}`);
}

/** The promise of `fn` rejects. Gives the reason back. */
export function assertRejects(fn: () => PromiseLike<unknown>, msg?: string): Promise<unknown>;
/** The promise of `fn` rejects with an error of the class whose message contains `msgIncludes`. Gives the error back. */
export function assertRejects<E extends Error = Error>(
  fn: () => PromiseLike<unknown>,
  errorClass: ErrorClass<E>,
  msgIncludes?: string,
  msg?: string,
): Promise<E>;
export async function assertRejects<E extends Error = Error>(
  fn: () => PromiseLike<unknown>,
  classOrMessage?: ErrorClass<E> | string,
  msgIncludes?: string,
  msg?: string,
): Promise<unknown> {
  const errorClass = typeof classOrMessage === "string" ? undefined : classOrMessage;
  const note = typeof classOrMessage === "string" ? classOrMessage : msg;
  let promise: PromiseLike<unknown>;
  try {
    promise = fn();
  } catch (error) {
    fail(`expected the function to reject, it threw ${show(error)}${because(note)}`);
  }
  try {
    await promise;
  } catch (error) {
    if (errorClass) assertIsError(error, errorClass, msgIncludes, note);
    return error;
  }
  fail(`expected the promise to reject${because(note)}`);
}

/** Whether both have the same structure, types and values. */
export function equal(a: unknown, b: unknown): boolean {
  try {
    strict.deepStrictEqual(a, b);
    return true;
  } catch {
    return false;
  }
}
