/** A producer that says something else than what was agreed: the consumer ends with a clear error. */
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { assert, assertEquals, assertStringIncludes } from "@std/assert";
import { Peer } from "../../src/cli/demo/peer.ts";
import { Wire } from "../../src/cli/demo/wire.ts";
import { closeFd } from "../../src/os/fd.ts";
import { createSharedMemory } from "../../src/os/memory.ts";
import { ownIdentity } from "../../src/os/process.ts";
import { BufferDescriptor } from "../../src/wire/descriptor.ts";
import { currentRuntime, type RuntimeProcess, spawnRuntime } from "../helpers/runtimes.ts";
import { CONSUMER, ENVIRONMENT, TemporaryFolder } from "./helpers.ts";

const ELSEWHERE = new BufferDescriptor({
  memoryKind: "pool",
  deviceUuid: "GPU-00000000-0000-4000-8000-00000000dead",
  exporter: ownIdentity(),
  poolId: null,
  generation: 1,
  byteOffset: 0,
  byteLength: 10,
  allocationByteLength: 10,
  chunkByteLengths: [],
  opaque: new Uint8Array(64),
});

const OFFERS: Record<string, [type: string, fields: Record<string, unknown>, fdCount: number, error: string]> = {
  "another message": ["result", {}, 0, 'ProtocolError: Cannot read the peer\'s message: its type is "result", expected "offer"'],
  "no descriptor of a pool": ["offer", { buffer: ELSEWHERE }, 0, "it has 0 file descriptors, expected 1"],
  "no buffer": ["offer", {}, 1, "InvalidArgumentError: Cannot read a buffer descriptor"],
  "a changed buffer": ["offer", { buffer: { ...ELSEWHERE.toJSON(), byteLength: 9 } }, 1, "ProtocolError: Cannot read a buffer"],
  "a buffer of a device that is not here": ["offer", { buffer: ELSEWHERE }, 1, "DeviceNotVisibleError: Cannot open the device"],
};

/** Aborts when the program has ended, so that nothing waits for it in vain. */
function endOf(program: RuntimeProcess): AbortSignal {
  const end = new AbortController();
  program.exited.then(({ stderr }) => end.abort(new Error(`The program has ended: ${stderr}`)));
  return end.signal;
}

for (const [what, [type, fields, fdCount, error]] of Object.entries(OFFERS)) {
  test(`demo: the consumer is offered ${what}`, async () => {
    using folder = new TemporaryFolder();
    const path = `${folder.path}/socket`;
    await using consumer = spawnRuntime(currentRuntime, CONSUMER, ["--socket", path], { env: ENVIRONMENT });
    using wire = await Wire.accept(path, endOf(consumer));
    using peer = new Peer("consumer", wire.socket);
    const fd = createSharedMemory("no pool", 4096);
    await wire.send(type, fields, Array(fdCount).fill(fd));
    closeFd(fd);
    const exit = await consumer.exited;
    assertEquals(exit.code, 1);
    assertStringIncludes(exit.stderr, error);
    assert(!/^\s+at /m.test(exit.stderr), exit.stderr);
    while (!peer.exit.aborted) await sleep(5);
  });
}
