/** Tries each way of sharing on a device. Attributes alone do not do: on WSL2 they promise what does not work. */
import { type Address, toSize } from "../../ffi/mod.ts";
import type { Context } from "../context.ts";
import { check } from "../driver/check.ts";
import { DEVICE_ATTRIBUTES, type DeviceAttribute } from "../driver/device_attributes.ts";
import {
  CU_EVENT_DISABLE_TIMING,
  CU_EVENT_INTERPROCESS,
  CU_MEM_HANDLE_TYPE_FABRIC,
  CU_MEM_LOCATION_TYPE_HOST_NUMA,
  CU_STREAM_WRITE_VALUE_DEFAULT,
} from "../driver/enums.ts";
import { CudaIpcError } from "../errors.ts";
import { type IpcFeature, type IpcSupport, provideIpcProbe } from "../ipc_support.ts";
import { NativeStream } from "../native_stream.ts";
import { IS_WINDOWS } from "../os/windows.ts";
import { FenceBlock } from "../share/fence_block.ts";
import { legacyHandleOf } from "./legacy_allocation.ts";
import { NativePool } from "./native_pool.ts";
import { closeOsHandle, ipcHandleType, readOsHandle } from "./os_handle.ts";
import { granularityOf, PhysicalChunk } from "./virtual_range.ts";

const PROBE_BYTES = 4096;

provideIpcProbe((context: Context): IpcSupport => {
  context.makeCurrent();
  const handleAttribute = IS_WINDOWS ? "HANDLE_TYPE_WIN32_HANDLE_SUPPORTED" : "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED";
  return {
    pool: feature(context, ["MEMORY_POOLS_SUPPORTED", "MEMPOOL_SUPPORTED_HANDLE_TYPES"], probePool),
    virtual: feature(context, ["VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", handleAttribute], probeVirtual),
    fabric: feature(context, ["VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", "HANDLE_TYPE_FABRIC_SUPPORTED"], probeFabric),
    event: feature(context, ["IPC_EVENT_SUPPORTED"], probeEvent),
    fence: feature(context, ["CAN_USE_64_BIT_STREAM_MEM_OPS", "HOST_REGISTER_SUPPORTED"], probeFence),
    legacy: feature(context, ["UNIFIED_ADDRESSING"], probeLegacy),
    // Some drivers have these pools and deny it: the attempt alone decides
    host: feature(context, [], probeHost),
  };
});

function feature(context: Context, attributes: readonly DeviceAttribute[], attempt: (context: Context) => void): IpcFeature {
  const { driver, device } = context;
  for (const name of attributes) {
    const result = driver.deviceGetAttribute(DEVICE_ATTRIBUTES[name], device);
    if (result !== 0) return no(`the driver is too old to know the device attribute ${name}`);
    if (driver.out.readI32(0) === 0) return no(`the device says that it cannot: its attribute ${name} is 0`);
  }
  try {
    attempt(context);
    return { isSupported: true, reason: null };
  } catch (error) {
    if (error instanceof CudaIpcError) return no(`an attempt failed: ${error.message}`);
    throw error;
  }
}

function no(reason: string): IpcFeature {
  return { isSupported: false, reason };
}

function probePool(context: Context): void {
  const pool = NativePool.create(context, "for a probe", true, PROBE_BYTES);
  try {
    pool.exportOnce();
  } finally {
    pool.release();
  }
}

function probeHost(context: Context): void {
  const { driver, device } = context;
  check(driver.deviceGetAttribute(DEVICE_ATTRIBUTES.HOST_NUMA_ID, device), "cuDeviceGetAttribute", context);
  const node = Math.max(0, driver.out.readI32(0));
  const pool = NativePool.create(context, "for a probe", true, PROBE_BYTES, { type: CU_MEM_LOCATION_TYPE_HOST_NUMA, id: node });
  try {
    pool.exportOnce();
  } finally {
    pool.release();
  }
}

function probeVirtual(context: Context): void {
  withChunk(context, ipcHandleType(), (handle) => {
    const { driver } = context;
    check(driver.memExportToShareableHandle(handle, ipcHandleType()), "cuMemExportToShareableHandle", context);
    closeOsHandle(readOsHandle(driver.out));
  });
}

function probeFabric(context: Context): void {
  withChunk(context, CU_MEM_HANDLE_TYPE_FABRIC, (handle) => {
    check(
      context.driver.memExportToShareableHandle(handle, CU_MEM_HANDLE_TYPE_FABRIC),
      "cuMemExportToShareableHandle",
      context,
    );
  });
}

function withChunk(context: Context, handleType: number, body: (handle: Address) => void): void {
  const chunk = PhysicalChunk.create(context, granularityOf(context, handleType), handleType);
  try {
    body(chunk.handle);
  } finally {
    chunk.release();
  }
}

function probeEvent(context: Context): void {
  const { driver } = context;
  check(driver.eventCreate(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING), "cuEventCreate", context);
  const event = driver.out.readAddress(0);
  try {
    check(driver.ipcGetEventHandle(event), "cuIpcGetEventHandle", context);
  } finally {
    driver.eventDestroy(event);
  }
}

function probeFence(context: Context): void {
  const { driver } = context;
  const block = FenceBlock.create(PROBE_BYTES);
  try {
    const word = block.addressOn(context, 0);
    const stream = NativeStream.create(context, true, 0);
    try {
      check(driver.streamWriteValue64(stream.handle, word, 1n, CU_STREAM_WRITE_VALUE_DEFAULT), "cuStreamWriteValue64", context);
      check(driver.streamSynchronize(stream.handle), "cuStreamSynchronize", context);
    } finally {
      stream.release();
    }
  } finally {
    block.release();
  }
}

function probeLegacy(context: Context): void {
  const { driver } = context;
  check(driver.memAlloc(toSize(PROBE_BYTES)), "cuMemAlloc", context);
  const address = driver.out.readAddress(0);
  try {
    legacyHandleOf(context, address);
  } finally {
    driver.memFree(address);
  }
}
