import { test } from "node:test";
import {
  assert,
  assertAlmostEquals,
  assertArrayIncludes,
  assertEquals,
  assertExists,
  assertFalse,
  assertGreater,
  assertGreaterOrEqual,
  assertInstanceOf,
  AssertionError,
  assertIsError,
  assertLess,
  assertLessOrEqual,
  assertMatch,
  assertNotEquals,
  assertNotMatch,
  assertNotStrictEquals,
  assertRejects,
  assertStrictEquals,
  assertStringIncludes,
  assertThrows,
  fail,
} from "@std/assert";

/** The test's own judge: it must not lean on what it judges. */
function mustFail(name: string, fn: () => void): void {
  try {
    fn();
  } catch (error) {
    if (error instanceof AssertionError) return;
    throw new Error(`${name} threw ${error} instead of an AssertionError`);
  }
  throw new Error(`${name} accepted what it must refuse`);
}

async function mustReject(name: string, fn: () => Promise<unknown>): Promise<void> {
  const outcome = await fn().then(() => "accepted", (error) => error instanceof AssertionError ? "refused" : String(error));
  if (outcome !== "refused") throw new Error(`${name}: ${outcome}`);
}

const nothing = () => {};
const throwsRange = () => {
  throw new RangeError("index 7 is out of range");
};

test("each assertion accepts what holds", () => {
  assert(1);
  assertFalse(0);
  assertEquals({ a: [1n, NaN], b: new Uint8Array([1]) }, { a: [1n, NaN], b: new Uint8Array([1]) });
  assertNotEquals([1], [2]);
  assertStrictEquals(NaN, NaN);
  assertNotStrictEquals({}, {});
  assertExists(0);
  assertInstanceOf(new RangeError(), Error);
  assertStringIncludes("abc", "b");
  assertArrayIncludes([[1], [2]], [[2]]);
  assertMatch("abc", /b/);
  assertNotMatch("abc", /d/);
  assertGreater(2n, 1n);
  assertGreaterOrEqual(2, 2);
  assertLess(1, 2);
  assertLessOrEqual(2, 2);
  assertAlmostEquals(0.1 + 0.2, 0.3);
  assertIsError(new RangeError("seven"), RangeError, "eve");
});

test("each assertion refuses what does not hold", () => {
  mustFail("fail", () => fail());
  mustFail("assert", () => assert(0));
  mustFail("assertFalse", () => assertFalse(1));
  mustFail("assertEquals value", () => assertEquals({ a: 1 }, { a: 2 }));
  mustFail("assertEquals type", () => assertEquals<unknown>(1, 1n));
  mustFail("assertEquals bytes", () => assertEquals(new Uint8Array([1]), new Uint8Array([2])));
  mustFail("assertEquals array type", () => assertEquals<unknown>(new Uint8Array([1]), new Int8Array([1])));
  mustFail("assertNotEquals", () => assertNotEquals([1], [1]));
  mustFail("assertStrictEquals", () => assertStrictEquals({}, {}));
  mustFail("assertNotStrictEquals", () => assertNotStrictEquals(1, 1));
  mustFail("assertExists", () => assertExists(null));
  mustFail("assertInstanceOf", () => assertInstanceOf(new Error(), RangeError));
  mustFail("assertStringIncludes", () => assertStringIncludes("abc", "d"));
  mustFail("assertArrayIncludes", () => assertArrayIncludes([1], [2]));
  mustFail("assertMatch", () => assertMatch("abc", /d/));
  mustFail("assertNotMatch", () => assertNotMatch("abc", /b/));
  mustFail("assertGreater", () => assertGreater(1, 1));
  mustFail("assertGreaterOrEqual", () => assertGreaterOrEqual(NaN, 1));
  mustFail("assertLess", () => assertLess(1, 1));
  mustFail("assertLessOrEqual", () => assertLessOrEqual(2, 1));
  mustFail("assertAlmostEquals", () => assertAlmostEquals(1, 1.1));
  mustFail("assertIsError", () => assertIsError("text"));
});

test("assertThrows gives the error back and checks class and text", () => {
  const error = assertThrows(throwsRange, RangeError, "index 7");
  if (error.message !== "index 7 is out of range") throw new Error("not the thrown error");
  assertThrows(throwsRange);
  assertThrows(() => {
    throw "text";
  });
  mustFail("nothing thrown", () => assertThrows(nothing, Error));
  mustFail("other class", () => assertThrows(throwsRange, TypeError));
  mustFail("other text", () => assertThrows(throwsRange, RangeError, "index 8"));
});

test("assertRejects gives the error back, checks class and text, and refuses a synchronous throw", async () => {
  const rejects = () => Promise.reject(new RangeError("index 7 is out of range"));
  const error = await assertRejects(rejects, RangeError, "index 7");
  if (error.message !== "index 7 is out of range") throw new Error("not the reason");
  await mustReject("nothing rejected", () => assertRejects(() => Promise.resolve(), Error));
  await mustReject("other class", () => assertRejects(rejects, TypeError));
  await mustReject("other text", () => assertRejects(rejects, RangeError, "index 8"));
  await mustReject("synchronous throw", () => assertRejects(throwsRange as () => Promise<never>, RangeError));
});
