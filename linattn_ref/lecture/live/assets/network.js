// The image model as a recurrent network, the text of `linattn_ref.models.causal.step` for one sequence, in float64.
//
//   x = T[token] + P[place]                                                   (1)
//   h = x + attention(norm_1(x)),   x = h + feed_forward(norm_2(h))           (2)  each block
//   scores = norm(x) W + b                                                    (3)
//
// Linear attention (Katharopoulos et al. 2020, equations 16-20) keeps two sums per head, softmax attention all keys and
// values so far. A weight is a number of float32; all arithmetic is JavaScript's own, float64, as in NumPy's twin.
"use strict";

class Network {
  constructor(described) {
    Object.assign(this, described.sizes); // width, hidden, heads, layers, places, values
    this.attention = described.attention;
    this.begin = this.values; // the sign before the first pixel
    this.weights = unpacked(described);
    this.blocks = Array.from({ length: this.layers }, (_, l) => this.#block(`blocks.${l}.`));
    this.x = new Float64Array(this.width);
    this.normed = new Float64Array(this.width);
    this.projected = new Float64Array(3 * this.width);
    this.attended = new Float64Array(this.width);
    this.inner = new Float64Array(this.hidden);
    this.scores = new Float64Array(this.values);
    const make = this.attention === "linear" ? LinearState : SoftmaxCache;
    this.states = this.blocks.map(() => new make(this.heads, this.width / this.heads, this.places));
    this.reset();
  }

  #block(name) {
    const w = (field) => this.weights[name + field];
    const affine = (field) => ({ w: w(`${field}.w`), b: w(`${field}.b`) });
    return {
      norm1: { gain: w("norm_1.gain"), bias: w("norm_1.bias") },
      norm2: { gain: w("norm_2.gain"), bias: w("norm_2.bias") },
      into: affine("attention.inner"),
      out: affine("attention.outer"),
      up: affine("feed_forward.inner"),
      down: affine("feed_forward.outer"),
    };
  }

  // Before the first token: nothing is known.
  reset() {
    this.place = 0;
    for (const state of this.states) state.reset();
  }

  // Numbers that are carried from this token to the next.
  get held() {
    return this.states.reduce((sum, state) => sum + state.held, 0);
  }

  // Reads one token; what comes next is in `scores`, which the next call writes over.
  step(token) {
    const { x, width } = this;
    const embedding = this.weights["embedding.table"], position = this.weights["positions.table"];
    for (let i = 0; i < width; i++) x[i] = embedding[token * width + i] + position[this.place * width + i]; // (1)
    this.blocks.forEach((block, l) => {
      layerNorm(x, block.norm1, this.normed);
      affine(this.normed, block.into, this.projected);
      this.states[l].step(this.projected, this.attended);
      addAffine(this.attended, block.out, x); // (2), h
      layerNorm(x, block.norm2, this.normed);
      affine(this.normed, block.up, this.inner);
      gelu(this.inner);
      addAffine(this.inner, block.down, x); // (2), x
    });
    layerNorm(x, { gain: this.weights["norm.gain"], bias: this.weights["norm.bias"] }, this.normed);
    affine(this.normed, { w: this.weights["head.w"], b: this.weights["head.b"] }, this.scores); // (3)
    this.place += 1;
    return this.scores;
  }
}

// --- Attention, a token at a time: projected = [q, k, v], a head after the other in each -----------------------------

// S += phi(k) v^T, Z += phi(k), out = phi(q)^T S / (phi(q)^T Z + eps), phi(x) = x + 1 above 0 and exp(x) below.
class LinearState {
  constructor(heads, depth) {
    Object.assign(this, { heads, depth });
    this.s = new Float64Array(heads * depth * depth); // (H, C, M)
    this.z = new Float64Array(heads * depth); // (H, C)
    this.held = this.s.length + this.z.length;
  }

  reset() {
    this.s.fill(0);
    this.z.fill(0);
  }

  step(projected, out) {
    const { heads, depth, s, z } = this, width = heads * depth;
    const phi = (x) => (x > 0 ? x + 1 : Math.exp(x));
    out.fill(0);
    for (let h = 0; h < heads; h++) {
      let total = 1e-6; // eps
      for (let c = 0; c < depth; c++) {
        const phiQ = phi(projected[h * depth + c]), phiK = phi(projected[width + h * depth + c]);
        const row = (h * depth + c) * depth, v = 2 * width + h * depth, o = h * depth;
        for (let m = 0; m < depth; m++) {
          const sum = s[row + m] + phiK * projected[v + m];
          s[row + m] = sum;
          out[o + m] += phiQ * sum;
        }
        z[h * depth + c] += phiK;
        total += phiQ * z[h * depth + c];
      }
      for (let m = 0; m < depth; m++) out[h * depth + m] /= total;
    }
  }
}

// out = sum_j softmax_j(q . k_j / sqrt D) v_j over all tokens so far, which are kept.
class SoftmaxCache {
  constructor(heads, depth, places) {
    Object.assign(this, { heads, depth });
    this.keys = new Float64Array(places * heads * depth); // room for (places, H, D), filled as tokens come
    this.values = new Float64Array(places * heads * depth);
    this.weights = new Float64Array(places);
  }

  reset() {
    this.count = 0;
  }

  get held() {
    return 2 * this.count * this.heads * this.depth;
  }

