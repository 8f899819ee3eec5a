/** A device's access to memory, on a machine with one device. Rows PEER-… of docs/driver-behaviour.md. */
import { test } from "node:test";
import { assertEquals } from "@std/assert";
import * as enums from "../../src/driver/enums.ts";
import {
  HOST_POOL,
  isOnGpu,
  ON_DEVICE,
  READ_WRITE_ON_DEVICE,
  type Session,
  shareAllocation,
  startLocal,
  startPeer,
} from "./harness.ts";

/** An ordinal that no device has. */
const NO_DEVICE = 999;

/** For each access: the result of cuMemPoolSetAccess for the first device, and what cuMemPoolGetAccess gives then. */
async function setEach(session: Session, pool: bigint): Promise<Record<string, [number, number]>> {
  const outcome: Record<string, [number, number]> = {};
  for (const [name, flags] of Object.entries({ NONE: 0, READ: 1, READWRITE: 3 })) {
    const code = await session.code("memPoolSetAccess", pool, [{ ...READ_WRITE_ON_DEVICE, flags }]);
    outcome[name] = [code, (await session.do("memPoolGetAccess", pool, ON_DEVICE)).i32];
  }
  return outcome;
}

test("PEER-01 a device is no peer of itself", async () => {
  await using session = await startLocal();
  assertEquals((await session.do("deviceCanAccessPeer", 0, 0)).i32, 0);
});

const skipUnbound = !isOnGpu && "the driver has no method for it, so there is nothing to simulate";

test("PEER-02 a context is no peer of itself", { skip: skipUnbound }, async () => {
  await using session = await startPeer();
  const context = (await session.do("ctxGetCurrent")).address;
  assertEquals(await session.host("callByName", "cuCtxEnablePeerAccess", context, 0n), 217);
});

test("PEER-03 the device of a pool keeps its access", async () => {
  await using session = await startLocal();
  assertEquals(await setEach(session, await session.createPool()), { NONE: [101, 3], READ: [801, 3], READWRITE: [0, 3] });
});

test("PEER-04 so does the device of an imported pool", async () => {
  await using exporter = await startLocal();
  await using importer = await startPeer();
  const { imported } = await shareAllocation(exporter, importer);
  assertEquals(await setEach(importer, imported.pool), { NONE: [101, 3], READ: [801, 3], READWRITE: [0, 3] });
});

test("PEER-05 a new host pool gives devices no access, before it is set; it cannot be for reading only", async () => {
  await using session = await startLocal();
  const pool = await session.createPool(HOST_POOL);
  assertEquals((await session.do("memPoolGetAccess", pool, ON_DEVICE)).i32, 0, "at first");
  assertEquals(await setEach(session, pool), { NONE: [0, 0], READ: [801, 0], READWRITE: [0, 3] });
});

test("PEER-06 a device that is not there is refused, and the host's access can be asked for", async () => {
  await using session = await startLocal();
  const pool = await session.createPool();
  const codes = {
    CanAccessPeer: await session.code("deviceCanAccessPeer", 0, NO_DEVICE),
    SetAccess: await session.code("memPoolSetAccess", pool, [{ ...READ_WRITE_ON_DEVICE, locationId: NO_DEVICE }]),
    GetAccess: await session.code("memPoolGetAccess", pool, { ...ON_DEVICE, id: NO_DEVICE }),
    "GetAccess of HOST": await session.code("memPoolGetAccess", pool, { type: enums.CU_MEM_LOCATION_TYPE_HOST, id: 0 }),
  };
  assertEquals(codes, { CanAccessPeer: 101, SetAccess: 101, GetAccess: 1, "GetAccess of HOST": 0 });
});
