/**
 * What the JSON of each frame says, and reading it: every field is checked, fields that are not known are ignored. All of it
 * comes from another process, so that whatever is wrong is a ProtocolError.
 */
import { shown } from "../arguments.ts";
import { ProtocolError } from "../errors.ts";
import { checkDeviceUuid, checkIdentity, checkUuid, received } from "./fields.ts";
import type { ProcessIdentity } from "./identity.ts";

/** How much a process lets its peer send before it is taken: messages, their bytes, their file descriptors. */
export interface Window {
  readonly messages: number;
  readonly bytes: number;
  readonly fds: number;
}

/** `hello` and `welcome`. */
export interface Hello {
  /** Name and version, for people. */
  readonly runtime: string;
  readonly identity: ProcessIdentity;
  readonly deviceUuids: readonly string[];
  readonly capabilities: readonly string[];
  readonly window: Window;
}

/** A value of a word: reached when the word is not below it. */
export interface WordValue {
  readonly block: number;
  readonly word: number;
  readonly value: number;
}

export interface BlockJson {
  readonly id: number;
  readonly byteLength: number;
}

export interface PoolJson {
  readonly id: number;
  readonly memoryKind: "pool" | "host";
  readonly deviceUuid: string;
  readonly poolId: string;
}

export interface SentBuffer {
  readonly name: string;
  /** The id of a `pool` frame; null for memory that comes with its own descriptors. */
  readonly pool: number | null;
  readonly descriptorBytes: number;
  readonly fds: number;
  /** What the receiver writes when it is done. */
  readonly release: WordValue;
}

export interface SentEvent {
  readonly name: string;
  readonly descriptorBytes: number;
}

export interface SentFence {
  readonly name: string;
  readonly block: number;
  readonly word: number;
  readonly writer: ProcessIdentity;
}

export interface SentHandle {
  readonly name: string;
  readonly poolId: string | null;
}

export interface MessageJson {
  readonly id: number;
  readonly data?: unknown;
  /** What must be reached before the buffers are used; null when they may be used at once. */
  readonly ready: WordValue | null;
  readonly buffers: readonly SentBuffer[];
  readonly events: readonly SentEvent[];
  readonly fences: readonly SentFence[];
  readonly handles: readonly SentHandle[];
}

export interface ReleaseJson {
  readonly message: number;
  readonly buffers: readonly number[];
}

export interface ProcessJson {
  readonly id: number;
  readonly identity: ProcessIdentity;
}

/** Somebody else holds a buffer too: that process writes the word when it is done. */
export interface ForwardJson {
  readonly request: number;
  readonly message: number;
  readonly buffer: number;
  readonly process: number;
  readonly release: WordValue;
}

export interface ForwardedJson {
  readonly request: number;
  /** Null when it was taken down. */
  readonly refusal: string | null;
}

export interface ForwardReleasedJson {
  readonly requests: readonly number[];
}

export interface ForgetJson {
  readonly blocks: readonly number[];
  readonly pools: readonly number[];
  readonly processes: readonly number[];
}

export interface CloseJson {
  readonly reason: string;
}

/** Blocks, pools and processes that one side may have announced at a time. */
export const MAX_ANNOUNCED = 128;

const MAX_TEXT = 4096;
/** How many things of one kind a message may name. */
export const MAX_ITEMS = 1024;
const MAX_DEVICES = 256;

/** The fields of one JSON object. */
class Fields {
  readonly #of: string;
  readonly #json: Record<string, unknown>;

  constructor(of: string, json: unknown) {
    if (typeof json !== "object" || json === null || Array.isArray(json)) {
      throw new ProtocolError(`Cannot read a ${of}: expected an object, got ${shown(json)}`);
    }
    this.#of = of;
    this.#json = json as Record<string, unknown>;
  }

  refuse(name: string, wanted: string): never {
    throw new ProtocolError(`Cannot read a ${this.#of}: ${name} is ${shown(this.#json[name])}, expected ${wanted}`);
  }

