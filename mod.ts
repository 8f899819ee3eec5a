/**
 * Share GPU memory and GPU ordering between processes from TypeScript, on Deno and on Bun.
 *
 * @module
 */
export {
  type DriverName,
  openDriver,
  type SimulatorControl,
  simulatorControl,
  type SimulatorFault,
  type SimulatorObjects,
  type SimulatorReport,
} from "./src/driver/mod.ts";
export type { Driver as CudaDriver } from "./src/driver/driver.ts";
export { Closable, type Remains, type WaitOptions } from "./src/closable.ts";
export { Device, type DeviceOptions } from "./src/device.ts";
export type { IpcFeature, IpcSupport } from "./src/ipc_support.ts";
export type { DeviceAttribute } from "./src/driver/device_attributes.ts";
export { CudaStream, type StreamDependency, type StreamFence, type StreamOptions } from "./src/stream.ts";
export { CudaEvent, type EventOptions } from "./src/event.ts";
export {
  MemoryPool,
  type MemoryPoolAttributes,
  type MemoryPoolImportOptions,
  type MemoryPoolOptions,
} from "./src/memory/pool.ts";
export {
  type ChunksOptions,
  type Copy2DOptions,
  DeviceBuffer,
  type Fill2DOptions,
  type FillOptions,
  type ReadOptions,
  type StreamOption,
  type WrapOptions,
  type WriteOptions,
} from "./src/memory/buffer.ts";
export type { BufferKind } from "./src/memory/allocation.ts";
export { HostPool, type HostPoolAttributes, type HostPoolImportOptions, type HostPoolOptions } from "./src/memory/host_pool.ts";
export * as legacy from "./src/memory/legacy.ts";
export type { OpenMemHandleOptions } from "./src/memory/legacy.ts";
export { VirtualMemory, type VirtualMemoryOptions } from "./src/memory/virtual.ts";
export { AllocationHandle } from "./src/memory/allocation_handle.ts";
export {
  BufferDescriptor,
  type BufferDescriptorInit,
  type BufferDescriptorJson,
  EventDescriptor,
  type EventDescriptorInit,
  type EventDescriptorJson,
  type MemoryKind,
} from "./src/wire/descriptor.ts";
export { SharedFence, type SharedFenceOptions } from "./src/share/fence.ts";
export {
  type ChannelDevices,
  type ChannelStats,
  type CloseOptions,
  type CloseReason,
  type ConnectOptions,
  IpcChannel,
  type ReceiveOptions,
} from "./src/channel/channel.ts";
export { IpcMessage, type ReleaseOptions } from "./src/channel/message.ts";
export { IpcServer, type ListenOptions } from "./src/channel/server.ts";
export { Lease, type LeaseOutcome } from "./src/channel/lease.ts";
export type { Peer } from "./src/channel/handshake.ts";
export type { SendOptions, SendParts } from "./src/channel/outbox.ts";
export type { ProcessIdentity } from "./src/wire/identity.ts";
export {
  ChannelClosedError,
  ClosedError,
  CudaDriverError,
  type CudaDriverErrorOptions,
  CudaIpcError,
  type CudaIpcErrorOptions,
  DeviceNotVisibleError,
  DriverNotFoundError,
  ImportLimitError,
  InvalidArgumentError,
  LibraryNotFoundError,
  NotSupportedError,
  OutOfMemoryError,
  PeerGoneError,
  PeerRejectedError,
  ProtocolError,
  SameProcessError,
  SystemCallError,
  type SystemCallErrorOptions,
} from "./src/errors.ts";
