/** On a device without stream memory operations: work whose context is lost before the host could raise the fence. */
import { Device, openDriver, SharedFence, simulatorControl } from "../../mod.ts";

const simulator = openDriver("simulator");
const device = Device.open(0, { driver: simulator });
const stream = device.createStream();
const fence = SharedFence.create(device);
simulatorControl(simulator).occupyDevice(0, 10_000);
stream.record(); // is behind the work
stream.signal(fence, 1n);
simulatorControl(simulator).loseContext(0);
console.log(await fence.reached(1n).then(() => "reached", String));
