/** Random valid descriptors. */
import fc from "fast-check";
import { BufferDescriptor, EventDescriptor, type MemoryKind } from "../../src/wire/descriptor.ts";
import { formatUuid } from "../../src/wire/hex.ts";
import type { ProcessIdentity } from "../../src/wire/identity.ts";

export const MEMORY_KINDS: readonly MemoryKind[] = ["pool", "virtual", "host", "legacy"];

const fixed = (length: number) => fc.uint8Array({ minLength: length, maxLength: length });
const uuid = fixed(16).map((bytes) => formatUuid(bytes));
const size = fc.oneof(fc.nat(), fc.maxSafeNat());

const exporter: fc.Arbitrary<ProcessIdentity> = fc.record({
  bootId: uuid,
  pid: fc.integer({ min: 1, max: 0x7fff_ffff }),
  pidNamespace: fc.maxSafeNat(),
  startTime: fc.maxSafeNat(),
});

export const bufferDescriptors: fc.Arbitrary<BufferDescriptor> = fc.tuple(
  fc.constantFrom(...MEMORY_KINDS),
  fc.record({ deviceUuid: uuid.map((id) => `GPU-${id}`), exporter, poolId: fc.option(uuid), generation: fc.maxSafeNat() }),
  fc.array(fc.integer({ min: 1, max: 2 ** 40 }), { minLength: 1, maxLength: 8 }),
  fc.tuple(size, size, size),
  fixed(64),
).map(([memoryKind, common, chunks, sizes, opaque]) => {
  const isVirtual = memoryKind === "virtual";
  const chunkSum = chunks.reduce((total, length) => total + length, 0);
  const allocationByteLength = isVirtual ? sizes[0] % (chunkSum + 1) : sizes[0];
  const byteOffset = sizes[1] % (allocationByteLength + 1);
  const byteLength = sizes[2] % (allocationByteLength - byteOffset + 1);
  return new BufferDescriptor({
    ...common,
    memoryKind,
    allocationByteLength,
    byteOffset,
    byteLength,
    chunkByteLengths: isVirtual ? chunks : [],
    opaque: isVirtual ? new Uint8Array() : opaque,
  });
});

export const eventDescriptors: fc.Arbitrary<EventDescriptor> = fc
  .record({ deviceUuid: uuid.map((id) => `GPU-${id}`), exporter, opaque: fixed(64) })
  .map((init) => new EventDescriptor(init));
