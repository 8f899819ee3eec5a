/** Prints what ipc_support_test.ts wants to know of a simulated machine. */
import { Device } from "../../mod.ts";

using device = Device.open(0);
console.log(JSON.stringify(device.ipcSupport()));
