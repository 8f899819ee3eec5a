/** How a refusal travels inside the simulator: thrown, and turned into the call's CUresult at the door. */
export class Refusal {
  readonly code: number;
  constructor(code: number) {
    this.code = code;
  }
}
