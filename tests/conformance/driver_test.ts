/**
 * Everything that the native driver passes to libcuda and reads back, against a libcuda in C that gcc has compiled
 * from our prototypes and the machine's own cuda.h.
 */
import process from "node:process";
import { test } from "node:test";
import { assert, assertEquals, assertNotEquals, assertThrows } from "@std/assert";
import { addressFromNumber, type ArgumentType, type Signature } from "../../ffi/mod.ts";
import type { CudaDriver } from "../../src/driver/driver.ts";
import { CU_MEM_HANDLE_TYPE_FABRIC, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR } from "../../src/driver/enums.ts";
import { createNativeDriver } from "../../src/driver/native.ts";
import { CUDA_ERROR_NOT_FOUND } from "../../src/driver/results.ts";
import { DRIVER_SYMBOLS } from "../../src/driver/symbols.ts";
import { DriverNotFoundError, InvalidArgumentError } from "../../src/errors.ts";
import { skipWithoutCudaHeader, skipWithoutLibrary } from "../../tools/gcc.ts";
import { collectGarbage } from "../helpers/garbage.ts";
import { LAYOUTS, methodOf, randomCall, SYMBOL_NAMES, type SymbolName, verifyCall } from "./calls.ts";
import { parsePrototype } from "./prototypes.ts";
import { Random } from "./random.ts";
import { Recording } from "./recording.ts";
import { buildStub, neutralTypeOf } from "./stub.ts";
import { buildVariant, type Variant } from "./variants.ts";

const skip = skipWithoutLibrary({ cudaHeader: true });

/** What an old driver has in the place of what it lacks. */
const OLDER_FORMS: readonly SymbolName[] = ["cuEventElapsedTime"];

interface Stub {
  readonly path: string;
  readonly driver: CudaDriver;
  readonly recording: Recording;
}

const LAYOUT_NUMBERS = LAYOUTS.reduce((sum, { fields }) => sum + 1 + 2 * Object.keys(fields).length, 0);

function openStub(variant: Variant): Stub {
  const path = buildVariant(variant);
  return { path, driver: createNativeDriver(path), recording: new Recording(path, LAYOUT_NUMBERS) };
}

let full: Stub | undefined;
let old: Stub | undefined;
const fullStub = (): Stub => full ??= openStub("full");
const oldStub = (): Stub => old ??= openStub("old");
const stubFor = (symbol: SymbolName): Stub => OLDER_FORMS.includes(symbol) ? oldStub() : fullStub();

test("gcc accepts every declared prototype and argument type", { skip: skipWithoutCudaHeader() }, () => {
  fullStub();
});

test("every symbol is declared with its own name, and with the neutral type of each C type", () => {
  for (const [symbol, { prototype, args, result }] of Object.entries(DRIVER_SYMBOLS)) {
    const parsed = parsePrototype(prototype);
    assertEquals([parsed.name, parsed.result, result], [symbol, "CUresult", "i32"]);
    assertEquals<readonly ArgumentType[]>(args, parsed.parameters.map(({ type }) => neutralTypeOf(type)), symbol);
  }
});

test("every method of the driver calls a declared symbol, and every symbol has its method", { skip }, () => {
  const { driver } = fullStub();
  const methods = Object.getOwnPropertyNames(Object.getPrototypeOf(driver)).filter((name) => name !== "constructor");
  assertEquals(new Set(SYMBOL_NAMES.map(methodOf)) as Set<string>, new Set(methods));
});

for (const symbol of SYMBOL_NAMES) {
  test(`${symbol}: arguments, results and out-parameters arrive unchanged`, { skip }, () => {
    const { driver, recording } = stubFor(symbol);
    const random = new Random(0xc0ffee + SYMBOL_NAMES.indexOf(symbol));
    for (let count = 0; count < 300; count++) verifyCall(driver, recording, randomCall(symbol, random), random.i32());
  });
}

test("struct layouts are those of cuda.h: sizes, offsets and widths", { skip }, () => {
  const { recording } = fullStub();
  const widths = { u8: 1, u16: 2, i32: 4, u32: 4, u64: 8, size: 8, address: 8 };
  let at = 0;
  for (const { name, byteLength, fields } of LAYOUTS) {
    assertEquals(byteLength, recording.layoutNumber(at++), `sizeof(${name})`);
    for (const [field, { type, offset, byteLength }] of Object.entries(fields)) {
      assertEquals(offset, recording.layoutNumber(at++), `offsetof(${name}, ${field})`);
      assertEquals(type === "bytes" ? byteLength : widths[type], recording.layoutNumber(at++), `width of ${name}.${field}`);
    }
  }
});

/** Fewer do where the processor is emulated. */
const CALLS = Number(process.env.CUDA_IPC_TEST_CALLS ?? 100_000);

