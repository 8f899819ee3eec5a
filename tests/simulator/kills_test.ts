/**
 * Exporters and importers, in both runtimes, that are killed at random moments: what their survivors find is what
 * docs/driver-behaviour.md says, and nothing is left. CUDA_IPC_TEST_SEED repeats a run, but for the moments of a kill that
 * only the operating system decides.
 */
import { mkdtempSync, readdirSync, readlinkSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { assert, assertEquals } from "@std/assert";
import { Random } from "../conformance/random.ts";
import { currentRuntime, otherRuntime, type Runtime, skipWithout } from "../helpers/runtimes.ts";
import { Peer } from "./peer.ts";
import { address, type Argument, bytes, type Command, size, u64 } from "./session.ts";

const MiB = 2 ** 20;
const PAGES = 65536;
const NOT_READY = 600;
const IPC_EVENT = 6; // CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING
const PROP = { type: 1, requestedHandleTypes: 1, locationType: 1, locationId: 0 };
const ACCESS = [{ locationType: 1, locationId: 0, flags: 3 }];
const NEVER_MS = 60_000;

/** When the victim dies: between calls; with work queued; in the middle of many calls; in a call, with the lock. */
const MOMENTS = ["idle", "queued", "calls", "lock"] as const;
type Moment = (typeof MOMENTS)[number];
const ROLES = ["exporter", "importer"] as const;

const command = (method: string, ...args: Argument[]): Command => ({ method, args });

/** One of the two processes that share something. What it has to check and to give back is done if it survives. */
class Party {
  readonly peer: Peer;
  readonly stream: bigint;
  readonly isVictim: boolean;
  readonly #isToBeBusy: boolean;
  readonly checks: (() => Promise<void>)[] = [];
  readonly undos: (() => Promise<unknown>)[] = [];

  constructor(peer: Peer, stream: bigint, moment?: Moment) {
    this.peer = peer;
    this.stream = stream;
    this.isVictim = moment !== undefined;
    this.#isToBeBusy = moment === "queued";
  }

  check(body: () => Promise<void>): void {
    this.checks.push(body);
  }
  /** Undone in reverse. */
  undo(method: string, ...args: Argument[]): void {
    this.undos.unshift(() => this.peer.do(method, ...args));
  }

  /** From here on nothing that the victim queues is done, when it is to die with work queued. */
  async stayBusy(): Promise<boolean> {
    if (this.#isToBeBusy) await this.peer.do("occupyStream", address(this.stream), NEVER_MS);
    return this.#isToBeBusy;
  }

  /** A descriptor of the other's, as if it had been sent. */
  async take(other: Party, fd: number): Promise<number> {
    return (await this.peer.do("openFdOf", other.peer.process.pid, fd)).number();
  }

  async holds(value: number, pointer: bigint, byteLength: number): Promise<boolean> {
    const { peer, stream } = this;
    return await peer.isFilled(pointer, value, byteLength, stream);
  }
  async fill(pointer: bigint, value: number, byteLength: number): Promise<void> {
    await this.peer.fill(pointer, value, byteLength, this.stream);
    await this.peer.do("streamSynchronize", address(this.stream));
  }
  checkHolds(value: number, pointer: bigint, byteLength: number): void {
    this.check(async () => assert(await this.holds(value, pointer, byteLength), `the memory of value ${value}`));
  }
}

/** Shares something; gives what each side goes on to do, again and again. Ends with an error where the victim dies. */
type Scenario = (exporter: Party, importer: Party) => Promise<{ exporter: Command[]; importer: Command[] }>;

const SCENARIOS: Readonly<Record<string, Scenario>> = {
  async pools(exporter, importer) {
    const [owner, user] = [exporter.peer, importer.peer];
    const pool = await owner.createPool();
    exporter.undo("memPoolDestroy", address(pool));
    const fd = await owner.exportPool(pool);
    exporter.undo("closeFd", fd);
    const pointers: bigint[] = [];
    for (const value of [7, 8]) {
      const pointer = await owner.allocate(pool, MiB, exporter.stream);
      exporter.undo("memFree", address(pointer));
      await exporter.fill(pointer, value, MiB);
      exporter.checkHolds(value, pointer, MiB);
      pointers.push(pointer);
    }
    const [first, second] = await Promise.all(
      pointers.map(async (pointer) => (await owner.do("memPoolExportPointer", address(pointer))).opaque),
    );
    const spare = await owner.allocate(pool, PAGES, exporter.stream);
    await owner.do("memFreeAsync", address(spare), address(exporter.stream));

    const own = await importer.take(exporter, fd);
    importer.undo("closeFd", own);
    const imported = (await user.do("memPoolImportFromShareableHandle", address(BigInt(own)), 1)).address;
    const importPointer = async (data: Uint8Array) =>
      (await user.do("memPoolImportPointer", address(imported), bytes(data))).address;
    const mapped = await importPointer(first);
    importer.undo("memFree", address(mapped));
    importer.checkHolds(7, mapped, MiB);
    importer.check(async () => { // the pool of the dead still gives what it has
      const late = await importPointer(second);
      assert(await importer.holds(8, late, MiB), "the memory that was imported later");
      await user.do("memFree", address(late));
    });
    const other = await importPointer(second);
    await user.do("memFree", address(other));
    await exporter.stayBusy();
    await importer.stayBusy();
    return {
      exporter: [
        command("memsetD8Async", address(pointers[0]), 7, size(MiB), address(exporter.stream)),
        command("memAllocFromPoolAsync", size(PAGES), address(pool), address(exporter.stream)),
        command("memFreeAsync", address(spare), address(exporter.stream)),
        command("memPoolTrimTo", address(pool), size(0)),
      ],
      importer: [
        command("memsetD8Async", address(mapped), 7, size(MiB), address(importer.stream)),
        command("memPoolImportPointer", address(imported), bytes(second)),
        command("memFree", address(other)),
      ],
    };
  },

  async "virtual memory"(exporter, importer) {
    const byteLength = 2 * MiB;
    /** Maps it twice: the second mapping comes and goes. */
    const use = async (party: Party, handle: bigint): Promise<{ start: bigint; remap: Command[] }> => {
      const starts: bigint[] = [];
      for (const isSpare of [false, true]) {
        const start = (await party.peer.do("memAddressReserve", size(byteLength), size(0), address(0n))).address;
        party.undo("memAddressFree", address(start), size(byteLength));
        starts.push(start);
        if (isSpare) break;
        await party.peer.do("memMap", address(start), size(byteLength), size(0), address(handle));
        party.undo("memUnmap", address(start), size(byteLength));
        await party.peer.do("memSetAccess", address(start), size(byteLength), ACCESS);
      }
      const [start, spare] = starts;
      const remap = [
        command("memsetD8Async", address(start), 7, size(byteLength), address(party.stream)),
        command("memMap", address(spare), size(byteLength), size(0), address(handle)),
        command("memSetAccess", address(spare), size(byteLength), ACCESS),
        command("memUnmap", address(spare), size(byteLength)),
      ];
      return { start, remap };
    };
    const handle = (await exporter.peer.do("memCreate", size(byteLength), PROP)).address;
    exporter.undo("memRelease", address(handle));
    const exported = await use(exporter, handle);
    await exporter.fill(exported.start, 7, byteLength);
    exporter.checkHolds(7, exported.start, byteLength);
    const fd = (await exporter.peer.do("memExportToShareableHandle", address(handle), 1)).i32;
    exporter.undo("closeFd", fd);

    const own = await importer.take(exporter, fd);
    importer.undo("closeFd", own);
    const imported = (await importer.peer.do("memImportFromShareableHandle", address(BigInt(own)), 1)).address;
    importer.undo("memRelease", address(imported));
    const mapped = await use(importer, imported);
    importer.checkHolds(7, mapped.start, byteLength);
    await exporter.stayBusy();
    await importer.stayBusy();
    return { exporter: exported.remap, importer: mapped.remap };
  },

  async "legacy memory"(exporter, importer) {
    const pointer = (await exporter.peer.do("memAlloc", size(MiB))).address;
    exporter.undo("memFree", address(pointer));
    await exporter.fill(pointer, 7, MiB);
    exporter.checkHolds(7, pointer, MiB);
    const handle = (await exporter.peer.do("ipcGetMemHandle", address(pointer))).opaque;

    const open = async () => (await importer.peer.do("ipcOpenMemHandle", bytes(handle), 1)).address;
    const mapped = await open();
    importer.undo("ipcCloseMemHandle", address(mapped));
    importer.checkHolds(7, mapped, MiB);
    importer.check(async () => {
      assertEquals(await open(), mapped, "the handle of the dead opens while it is mapped");
      await importer.peer.do("ipcCloseMemHandle", address(mapped));
    });
    await exporter.stayBusy();
    await importer.stayBusy();
    const fill = (party: Party, target: bigint) => command("memsetD8Async", address(target), 7, size(MiB), address(party.stream));
    return {
      exporter: [fill(exporter, pointer), command("ipcGetMemHandle", address(pointer)), command("memAlloc", size(PAGES))],
      importer: [
        fill(importer, mapped),
        command("ipcOpenMemHandle", bytes(handle), 1),
        command("ipcCloseMemHandle", address(mapped)),
      ],
    };
  },

  async events(exporter, importer) {
    const event = (await exporter.peer.do("eventCreate", IPC_EVENT)).address;
    exporter.undo("eventDestroy", address(event));
    const handle = (await exporter.peer.do("ipcGetEventHandle", address(event))).opaque;
    const opened = (await importer.peer.do("ipcOpenEventHandle", bytes(handle))).address;
    importer.undo("eventDestroy", address(opened));
    const record = (party: Party, of: bigint) => command("eventRecord", address(of), address(party.stream));

    const [victim, survivor] = exporter.isVictim ? [exporter, importer] : [importer, exporter];
    const [theirs, ours] = exporter.isVictim ? [event, opened] : [opened, event];
    let possible = [0];
    survivor.check(async () => {
      const { peer, stream } = survivor;
      await peer.do("streamWaitEvent", address(stream), address(ours), 0);
      const codes = [await peer.code("eventQuery", address(ours)), await peer.code("streamQuery", address(stream))];
      assert(possible.includes(codes[0]), `the event of the dead answers ${codes[0]}, expected ${possible.join(" or ")}`);
      assertEquals(codes[1], codes[0], "the stream that waits for it");
      await sleep(10);
      assertEquals(await peer.code("eventQuery", address(ours)), codes[0], "an event of the dead has moved");
      assertEquals(await peer.code("streamQuery", address(stream)), codes[1], "the waiter of the dead has moved");
      await peer.do("dropWork");
    });
    const isBusy = await victim.stayBusy();
    possible = [0, NOT_READY];
    await victim.peer.execute(record(victim, theirs));
    if (isBusy) possible = [NOT_READY];
    return { exporter: [record(exporter, event)], importer: [record(importer, opened)] };
  },

  async fences(exporter, importer) {
    const map = async (party: Party, fd: number) => {
      party.undo("closeFd", fd);
      const word = (await party.peer.do("sharedMapping", fd, PAGES)).address;
      party.undo("unmapShared", address(word), PAGES);
      await party.peer.do("memHostRegister", address(word), size(PAGES), 3);
      party.undo("memHostUnregister", address(word));
      return word;
    };
    const fd = (await exporter.peer.do("createSharedMemory", PAGES)).number();
    const word = await map(exporter, fd);
    const other = await map(importer, await importer.take(exporter, fd));

    const [victim, survivor] = exporter.isVictim ? [exporter, importer] : [importer, exporter];
    const ours = exporter.isVictim ? other : word;
    const { peer, stream } = survivor;
    await peer.do("streamWaitValue64", address(stream), address(ours), u64(5n), 0);
    survivor.check(async () => {
      await sleep(10);
      assertEquals(await peer.code("streamQuery", address(stream)), NOT_READY, "the fence that the dead have not reached");
      await peer.do("writeHost", address(ours), bytes(new Uint8Array(new BigUint64Array([5n]).buffer)));
      await peer.do("streamSynchronize", address(stream));
    });
    await victim.stayBusy();
    const calls = (party: Party, at: bigint) => [
      command("streamWriteValue64", address(party.stream), address(at), u64(4n), 0),
      command("streamWaitValue64", address(party.stream), address(at), u64(4n), 0),
    ];
    return { exporter: calls(exporter, word), importer: calls(importer, other) };
  },
};

interface Kill {
  readonly kind: string;
  readonly role: (typeof ROLES)[number];
  readonly moment: Moment;
  readonly survivor: Runtime;
  readonly victim: Runtime;
  /** How long after the last step the signal comes. */
  readonly delayMs: number;
  /** The call in which a fault kills. The first one opens the driver. */
  readonly call: number;
}

/** Every kind, role and moment once in each round; the pairs of runtimes in turn. */
function plan(random: Random, rounds: number): Kill[] {
  const kills: Kill[] = [];
  for (let round = 0; round < rounds; round++) {
    const all = Object.keys(SCENARIOS).flatMap((kind) =>
      ROLES.flatMap((role) => MOMENTS.map((moment) => ({ kind, role, moment })))
    );
    for (let left = all.length; left > 0; left--) {
      const [kill] = all.splice(random.below(left), 1);
      const pair = kills.length % 4;
      kills.push({
        ...kill,
        survivor: pair < 2 ? currentRuntime : otherRuntime,
        victim: pair % 2 === 0 ? currentRuntime : otherRuntime,
        delayMs: random.below(20),
        call: 2 + random.below(30),
      });
    }
  }
  return kills;
}

/** The simulator's own descriptors of a process, and others that tests and victims gave it. */
function memoryFds(pid: number): string[] {
  return readdirSync(`/proc/${pid}/fd`).flatMap((fd) => {
    try {
      const link = readlinkSync(`/proc/${pid}/fd/${fd}`);
      return link.startsWith("/memfd:cuda-ipc") ? [link] : [];
    } catch {
      return []; // closed meanwhile
    }
  }).sort();
}

/** What a survivor has, and what the device has left. */
async function inventory(survivor: Peer): Promise<Record<string, unknown>> {
  const { liveObjects: { importedPools: _, ...objects }, pendingWork } = await survivor.report(); // those stay
  return { objects, pendingWork, freeBytes: await survivor.freeBytes(), fds: memoryFds(survivor.process.pid) };
}

async function carryOut(kill: Kill, survivor: Party, victim: Party): Promise<void> {
  const { peer } = victim;
  try {
    const isExporter = kill.role === "exporter";
    const calls = await SCENARIOS[kill.kind](isExporter ? victim : survivor, isExporter ? survivor : victim);
    if (kill.moment === "queued") {
      // calls that block behind the work are never answered
      for (const call of calls[kill.role]) peer.execute(call).catch(() => {});
    } else {
      for (const { method, args } of calls[kill.role]) await peer.do(method, ...args);
    }
    if (kill.moment === "calls" || kill.moment === "lock") {
      peer.execute({ method: "repeat", args: [], commands: calls[kill.role] }).catch(() => {});
    }
    if (kill.moment !== "lock") {
      await sleep(kill.delayMs);
      peer.process.kill("SIGKILL");
    }
  } catch (error) {
    if (kill.moment !== "lock" || !String(error).includes("the peer is gone")) throw error;
  }
  const { signal, timedOut, stderr } = await peer.process.exited;
  assertEquals({ signal, timedOut, stderr }, { signal: "SIGKILL", timedOut: false, stderr: "" });

  for (const check of survivor.checks) await check();
  for (const undo of survivor.undos) await undo();
}

const ROUNDS = 3;
const KILLS = ROUNDS * Object.keys(SCENARIOS).length * ROLES.length * MOMENTS.length;

test(`${KILLS} kills at random moments leave what the driver leaves, and nothing else`, {
  skip: skipWithout(otherRuntime),
  timeout: 120_000,
}, async () => {
  const seed = Number(process.env.CUDA_IPC_TEST_SEED ?? 1 + Date.now() % 1_000_000);
  console.log(`${KILLS} kills, CUDA_IPC_TEST_SEED=${seed}`);
  const kills = plan(new Random(seed), ROUNDS);
  const temporary = mkdtempSync(join(tmpdir(), "cuda-ipc-kills-"));
  const machine = `kills${process.pid}`;
  const env = { CUDA_IPC_SIM_MACHINE: machine, TMPDIR: temporary };
  const start = (kill: Kill) =>
    Peer.start(kill.victim, { ...env, CUDA_IPC_SIM_FAULTS: kill.moment === "lock" ? `*@${kill.call}=kill` : undefined });
  const shared = () => readdirSync("/dev/shm").filter((name) => name.includes("cuda") || name.includes(machine));
  const before = shared();

  await using one = await Peer.start(currentRuntime, env, 120_000);
  await using other = await Peer.start(otherRuntime, env, 120_000);
  const survivors = { [currentRuntime]: one, [otherRuntime]: other };
  const streams = { [currentRuntime]: await one.start(), [otherRuntime]: await other.start() };

  try {
    let next = start(kills[0]);
    for (const [index, kill] of kills.entries()) {
      await using peer = await next;
      if (index + 1 < kills.length) next = start(kills[index + 1]); // while this one dies
      next.catch(() => {}); // whoever awaits it sees it
      const survivor = new Party(survivors[kill.survivor], streams[kill.survivor]);
      try {
        const empty = await inventory(survivor.peer);
        const stream = await peer.start().catch((error) => {
          if (kill.moment !== "lock") throw error;
          return 0n; // dead already: what follows ends with its first call
        });
        await carryOut(kill, survivor, new Party(peer, stream, kill.moment));
        assertEquals(await inventory(survivor.peer), empty, "what there was before");
      } catch (error) {
        const { role, kind, moment, victim } = kill;
        throw new Error(
          `kill ${index}, of an ${role} of ${kind} (${victim} before ${kill.survivor}, ${moment}), seed ${seed}: ${error}`,
          { cause: error },
        );
      }
    }
    assertEquals(readdirSync(temporary), []);
    assertEquals(shared(), before);
  } finally {
    rmSync(temporary, { recursive: true });
  }
});
