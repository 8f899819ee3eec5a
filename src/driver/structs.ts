/** Layouts of the driver's structs on 64-bit machines; the conformance suite compares them with cuda.h. */
import type { StructLayout } from "../../ffi/mod.ts";

/** Nested structs are flattened: `location` is a CUmemLocation. */
export const CU_MEM_POOL_PROPS = {
  name: "CUmemPoolProps",
  byteLength: 88,
  fields: {
    allocType: { type: "u32", offset: 0 },
    handleTypes: { type: "u32", offset: 4 },
    locationType: { type: "u32", offset: 8, member: "location.type" },
    locationId: { type: "i32", offset: 12, member: "location.id" },
    win32SecurityAttributes: { type: "address", offset: 16 },
    maxSize: { type: "size", offset: 24 },
    usage: { type: "u16", offset: 32 },
  },
} as const satisfies StructLayout;

export const CU_MEM_LOCATION = {
  name: "CUmemLocation",
  byteLength: 8,
  fields: { type: { type: "u32", offset: 0 }, id: { type: "i32", offset: 4 } },
} as const satisfies StructLayout;

export const CU_MEM_ACCESS_DESC = {
  name: "CUmemAccessDesc",
  byteLength: 12,
  fields: {
    locationType: { type: "u32", offset: 0, member: "location.type" },
    locationId: { type: "i32", offset: 4, member: "location.id" },
    flags: { type: "u32", offset: 8 },
  },
} as const satisfies StructLayout;

export const CU_MEM_ALLOCATION_PROP = {
  name: "CUmemAllocationProp",
  byteLength: 32,
  fields: {
    type: { type: "u32", offset: 0 },
    requestedHandleTypes: { type: "u32", offset: 4 },
    locationType: { type: "u32", offset: 8, member: "location.type" },
    locationId: { type: "i32", offset: 12, member: "location.id" },
    win32HandleMetaData: { type: "address", offset: 16 },
    compressionType: { type: "u8", offset: 24, member: "allocFlags.compressionType" },
    gpuDirectRDMACapable: { type: "u8", offset: 25, member: "allocFlags.gpuDirectRDMACapable" },
    usage: { type: "u16", offset: 26, member: "allocFlags.usage" },
  },
} as const satisfies StructLayout;

export const CUDA_MEMCPY2D = {
  name: "CUDA_MEMCPY2D",
  byteLength: 128,
  fields: {
    srcXInBytes: { type: "size", offset: 0 },
    srcY: { type: "size", offset: 8 },
    srcMemoryType: { type: "u32", offset: 16 },
    srcHost: { type: "address", offset: 24 },
    srcDevice: { type: "address", offset: 32 },
    srcPitch: { type: "size", offset: 48 },
    dstXInBytes: { type: "size", offset: 56 },
    dstY: { type: "size", offset: 64 },
    dstMemoryType: { type: "u32", offset: 72 },
    dstHost: { type: "address", offset: 80 },
    dstDevice: { type: "address", offset: 88 },
    dstPitch: { type: "size", offset: 104 },
    WidthInBytes: { type: "size", offset: 112 },
    Height: { type: "size", offset: 120 },
  },
} as const satisfies StructLayout;

/** Opaque blocks: CUmemPoolPtrExportData, CUipcMemHandle, CUipcEventHandle and CUmemFabricHandle. */
export const OPAQUE_BYTES = 64;
export const UUID_BYTES = 16;
