export { openDriver } from "./src/driver/mod.ts";
export * from "./src/errors.ts";
