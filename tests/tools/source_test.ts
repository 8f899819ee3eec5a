import { test } from "node:test";
import { assertEquals } from "@std/assert";
import { importsOf, withoutComments } from "../../tools/source.ts";

const blanked = (text: string) => withoutComments(text).replace(/ +/g, " ").trim();

test("comments go, and what looks like one in a literal stays", () => {
  assertEquals(blanked("a; // b\nc;"), "a; \nc;");
  assertEquals(blanked("a /* b\n c */ d"), "a \n d");
  assertEquals(blanked("/** a */ b /* */ c /**/ d"), "b c d");
  for (
    const kept of [
      `"http://a"; 'it\\'s // b'; "\\\\";`,
      "`a // ${b} /* c */`;",
      "`${`// ${{ a: 1 }.a}`} /* b */`;",
      '/[/*]\\/\\/[^/"]/g.test(a);',
      "const half = a / b / c;",
      'return /"/;',
      "`\\`// a`;",
    ]
  ) {
    assertEquals(withoutComments(`${kept} // gone`).trimEnd(), kept);
  }
  assertEquals(blanked("`${a /* b */}` // c"), "`${a }`");
});

test("lines stay where they are", () => {
  const text = "/*\n\n*/\n`\n// a\n`\n// b\nc";
  assertEquals(withoutComments(text).split("\n").length, text.split("\n").length);
});

test("every form of import is found", () => {
  const code = [
    'import { a } from "./a.ts";',
    'import type { b } from "./b.ts";',
    'import { type c, type C } from "./c.ts";',
    'import { type d, D } from "./d.ts";',
    'import e, { E } from "./e.ts";',
    'import * as f from "./f.ts";',
    'import "./g.ts";',
    'export { h } from "./h.ts";',
    'export * from "./i.ts";',
    'export type { j } from "./j.ts";',
    "const k = await import('./k.ts');",
    "import {",
    "  type l,",
    "  L,",
    '} from "./l.ts";',
    'import type from "./m.ts";',
    'export * as n from "./n.ts";',
    'export interface O { readonly type: "o" }',
    'export const p = "p", from = "q";',
    'export function r(): void { s("t"); }',
  ].join("\n");
  assertEquals(
    importsOf(code).sort((a, b) => a.line - b.line).map(({ specifier, typeOnly, line }) =>
      `${line} ${specifier}${typeOnly ? " type" : ""}`
    ),
    [
      "1 ./a.ts",
      "2 ./b.ts type",
      "3 ./c.ts type",
      "4 ./d.ts",
      "5 ./e.ts",
      "6 ./f.ts",
      "7 ./g.ts",
      "8 ./h.ts",
      "9 ./i.ts",
      "10 ./j.ts type",
      "11 ./k.ts",
      "12 ./l.ts",
      "16 ./m.ts",
      "17 ./n.ts",
    ],
  );
});
