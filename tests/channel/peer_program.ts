/** Another process of the channel tests: runs the functions that a test sends as text, one line of JSON each. */
import process from "node:process";
import { createInterface } from "node:readline";
import { Toolkit } from "./toolkit.ts";

const toolkit = new Toolkit();
console.log(JSON.stringify({ value: process.pid }));
for await (const line of createInterface({ input: process.stdin })) {
  const { source, args } = JSON.parse(line);
  let answer: unknown;
  try {
    const run = new Function(`return (${source});`)();
    answer = { value: await run(toolkit, ...args) };
  } catch (error) {
    answer = { error: { name: (error as Error)?.name, message: (error as Error)?.message, stack: (error as Error)?.stack } };
  }
  console.log(JSON.stringify(answer));
}
process.exit(0);