test(`${CALLS} calls with garbage collection and allocation between arrive unchanged`, { skip, timeout: 240_000 }, () => {
  const { driver, recording } = fullStub();
  const symbols: SymbolName[] = [
    "cuIpcOpenEventHandle",
    "cuIpcOpenMemHandle_v2",
    "cuMemAllocFromPoolAsync",
    "cuMemPoolCreate",
    "cuMemPoolImportPointer",
    "cuMemPoolExportPointer",
    "cuMemGetAddressRange_v2",
    "cuStreamWriteValue64_v2",
    "cuMemcpyPeerAsync",
    "cuMemsetD2D8Async",
    "cuStreamQuery",
    "cuStreamCreateWithPriority",
  ];
  const random = new Random(1);
  let kept: unknown[] = [];
  for (let count = 0; count < CALLS; count++) {
    verifyCall(driver, recording, randomCall(symbols[count % symbols.length], random), random.i32());
    kept.push(new Uint8Array(random.below(2000)), { count, text: `garbage ${count}` });
    if (count % 500 === 0) kept = [];
    if (count % 5000 === 0) collectGarbage();
  }
});

test("of a 32-bit answer in a 64-bit place the rest is zero, whatever was there before", { skip }, () => {
  const { driver, recording } = fullStub();
  const address = addressFromNumber(4096);
  recording.result = 0;
  const calls = [
    () => driver.memPoolGetAttribute(address, 1),
    () => driver.pointerGetAttribute(9, address),
    () => driver.memPoolExportToShareableHandle(address, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
    () => driver.memExportToShareableHandle(address, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
  ];
  for (const call of calls) {
    driver.out.writeU64(0, 0xffff_ffff_ffff_ffffn);
    call();
    assertNotEquals(driver.out.readU32(0), 0xffff_ffff);
    assertEquals(driver.out.readU32(4), 0, String(call));
  }
});

test("a fabric handle goes in and out as 64 bytes", { skip }, () => {
  const { driver, recording } = fullStub();
  const handle = new Random(7).bytes(64);
  driver.memImportFromShareableHandle(handle, CU_MEM_HANDLE_TYPE_FABRIC);
  assertEquals(recording.pointee(1), handle);
  driver.memExportToShareableHandle(addressFromNumber(4096), CU_MEM_HANDLE_TYPE_FABRIC);
  assertEquals(recording.pointee(0), driver.out.bytes.slice(0, 64));
});

test("inputs of a wrong length are refused before C sees them", { skip }, () => {
  const { driver, recording } = fullStub();
  const address = addressFromNumber(4096);
  driver.init(0); // recorded: symbol 0
  for (const length of [0, 1, 63, 65, 128]) {
    const bytes = new Uint8Array(length);
    assertThrows(() => driver.ipcOpenEventHandle(bytes), InvalidArgumentError);
    assertThrows(() => driver.ipcOpenMemHandle(bytes, 0), InvalidArgumentError);
    assertThrows(() => driver.memPoolImportPointer(address, bytes), InvalidArgumentError);
    assertThrows(() => driver.memImportFromShareableHandle(bytes, CU_MEM_HANDLE_TYPE_FABRIC), InvalidArgumentError);
  }
  const accesses = Array(65).fill({ locationType: 1, locationId: 0, flags: 3 });
  assertThrows(() => driver.memPoolSetAccess(address, accesses), InvalidArgumentError);
  assertEquals(recording.symbol, 0);
});

test("functions that an old driver lacks answer 500, or the older form is called", { skip }, () => {
  const { driver, recording } = oldStub();
  const address = addressFromNumber(4096);
  recording.result = 0;
  driver.init(0);
  assertEquals(driver.streamWriteValue64(address, address, 1n, 0), CUDA_ERROR_NOT_FOUND);
  assertEquals(driver.streamWaitValue64(address, address, 1n, 0), CUDA_ERROR_NOT_FOUND);
  assertEquals(SYMBOL_NAMES[recording.symbol], "cuInit");
  assertEquals(driver.eventElapsedTime(address, address), 0);
  assertEquals(SYMBOL_NAMES[recording.symbol], "cuEventElapsedTime");
});

test("a driver that lacks a function which is not optional is not opened, and the error names it", { skip }, () => {
  const path = buildVariant("lacking");
  const error = assertThrows(() => createNativeDriver(path), DriverNotFoundError) as DriverNotFoundError;
  assert(error.message.includes("cuMemPoolCreate"), error.message);
});

test("gcc refuses a prototype that differs from the header's", { skip: skipWithoutCudaHeader() }, () => {
  const wrong: readonly [string, Signature][] = [
    ["cuInit", { prototype: "CUresult cuInit(unsigned long Flags)", args: ["u64"], result: "i32" }],
    ["cuInit", { prototype: "CUresult cuInit(unsigned int Flags)", args: ["i32"], result: "i32" }],
    ["cuInit", { prototype: "CUresult cuInit(unsigned int Flags)", args: ["u64"], result: "i32" }],
    ["cuStreamQuery", { prototype: "CUresult cuStreamQuery(CUevent hStream)", args: ["address"], result: "i32" }],
    ["cuNoSuchCall", { prototype: "CUresult cuNoSuchCall(unsigned int Flags)", args: ["u32"], result: "i32" }],
    [
      "cuEventElapsedTime",
      {
        prototype: "CUresult cuEventElapsedTime(double *ms, CUevent start, CUevent end)",
        args: Array(3).fill("address"),
        result: "i32",
      },
    ],
  ];
  for (const [name, signature] of wrong) assertThrows(() => buildStub({ [name]: signature }, LAYOUTS), Error, "Cannot compile");
});
