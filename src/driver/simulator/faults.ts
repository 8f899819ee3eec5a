/** Faults that tests ask for: a call that fails, kills, or whose work takes long; at which of its calls, and how often. */
import { environmentVariable } from "../../../ffi/mod.ts";
import { InvalidArgumentError } from "../../errors.ts";
import { callNumber } from "./calls.ts";
import type { SimulatorFault } from "./simulator_control.ts";
import type { ProcessState } from "./state.ts";

const VARIABLE = "CUDA_IPC_SIM_FAULTS";

/** What `Faults.next` gives in place of a code. */
export const NO_FAULT = -1;
export const KILL = -2;

export class Faults {
  readonly #state: ProcessState;
  /** How long the work takes that the present call queues. */
  workMs = 0;

  constructor(state: ProcessState) {
    this.#state = state;
  }

  /** Arms what the environment asks for, once in each process. */
  armFromEnvironment(): void {
    if (this.#state.process.faultsRead !== 0) return;
    this.#state.process.faultsRead = 1;
    for (const fault of parseFaults(environmentVariable(VARIABLE) ?? "")) this.arm(fault);
  }

  arm(fault: SimulatorFault): void {
    const { at, count = at === undefined ? Infinity : 1 } = fault;
    const call = fault.call === "*" ? 0 : callNumber(fault.call);
    const from = this.#counter(call) + (at ?? 1);
    const code = fault.kill ? KILL : fault.code ?? NO_FAULT;
    this.#state.tables.faults.create({ call, code, from, to: from + count - 1, workMs: fault.workMs ?? 0 });
  }

  disarm(): void {
    for (const fault of this.#state.tables.faults.rows()) this.#state.tables.faults.destroy(fault.id);
  }

  #counter(call: number): number {
    return call === 0 ? this.#state.process.calls : this.#state.tables.calls.get(call, "count");
  }

  /** Counts a call; what happens to it. */
  next(call: number): number {
    const { tables, process } = this.#state;
    const count = ++tables.calls.at(call).count;
    const total = ++process.calls;
    this.workMs = 0;
    if (tables.faults.size === 0) return NO_FAULT;
    for (const fault of tables.faults.rows()) {
      const number = fault.call === 0 ? total : fault.call === call ? count : 0;
      if (number < fault.from || number > fault.to) continue;
      if (fault.code !== NO_FAULT) return fault.code;
      this.workMs = fault.workMs;
    }
    return NO_FAULT;
  }
}

const ENTRY = /^(\*|cu\w+)(?:@(\d+)(-(\d*))?)?=(?:(\d+)|(\d+(?:\.\d+)?)ms|(kill))$/;

/**
 * Reads `call=effect` entries, separated by `;`. A call is a name or `*`, with `@3` for its third call, `@3-5` or `@3-` for a
 * range; the effect is a CUresult number, a time such as `100ms` that its work takes, or `kill`.
 */
export function parseFaults(text: string): SimulatorFault[] {
  return text.split(";").map((entry) => entry.trim()).filter((entry) => entry !== "").map((entry) => {
    const match = ENTRY.exec(entry);
    if (match === null || (match[1] !== "*" && callNumber(match[1]) === 0)) {
      throw new InvalidArgumentError(
        `Cannot open the simulator: ${VARIABLE} has "${entry}", expected the name of a driver function or *, then ` +
          '"@3", "@3-5", "@3-" or nothing, then "=" and a CUresult number, a time such as "100ms", or "kill"',
      );
    }
    const [, call, first, range, last, code, workMs, kill] = match;
    const at = first === undefined ? undefined : Number(first);
    const count = at === undefined || range === undefined ? undefined : last === "" ? Infinity : Number(last) - at + 1;
    return {
      call,
      ...(kill === undefined ? {} : { kill: true as const }),
      ...(code === undefined ? {} : { code: Number(code) }),
      ...(workMs === undefined ? {} : { workMs: Number(workMs) }),
      ...(at === undefined ? {} : { at }),
      ...(count === undefined ? {} : { count }),
    };
  });
}
