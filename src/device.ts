/** GPUs: finding, opening and describing them. */
import { Action, checkInteger, checkOptions, invalid } from "./arguments.ts";
import { Closable } from "./closable.ts";
import { Context, provideContextAccess } from "./context.ts";
import { check } from "./driver/check.ts";
import { DEVICE_ATTRIBUTES, type DeviceAttribute } from "./driver/device_attributes.ts";
import type { CudaDriver, Driver } from "./driver/driver.ts";
import { CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR } from "./driver/enums.ts";
import { chosenDriver } from "./driver/mod.ts";
import { ClosedError, DeviceNotVisibleError, InvalidArgumentError } from "./errors.ts";
import { type CudaEvent, type EventOptions, newEvent } from "./event.ts";
import { type IpcSupport, probeIpcSupport } from "./ipc_support.ts";
import { type CudaStream, newStream, type StreamOptions } from "./stream.ts";
import { formatUuid } from "./wire/hex.ts";

/** Which driver to ask. */
export interface DeviceOptions {
  /** A driver from `openDriver`. Default: what `openDriver()` gives. */
  readonly driver?: Driver;
}

/** One object for each driver and device of a thread. */
const devices = new Map<CudaDriver, Map<number, Device>>();

const TOKEN: unique symbol = Symbol("Device");

/**
 * A GPU. Opening it retains its primary context (`cuDevicePrimaryCtxRetain`), which PyTorch, CuPy and other users of
 * the process share. Within a thread a device is one object, however often it is opened; each `open` asks for one
 * `close`, and what was made on the device keeps it alive until it is closed itself.
 *
 * @example
 * ```ts
 * import { Device } from "@cuda-ipc/cuda-ipc";
 *
 * using device = Device.open(0);
 * console.log(device.name, device.uuid, device.memoryInfo().freeBytes);
 * ```
 */
export class Device extends Closable {
  readonly #context: Context;
  readonly #name: string;
  readonly #uuid: string;
  readonly #totalMemoryBytes: number;
  #openings = 0;

