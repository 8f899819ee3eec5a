/** What connection_test.ts starts several times: listens when it is told to, and says how that went. */
import process from "node:process";
import type { SystemCallError } from "../../src/errors.ts";
import { Listener } from "../../src/os/socket.ts";

const path = process.argv[2];
process.stdin.once("data", () => {
  try {
    Listener.open(path);
    console.log("listening");
  } catch (error) {
    console.log((error as SystemCallError).errnoName);
  }
});
console.log("ready");
