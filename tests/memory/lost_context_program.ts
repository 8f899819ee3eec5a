/** Closes one thing of each kind after a kernel has failed. */
import {
  CudaDriverError,
  Device,
  type DeviceBuffer,
  HostPool,
  legacy,
  MemoryPool,
  openDriver,
  SharedFence,
  simulatorControl,
  VirtualMemory,
} from "../../mod.ts";

const driver = openDriver("simulator");
let told = "";
try {
  using device = Device.open(0, { driver });
  using stream = device.createStream();
  using pool = MemoryPool.create(device, { ipc: true });
  using hosts = HostPool.create(device, { ipc: true });
  using _event = stream.record();
  using fence = SharedFence.create(device);
  const buffers: DeviceBuffer[] = [
    pool.allocate(100, { stream }),
    VirtualMemory.allocate(device, 100, { ipc: true, stream }),
    hosts.allocate(100, { stream }),
    legacy.allocate(device, 100, { stream }),
  ];
  using stack = new DisposableStack();
  for (const buffer of buffers) stack.use(buffer);
  stream.signal(fence, 1n);
  simulatorControl(driver).loseContext(0);
  buffers[0].fill(1, { stream });
} catch (error) {
  // The first error, not a SuppressedError
  if (error instanceof CudaDriverError) told = `${error.name} ${error.code} ${error.isContextLost}`;
  else throw error;
}
console.log(`${told}; all closed`);