  /** Not for users: see {@linkcode Device.open}. */
  private constructor(token: typeof TOKEN, driver: CudaDriver, ordinal: number) {
    super();
    if (token !== TOKEN) throw new InvalidArgumentError("Cannot construct a Device: use Device.open() or Device.list()");
    check(driver.deviceGet(ordinal), "cuDeviceGet", `device ${ordinal}`);
    const device = driver.out.readI32(0);
    this.#context = new Context(driver, ordinal, device);
    check(driver.deviceGetName(device), "cuDeviceGetName", this.#context);
    this.#name = readName(driver.out.bytes);
    check(driver.deviceGetUuid(device), "cuDeviceGetUuid", this.#context);
    this.#uuid = `GPU-${formatUuid(driver.out.bytes)}`;
    check(driver.deviceTotalMem(device), "cuDeviceTotalMem", this.#context);
    this.#totalMemoryBytes = driver.out.readNumber(0);
  }

  static {
    provideContextAccess((value, action) => {
      if (typeof value !== "object" || value === null || !(#context in value)) throw invalid(action, "device", value, "a Device");
      if (value.isClosed) throw new ClosedError(`Cannot ${action}: ${value} is closed`);
      return value.#context;
    });
  }

  /**
   * All devices that this process sees, without opening one: no context is made, no memory taken. Empty only when a
   * driver is there and has no device.
   *
   * @throws {DriverNotFoundError} when there is no driver.
   */
  static list(options?: DeviceOptions): Device[] {
    const driver = chosenDriver("list devices", checkOptions("list devices", options, ["driver"]).driver);
    check(driver.deviceGetCount(), "cuDeviceGetCount");
    const count = driver.out.readI32(0);
    return Array.from({ length: count }, (_, ordinal) => Device.#of(driver, ordinal));
  }

  /**
   * Opens a device by its ordinal or by its UUID (`"GPU-…"`).
   *
   * @throws {InvalidArgumentError} when there is no device with that ordinal.
   * @throws {DeviceNotVisibleError} when this process sees no device with that UUID.
   * @throws {DriverNotFoundError} when there is no driver.
   */
  static open(which: number | string, options?: DeviceOptions): Device {
    if (typeof which !== "string") checkInteger("open a device", "ordinal", which, 0);
    else if (!/^(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(which)) {
      throw invalid("open a device", "uuid", which, '"GPU-" and a UUID');
    }
    const visible = Device.list(options);
    const device = typeof which === "number"
      ? visible[which]
      : visible.find(({ uuid }) => uuid.toLowerCase() === which.toLowerCase());
    if (device === undefined) {
      const seen = visible.map(({ ordinal, uuid }) => `${ordinal}: ${uuid}`).join(", ") || "none";
      if (typeof which === "string") {
        throw new DeviceNotVisibleError(
          `Cannot open the device ${which}: this process sees ${seen}. Check CUDA_VISIBLE_DEVICES`,
        );
      }
      throw new InvalidArgumentError(`Cannot open the device ${which}: this process sees ${seen}. Check CUDA_VISIBLE_DEVICES`);
    }
    if (device.#openings === 0) {
      device.#context.hold();
      device.protect("Device", device.#context);
    }
    device.#openings++;
    return device;
  }

  static #of(driver: CudaDriver, ordinal: number): Device {
    let known = devices.get(driver);
    if (known === undefined) devices.set(driver, known = new Map());
    let device = known.get(ordinal);
    if (device === undefined) known.set(ordinal, device = new Device(TOKEN, driver, ordinal));
    return device;
  }

  /** Its number among the devices that this process sees (CUDA_VISIBLE_DEVICES changes it): never send it to a peer. */
  get ordinal(): number {
    return this.#context.ordinal;
  }
  /** Its name, such as `"NVIDIA H200"` (`cuDeviceGetName`). */
  get name(): string {
    return this.#name;
  }
  /** Its UUID, `"GPU-…"`, the same in every process (`cuDeviceGetUuid`). */
  get uuid(): string {
    return this.#uuid;
  }
  /** Its memory in bytes (`cuDeviceTotalMem`). */
  get totalMemoryBytes(): number {
    return this.#totalMemoryBytes;
  }
  /** Whether it is the simulator's. */
  get isSimulated(): boolean {
    return this.#context.driver.kind === "simulator";
  }
  /** The compute capability, such as 9.0. */
  get computeCapability(): { major: number; minor: number } {
    return {
      major: this.#attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
      minor: this.#attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
    };
  }

  /** Free and total bytes of device memory, of all processes together (`cuMemGetInfo`). */
  memoryInfo(): { freeBytes: number; totalBytes: number } {
    this.checkOpen("ask for free memory");
    return this.#inContext((driver) => {
      check(driver.memGetInfo(), "cuMemGetInfo", this);
      return { freeBytes: driver.out.readNumber(0), totalBytes: driver.out.readNumber(8) };
    });
  }

  /** One attribute (`cuDeviceGetAttribute`). An older driver refuses a name that it does not know. */
  attribute(name: DeviceAttribute): number {
    this.checkOpen("ask for an attribute");
    if (typeof name !== "string" || !Object.hasOwn(DEVICE_ATTRIBUTES, name)) {
      throw invalid(
        "ask for an attribute",
        "name",
        name,
        'a name of cuda.h without its prefix, such as "MEMORY_POOLS_SUPPORTED"',
      );
    }
    return this.#attribute(DEVICE_ATTRIBUTES[name]);
  }

  #attribute(attribute: number): number {
    const { driver, device } = this.#context;
    check(driver.deviceGetAttribute(attribute, device), "cuDeviceGetAttribute", this);
    return driver.out.readI32(0);
  }

  /** Whether this device can reach the other one's memory (`cuDeviceCanAccessPeer`). False for itself. */
  canAccessPeer(other: Device): boolean {
    this.checkOpen("ask for peer access");
    if (!(other instanceof Device)) throw invalid("ask for peer access", "other", other, "a Device");
    const { driver, device } = this.#context;
    if (other.#context.driver !== driver || other === this) return false;
    check(driver.deviceCanAccessPeer(device, other.#context.device), "cuDeviceCanAccessPeer", this);
    return driver.out.readI32(0) !== 0;
  }

  /**
   * What can be shared from here and, for each no, why. Each way is tried, so ask once at the start: the attempts take
   * milliseconds, and wait for queued work.
   */
  ipcSupport(): IpcSupport {
    this.checkOpen("ask what can be shared");
    return this.#inContext(() => probeIpcSupport(this.#context));
  }

  /** Makes a stream. The caller closes it. */
  createStream(options?: StreamOptions): CudaStream {
    this.checkOpen("create a stream");
    return newStream(this, this.#context, options);
  }

  /** Makes an event (`cuEventCreate`). The caller closes it. */
  createEvent(options?: EventOptions): CudaEvent {
    this.checkOpen("create an event");
    return newEvent(this, this.#context, options, new Action("create an event on", this));
  }

  #inContext<T>(body: (driver: CudaDriver) => T): T {
    this.#context.hold();
    try {
      this.#context.makeCurrent();
      return body(this.#context.driver);
    } finally {
      this.#context.release();
    }
  }

  /** Ends one opening; the last one closes the device. */
  override close(): void {
    if (this.isClosed) return;
    if (this.#openings > 1) this.#openings--;
    else super.close();
  }

  /** Called once, by the last `close`. */
  protected override onClose(): void {
    devices.get(this.#context.driver)?.delete(this.#context.ordinal);
    if (this.#openings > 0) this.#context.release();
  }

  /** A short name for messages. */
  override toString(): string {
    return `Device ${this.ordinal} (${this.#name})`;
  }
}

function readName(bytes: Uint8Array): string {
  return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
}
