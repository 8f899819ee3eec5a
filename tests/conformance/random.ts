/** Values that show a wrong width, a lost half or a lost sign: the extremes often, everything else at random. */

export class Random {
  #state: number;

  constructor(seed: number) {
    this.#state = seed >>> 0;
  }

  /** xorshift32 */
  #next(): number {
    let x = this.#state;
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
    return this.#state = x >>> 0;
  }

  /** From 0 up to and without `limit`. */
  below(limit: number): number {
    return this.#next() % limit;
  }
  /** An unsigned integer of 8, 16 or 32 bits. */
  unsigned(bits: 8 | 16 | 32): number {
    const max = 2 ** bits - 1;
    return this.#pick([0, 1, (max + 1) / 2 - 1, (max + 1) / 2, max - 1, max], () => this.#next() % (max + 1));
  }
  i32(): number {
    return this.#pick([0, 1, -1, -0x8000_0000, 0x7fff_ffff], () => this.#next() | 0);
  }
  u64(): bigint {
    const extremes = [
      0n,
      1n,
      0xffff_ffffn,
      1n << 32n,
      1n << 53n,
      (1n << 53n) + 1n,
      1n << 63n,
      (1n << 64n) - 2n,
      (1n << 64n) - 1n,
    ];
    return this.#pick(extremes, () => BigInt(this.#next()) << 32n | BigInt(this.#next()));
  }
  /** What an address or a size may be: 0 to 2^53 - 1. */
  safeInteger(): number {
    const extremes = [0, 1, 0xffff_ffff, 2 ** 32, 2 ** 32 + 1, 0x7fff_ffff_ffff, 2 ** 52, 2 ** 53 - 2, 2 ** 53 - 1];
    return this.#pick(extremes, () => (this.#next() % 2 ** 21) * 2 ** 32 + this.#next());
  }
  bytes(byteLength: number): Uint8Array {
    return Uint8Array.from({ length: byteLength }, () => this.#next() & 0xff);
  }

  #pick<T>(extremes: readonly T[], other: () => T): T {
    return this.below(3) === 0 ? extremes[this.below(extremes.length)] : other();
  }
}
