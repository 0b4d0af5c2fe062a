// NumPy's own random numbers: `new Random(seed).uniform()` is `np.random.default_rng(seed).random()`, bit by bit.
//
// The seed is stirred by SeedSequence (O'Neill's seed_seq_fe), the numbers come from PCG64 (O'Neill 2014, PCG XSL RR
// 128/64): a linear congruential generator of 128 bits, whose two halves are xored and turned.
"use strict";

class Random {
  static #MASK_64 = (1n << 64n) - 1n;
  static #MASK_128 = (1n << 128n) - 1n;
  static #MULTIPLIER = 0x2360ed051fc65da44385df649fccf645n;
  #state;
  #increment;

  constructor(seed) {
    if (!Number.isInteger(seed) || seed < 0 || seed >= 2 ** 32) throw new RangeError(`seed: expected 0 to 2^32 - 1, got ${seed}`);
    const [stateHigh, stateLow, sequenceHigh, sequenceLow] = Random.#stirred(seed);
    this.#increment = (((sequenceHigh << 64n) | sequenceLow) << 1n | 1n) & Random.#MASK_128;
    this.#state = 0n;
    this.#advance();
    this.#state = (this.#state + ((stateHigh << 64n) | stateLow)) & Random.#MASK_128;
    this.#advance();
  }

  // A number of [0, 1) with 53 bits.
  uniform() {
    this.#advance();
    const folded = (this.#state >> 64n) ^ (this.#state & Random.#MASK_64);
    const turns = this.#state >> 122n;
    const word = ((folded >> turns) | (folded << (64n - turns))) & Random.#MASK_64;
    return Number(word >> 11n) / 2 ** 53;
  }

  #advance() {
    this.#state = (this.#state * Random.#MULTIPLIER + this.#increment) & Random.#MASK_128;
  }

  // Four words of 64 bits, as SeedSequence(seed).generate_state(4, np.uint64) makes them.
  static #stirred(seed) {
    let constant = 0x43b0d7e5;
    const hash = (value) => {
      value = (value ^ constant) >>> 0;
      constant = Math.imul(constant, 0x931e8875) >>> 0;
      value = Math.imul(value, constant) >>> 0;
      return (value ^ (value >>> 16)) >>> 0;
    };
    const mix = (x, y) => {
      const mixed = (Math.imul(0xca01f9dd, x) - Math.imul(0x4973f715, y)) >>> 0;
      return (mixed ^ (mixed >>> 16)) >>> 0;
    };
    const pool = [hash(seed), hash(0), hash(0), hash(0)];
    for (let from = 0; from < 4; from++)
      for (let to = 0; to < 4; to++) if (from !== to) pool[to] = mix(pool[to], hash(pool[from]));
    constant = 0x8b51f9dd;
    const words = [];
    for (let i = 0; i < 8; i++) {
      let value = (pool[i % 4] ^ constant) >>> 0;
      constant = Math.imul(constant, 0x58f38ded) >>> 0;
      value = Math.imul(value, constant) >>> 0;
      words.push(BigInt((value ^ (value >>> 16)) >>> 0));
    }
    return [0, 2, 4, 6].map((i) => (words[i + 1] << 32n) | words[i]);
  }
}