  step(projected, out) {
    const { heads, depth, keys, values, weights } = this, width = heads * depth, scale = 1 / Math.sqrt(depth);
    keys.set(projected.subarray(width, 2 * width), this.count * width);
    values.set(projected.subarray(2 * width), this.count * width);
    const count = (this.count += 1);
    out.fill(0);
    for (let h = 0; h < heads; h++) {
      const first = h * depth;
      let largest = -Infinity, total = 0;
      for (let j = 0; j < count; j++) {
        let score = 0;
        for (let d = 0, at = j * width + first; d < depth; d++) score += projected[first + d] * keys[at + d];
        weights[j] = score * scale;
        if (weights[j] > largest) largest = weights[j];
      }
      for (let j = 0; j < count; j++) {
        const weight = Math.exp(weights[j] - largest);
        total += weight;
        for (let m = 0, at = j * width + first; m < depth; m++) out[first + m] += weight * values[at + m];
      }
      for (let m = 0; m < depth; m++) out[first + m] /= total;
    }
  }
}

// --- Layers ----------------------------------------------------------------------------------------------------------

function layerNorm(x, { gain, bias }, out) {
  const n = x.length;
  let mean = 0, variance = 0;
  for (let i = 0; i < n; i++) mean += x[i];
  mean /= n;
  for (let i = 0; i < n; i++) variance += (x[i] - mean) ** 2;
  const s = Math.sqrt(variance / n + 1e-5);
  for (let i = 0; i < n; i++) out[i] = ((x[i] - mean) / s) * gain[i] + bias[i];
}

// out = x w + b, w (in, out) in rows.
function affine(x, { w, b }, out) {
  out.fill(0);
  addAffine(x, { w, b }, out);
}

// out += x w + b, four rows of w at a time.
function addAffine(x, { w, b }, out) {
  const n = out.length, whole = x.length - (x.length % 4);
  for (let i = 0; i < whole; i += 4) {
    const x0 = x[i], x1 = x[i + 1], x2 = x[i + 2], x3 = x[i + 3];
    for (let j = 0, a = i * n, c = a + 2 * n; j < n; j++, a++, c++)
      out[j] += x0 * w[a] + x1 * w[a + n] + (x2 * w[c] + x3 * w[c + n]);
  }
  for (let i = whole; i < x.length; i++) for (let j = 0; j < n; j++) out[j] += x[i] * w[i * n + j];
  for (let j = 0; j < n; j++) out[j] += b[j];
}

// x Phi(x), in place.
function gelu(x) {
  for (let i = 0; i < x.length; i++) x[i] *= 0.5 * (1 + erf(x[i] * Math.SQRT1_2));
}

// 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x. JavaScript has none. Up to 3 by Kummer's series, whose terms
// all have the sign of x,
//   erf x = 2 / sqrt(pi) exp(-x^2) sum_n 2^n x^(2n+1) / (1 3 5 ... (2n+1)),
// beyond by Laplace's continued fraction of 1 - erf.
function erf(x) {
  const size = Math.abs(x), square = x * x;
  if (size >= 6) return Math.sign(x);
  if (size < 3) {
    let term = x, sum = x;
    for (let odd = 3; Math.abs(term) > 1e-17 * Math.abs(sum); odd += 2) {
      term *= (2 * square) / odd;
      sum += term;
    }
    return (2 / Math.sqrt(Math.PI)) * Math.exp(-square) * sum;
  }
  let tail = size;
  for (let n = 60; n > 0; n--) tail = size + n / 2 / tail;
  return Math.sign(x) * (1 - Math.exp(-square) / (Math.sqrt(Math.PI) * tail));
}

// --- Drawing a pixel -------------------------------------------------------------------------------------------------

// As `linattn_ref.models.generate.pick`: the likeliest at temperature 0, else one drawn by a number from `random`.
function pick(scores, temperature, random) {
  let best = 0;
  for (let i = 1; i < scores.length; i++) if (scores[i] > scores[best]) best = i;
  const uniform = random.uniform(); // drawn at temperature 0 too, as there
  if (temperature === 0) return best;
  const cumulative = new Float64Array(scores.length);
  let sum = 0;
  for (let i = 0; i < scores.length; i++) cumulative[i] = sum += Math.exp((scores[i] - scores[best]) / temperature);
  let chosen = 0;
  while (cumulative[chosen] <= uniform * sum) chosen++;
  return chosen;
}

// --- Weights ---------------------------------------------------------------------------------------------------------

// base64 to Float32Arrays by name: float16, or int8 with a float32 factor for each column.
function unpacked({ arrays, format, data }) {
  const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0)), found = {};
  for (const { name, shape, at } of arrays) {
    const count = shape.reduce((a, b) => a * b, 1), columns = shape[shape.length - 1];
    if (format === "float16") {
      found[name] = Float32Array.from(new Uint16Array(bytes.buffer, at, count), half);
    } else {
      const factors = new Float32Array(bytes.buffer.slice(at, at + 4 * columns));
      const steps = new Int8Array(bytes.buffer, at + 4 * columns, count);
      found[name] = Float32Array.from(steps, (step, i) => step * factors[i % columns]); // rounded to float32
    }
  }
  return found;
}

// The float16 with these 16 bits.
function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1024 + fraction) * 2 ** (exponent - 25);
}