  get(name: string): unknown {
    return Object.hasOwn(this.#json, name) ? this.#json[name] : undefined;
  }

  integer(name: string, max = Number.MAX_SAFE_INTEGER, min = 0): number {
    const value = this.get(name);
    if (!Number.isSafeInteger(value) || (value as number) < min || (value as number) > max) {
      this.refuse(name, `an integer from ${min} to ${max}`);
    }
    return value as number;
  }

  text(name: string): string {
    const value = this.get(name);
    if (typeof value !== "string" || value.length > MAX_TEXT) this.refuse(name, `a text of at most ${MAX_TEXT} characters`);
    return value;
  }

  list<T>(name: string, max: number, read: (item: unknown) => T): T[] {
    const value = this.get(name) ?? [];
    if (!Array.isArray(value) || value.length > max) this.refuse(name, `an array of at most ${max}`);
    return value.map(read);
  }

  identity(name: string): ProcessIdentity {
    return received(() => checkIdentity(`read a ${this.#of}`, this.get(name)));
  }

  deviceUuid(name: string): string {
    return received(() => checkDeviceUuid(`read a ${this.#of}`, this.get(name)));
  }

  uuid(name: string): string {
    return received(() => checkUuid(`read a ${this.#of}`, name, this.get(name)));
  }
}

function textItem(item: unknown): string {
  if (typeof item !== "string" || item.length > MAX_TEXT) throw new ProtocolError("Cannot read a frame: a list holds no text");
  return item;
}

function readWord(of: string, json: unknown): WordValue {
  const fields = new Fields(of, json);
  return { block: fields.integer("block"), word: fields.integer("word"), value: fields.integer("value", undefined, 1) };
}

export function readHello(json: unknown): Hello {
  const fields = new Fields("greeting", json);
  const window = new Fields("window", fields.get("window"));
  return {
    runtime: fields.text("runtime"),
    identity: fields.identity("identity"),
    deviceUuids: fields.list(
      "deviceUuids",
      MAX_DEVICES,
      (uuid) => received(() => checkDeviceUuid("read a greeting", uuid)),
    ),
    capabilities: fields.list("capabilities", MAX_ITEMS, textItem),
    window: {
      messages: window.integer("messages", undefined, 1),
      bytes: window.integer("bytes", undefined, 1),
      fds: window.integer("fds"),
    },
  };
}

export function readReject(json: unknown): string {
  return new Fields("rejection", json).text("reason");
}

export function readBlock(json: unknown): BlockJson {
  const fields = new Fields("fence block", json);
  return { id: fields.integer("id"), byteLength: fields.integer("byteLength", undefined, 8) };
}

export function readPool(json: unknown): PoolJson {
  const fields: Fields = new Fields("pool", json);
  const memoryKind = fields.get("memoryKind");
  if (memoryKind !== "pool" && memoryKind !== "host") fields.refuse("memoryKind", '"pool" or "host"');
  return { id: fields.integer("id"), memoryKind, deviceUuid: fields.deviceUuid("deviceUuid"), poolId: fields.uuid("poolId") };
}

function readSentBuffer(json: unknown): SentBuffer {
  const fields = new Fields("sent buffer", json);
  return {
    name: fields.text("name"),
    pool: fields.get("pool") === null ? null : fields.integer("pool"),
    descriptorBytes: fields.integer("descriptorBytes"),
    fds: fields.integer("fds"),
    release: readWord("release word", fields.get("release")),
  };
}

function readSentEvent(json: unknown): SentEvent {
  const fields = new Fields("sent event", json);
  return { name: fields.text("name"), descriptorBytes: fields.integer("descriptorBytes") };
}

function readSentFence(json: unknown): SentFence {
  const fields = new Fields("sent fence", json);
  return {
    name: fields.text("name"),
    block: fields.integer("block"),
    word: fields.integer("word"),
    writer: fields.identity("writer"),
  };
}

function readSentHandle(json: unknown): SentHandle {
  const fields = new Fields("sent handle", json);
  return { name: fields.text("name"), poolId: fields.get("poolId") === null ? null : fields.uuid("poolId") };
}

export function readMessage(json: unknown): MessageJson {
  const fields = new Fields("message", json);
  const message = {
    id: fields.integer("id"),
    data: fields.get("data"),
    ready: fields.get("ready") === null ? null : readWord("ready word", fields.get("ready")),
    buffers: fields.list("buffers", MAX_ITEMS, readSentBuffer),
    events: fields.list("events", MAX_ITEMS, readSentEvent),
    fences: fields.list("fences", MAX_ITEMS, readSentFence),
    handles: fields.list("handles", MAX_ITEMS, readSentHandle),
  };
  for (const list of [message.buffers, message.events, message.fences, message.handles]) {
    if (new Set(list.map(({ name }) => name)).size !== list.length) {
      throw new ProtocolError("Cannot read a message: two things in it have the same name");
    }
  }
  return message;
}

export function readRelease(json: unknown): ReleaseJson {
  const fields = new Fields("release", json);
  const max = Number.MAX_SAFE_INTEGER;
  return {
    message: fields.integer("message"),
    buffers: fields.list("buffers", MAX_ITEMS, (item) => integerItem(item, max)),
  };
}

function integerItem(item: unknown, max: number): number {
  if (!Number.isSafeInteger(item) || (item as number) < 0 || (item as number) > max) {
    throw new ProtocolError(`Cannot read a frame: a list holds ${shown(item)}, expected an integer from 0 to ${max}`);
  }
  return item as number;
}

export function readCredit(json: unknown): Window {
  const fields = new Fields("credit", json);
  return { messages: fields.integer("messages"), bytes: fields.integer("bytes"), fds: fields.integer("fds") };
}

export function readProcess(json: unknown): ProcessJson {
  const fields = new Fields("process", json);
  return { id: fields.integer("id"), identity: fields.identity("identity") };
}

export function readForward(json: unknown): ForwardJson {
  const fields = new Fields("forward", json);
  return {
    request: fields.integer("request"),
    message: fields.integer("message"),
    buffer: fields.integer("buffer"),
    process: fields.integer("process"),
    release: readWord("release word", fields.get("release")),
  };
}

export function readForwarded(json: unknown): ForwardedJson {
  const fields = new Fields("answer to a forward", json);
  return { request: fields.integer("request"), refusal: fields.get("refusal") === null ? null : fields.text("refusal") };
}

export function readForwardReleased(json: unknown): ForwardReleasedJson {
  const max = Number.MAX_SAFE_INTEGER;
  return {
    requests: new Fields("release", json).list("requests", MAX_ITEMS, (item) => integerItem(item, max)),
  };
}

export function readForget(json: unknown): ForgetJson {
  const fields = new Fields("forget", json);
  const ids = (name: string) => fields.list(name, MAX_ITEMS, (item) => integerItem(item, Number.MAX_SAFE_INTEGER));
  return { blocks: ids("blocks"), pools: ids("pools"), processes: ids("processes") };
}

export function readClose(json: unknown): CloseJson {
  return { reason: new Fields("close", json).text("reason") };
}
