/** What lookup_test.ts starts in a folder with planted libraries: prints the first device's name, or the error. */
import { Device } from "../../mod.ts";
import { ownIdentity } from "../../src/os/process.ts";

ownIdentity(); // opens kernel32.dll and the C library
try {
  console.log(Device.list()[0].name);
} catch (error) {
  console.log(String(error));
}
