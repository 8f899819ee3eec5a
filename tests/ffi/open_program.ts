/** What open_test.ts starts in another working directory: tries the driver, then the libraries that it is given. */
import process from "node:process";
import { openLibrary } from "../../ffi/mod.ts";
import { createNativeDriver } from "../../src/driver/native.ts";
import { DriverNotFoundError, LibraryNotFoundError } from "../../src/errors.ts";

const CU_INIT = { cuInit: { prototype: "int cuInit(unsigned)", args: ["u32"], result: "i32" } } as const;

function attempt(name: string, open: () => unknown): void {
  try {
    open();
    console.log(`${name}: opened`);
  } catch (error) {
    if (!(error instanceof DriverNotFoundError || error instanceof LibraryNotFoundError)) throw error;
    console.log(`${name}: not found`);
  }
}

attempt("libcuda.so.1", () => createNativeDriver(undefined));
for (const name of process.argv.slice(2)) attempt(name, () => openLibrary(name, [name], CU_INIT));
