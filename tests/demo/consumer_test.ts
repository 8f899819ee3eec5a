/** A producer that sends something else than what was agreed: the consumer ends with a clear error, and the lease ends. */
import { test } from "node:test";
import { assert, assertEquals, assertStringIncludes } from "@std/assert";
import { Device, type DeviceBuffer, IpcServer, MemoryPool, openDriver } from "../../mod.ts";
import { currentRuntime, type RuntimeProcess, spawnRuntime } from "../helpers/runtimes.ts";
import { CONSUMER, TemporaryFolder } from "./helpers.ts";

const MARK = { byteOffset: 10, byteLength: 20, value: 7 };

type Offer = (buffer: DeviceBuffer) => { data?: unknown; buffers?: Record<string, DeviceBuffer> };
const OFFERS: Record<string, [offer: Offer, error: string]> = {
  "no buffer": [
    () => ({ data: { mark: MARK } }),
    'ProtocolError: Cannot read the producer\'s offer: it has no buffer named "file"',
  ],
  "a buffer of another name": [(other) => ({ data: { mark: MARK }, buffers: { other } }), 'it has no buffer named "file"'],
  "no data": [(file) => ({ buffers: { file } }), "ProtocolError: Cannot read the producer's offer: it has no mark"],
  "a mark that is null": [(file) => ({ data: { mark: null }, buffers: { file } }), "it has no mark"],
  "a mark outside the buffer": [
    (file) => ({ data: { mark: { ...MARK, byteLength: 2000 } }, buffers: { file } }),
    "InvalidArgumentError: Cannot take a part of",
  ],
  "a mark of no byte": [
    (file) => ({ data: { mark: { ...MARK, value: 256 } }, buffers: { file } }),
    "InvalidArgumentError: Cannot fill",
  ],
};

/** Aborts when the program has ended, so that nothing waits for it in vain. */
function endOf(program: RuntimeProcess): AbortSignal {
  const end = new AbortController();
  program.exited.then(() => end.abort());
  return end.signal;
}

for (const [what, [offer, error]] of Object.entries(OFFERS)) {
  test(`demo: the consumer is offered ${what}`, async () => {
    using folder = new TemporaryFolder();
    const path = `${folder.path}/socket`;
    using device = Device.open(0, { driver: openDriver("simulator") });
    using stream = device.createStream();
    using pool = MemoryPool.create(device, { ipc: true });
    using buffer = pool.allocate(1024, { stream });
    await using consumer = spawnRuntime(currentRuntime, CONSUMER, ["--socket", path], { env: { CUDA_IPC_DRIVER: "simulator" } });
    await using server = IpcServer.listen(path, { device, signal: endOf(consumer) });
    const channel = await server.accept();
    if (channel === null) throw new Error(`The consumer has not connected: ${(await consumer.exited).stderr}`);
    await using _channel = channel;
    const lease = await channel.send(offer(buffer), { after: stream });
    const exit = await consumer.exited;
    assertEquals(exit.code, 1);
    assertStringIncludes(exit.stderr, error);
    assert(!/^\s+at /m.test(exit.stderr), exit.stderr);
    await lease.released;
  });
}
