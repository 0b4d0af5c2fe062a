// The page of the two networks: what is drawn, clicked and measured. The networks are in network.js.
"use strict";

const $ = (selector, inside = document) => inside.querySelector(selector);
const given = JSON.parse($("#networks").textContent);
const BYTES = 8; // of a number in float64
const SPEEDS = [["one pixel per breath", 1, 8], ["slow", 1, 1], ["normal", 6, 1], ["as fast as it goes", 56, 1]]; // pixels every so many frames

const MANY = 20; // digits at once

// --- Two writers -----------------------------------------------------------------------------------------------------

class Writer {
  constructor(described) {
    this.network = new Network(described);
    this.card = $(`#${described.attention}`);
    this.digit = $(".digit", this.card).getContext("2d");
    this.memory = new MemoryPicture($(".memory", this.card), this.network);
    this.times = Array.from({ length: SIDE }, () => []); // of each row: milliseconds per pixel, as often as measured
  }

  // Back to the beginning of the page; `prefix` are the pixels that are given.
  restart(prefix, seed) {
    this.network.reset();
    this.memory.restart();
    this.random = new Random(seed);
    this.prefix = prefix;
    this.pixels = [];
    this.held = [];
  }

  // Reads the pixel before, and says or copies the next ones.
  write(count, temperature) {
    const before = this.pixels.length, begun = performance.now();
    for (let i = 0; i < count && this.pixels.length < this.network.places; i++) {
      const place = this.pixels.length;
      const scores = this.network.step(place ? this.pixels[place - 1] : this.network.begin);
      this.pixels.push(place < this.prefix.length ? this.prefix[place] : pick(scores, temperature, this.random));
      this.held.push(this.network.held);
    }
    const row = Math.floor(before / SIDE), done = this.pixels.length - before;
    if (done) this.times[row].push((performance.now() - begun) / done);
  }

  // Milliseconds per pixel, a point for each row: the median of this digit's measurements and those before.
  get curve() {
    return this.times.flatMap((all, r) => (all.length ? [[(r + 0.5) * SIDE, median(all)]] : []));
  }

  // In the row where it writes.
  get time() {
    const all = this.times[Math.max(0, Math.ceil(this.pixels.length / SIDE) - 1)];
    return all.length ? `${median(all).toFixed(2)} ms` : "";
  }
}

const writers = given.networks.map((described) => new Writer(described));
const places = writers[0].network.places;

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[sorted.length >> 1];
}

// --- Drawing ---------------------------------------------------------------------------------------------------------

const memoryPlot = new Plot($("#memory-plot"), { xMax: places, xName: "pixel", unit: "kB", floor: 100 });
const timePlot = new Plot($("#time-plot"), { xMax: places, xName: "pixel", unit: "ms", floor: 0.1 });

function drawDigit(pen, pixels, given, colours, { rows = null, cursor = null } = {}) {
  const image = new ImageData(SIDE, SIDE), [behind, ink, own] = colours;
  for (let p = 0; p < SIDE * SIDE; p++) {
    const value = p < pixels.length ? pixels[p] / 255 : 0, towards = p < given ? ink : own;
    const faint = rows !== null && p >= rows * SIDE ? 0.28 : 1; // drawn, but not seen by the networks
    for (let i = 0; i < 3; i++) image.data[4 * p + i] = behind[i] + faint * value * (towards[i] - behind[i]);
    image.data[4 * p + 3] = 255;
    if (p === cursor) [0, 1, 2].forEach((i) => (image.data[4 * p + i] = own[i]));
  }
  pen.putImageData(image, 0, 0);
}

function draw() {
  const well = colour("--well"), ink = colour("--ink"), soft = colour("--soft");
  for (const { network, card, digit, memory, pixels, prefix, time } of writers) {
    const own = colour(`--${network.attention}`);
    const cursor = pixels.length < places ? pixels.length : null;
    drawDigit(digit, pixels, prefix.length, [well, ink, own], { cursor });
    memory.draw([well, own, soft]);
    $(".held", card).textContent = bytes(BYTES * network.held);
    $(".time", card).textContent = time;
  }
  const lines = (curve) => Object.fromEntries(writers.map((writer) => [writer.network.attention, curve(writer)]));
  memoryPlot.draw(lines(({ held }) => held.flatMap((n, i) => (i % 4 && i + 1 < held.length ? [] : [[i + 1, (BYTES * n) / 1e3]]))));
  timePlot.draw(lines((writer) => writer.curve));
  const keep = Number($("#keep").value), pen = $("#paper").getContext("2d");
  drawDigit(pen, paper.ink, SIDE * SIDE, [well, ink, ink], { rows: keep });
  pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--softmax");
  pen.globalAlpha = 0.35;
  pen.fillRect(0, keep, SIDE, 0.25); // the last row that is seen ends here
  if (paper.cursor) pen.fillRect(paper.cursor[0] - 0.5, paper.cursor[1] - 0.5, 1, 1);
  pen.globalAlpha = 1;
}

function keepWritten() {
  $(".written").hidden = false;
  const pair = document.createElement("div");
  pair.className = "pair";
  for (const { network, pixels, prefix } of writers) {
    const canvas = Object.assign(document.createElement("canvas"), { className: "pixels", width: SIDE, height: SIDE });
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `Written by ${network.attention} attention, seed ${$("#seed").value}`);
    drawDigit(canvas.getContext("2d"), pixels, prefix.length, [colour("--well"), colour("--ink"), colour(`--${network.attention}`)]);
    pair.append(canvas);
  }
  $("#written").prepend(pair);
  while ($("#written").childElementCount > MANY) $("#written").lastElementChild.remove();
}

function tell(first) {
  const [a, b] = writers.map(
    ({ network, time }) => `${network.attention} attention remembers ${bytes(BYTES * network.held)} and takes ${time} per pixel`);
  $("#status").textContent = `${first} Pixel ${writers[0].pixels.length} of ${places}: ${a}; ${b}.`;
}

// --- Running ---------------------------------------------------------------------------------------------------------

let running = false, frames = 0, toWrite = 0; // of many at once, how many are left

function restart() {
  const keep = Number($("#keep").value), blank = paper.ink.every((value) => value === 0);
  const seed = Math.min(2 ** 32 - 1, Math.max(0, Math.floor(Number($("#seed").value) || 0)));
  $("#seed").value = seed;
  for (const writer of writers) writer.restart(blank ? [] : Array.from(paper.ink.subarray(0, keep * SIDE)), seed);
}

function advance(count) {
  const rest = SIDE - (writers[0].pixels.length % SIDE); // a measurement stays within a row
  for (const writer of writers) writer.write(Math.min(count, rest), Number($("#temperature").value));
  if (writers[0].pixels.length === places) {
    keepWritten();
    if (--toWrite > 0) another();
    else {
      setRunning(false);
      tell("Done.");
    }
  }
}

// The same beginning with the next seed.
function another() {
  $("#seed").value = (Number($("#seed").value) + 1) % 2 ** 32;
  restart();
}

function frame() {
  if (!running) return;
  const [, count, every] = toWrite ? SPEEDS[SPEEDS.length - 1] : SPEEDS[$("#speed").value];
  if (frames++ % every === 0) for (let done = 0; done < count && running; done += SIDE) advance(Math.min(SIDE, count));
  draw();
  requestAnimationFrame(frame);
}

function setRunning(on) {
  if (on === running) return;
  running = on;
  $("#play").textContent = on ? "Pause" : writers[0].pixels.length === places ? "Write again" : "Write";
  if (on) requestAnimationFrame(frame);
}

// Whatever the networks have read is no longer what stands there: they begin again.
function changed() {
  say();
  setRunning(false);
  toWrite = 0;
  restart();
  $("#play").textContent = "Write";
  draw();
}

function say() {
  const keep = Number($("#keep").value), temperature = Number($("#temperature").value);
  $("#keep-said").textContent = keep === 1 ? "row" : `${keep} rows`;
  $("#temperature-said").textContent = temperature ? temperature.toFixed(2) : "0: the likeliest";
  $("#speed-said").textContent = SPEEDS[$("#speed").value][0];
}

const paper = new Paper($("#paper"), changed, draw);
for (const name of [..."0123456789", "×"]) {
  const button = Object.assign(document.createElement("button"), { textContent: name, type: "button" });
  button.setAttribute("aria-label", name === "×" ? "Clear the paper" : `Begin a ${name}`);
  button.addEventListener("click", () => (name === "×" ? paper.clear() : paper.write(Number(name))));
  $(".digits").append(button);
}
$("#keep").addEventListener("input", changed);
$("#seed").addEventListener("change", changed);
$("#temperature").addEventListener("input", say);
$("#speed").addEventListener("input", say);
$("#play").addEventListener("click", () => {
  if (!running && writers[0].pixels.length === places) another();
  setRunning(!running);
  tell(running ? "Writing." : "Stopped.");
});
$("#many").addEventListener("click", () => {
  $("#written").replaceChildren();
  toWrite = MANY;
  restart();
  setRunning(true);
  tell(`Writing ${MANY}.`);
});
$("#one").addEventListener("click", () => {
  setRunning(false);
  if (writers[0].pixels.length < places) advance(1);
  if (writers[0].pixels.length < places) tell("");
  draw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const writer of writers) writer.memory.restart();
  draw();
});

const state = writers.find(({ network }) => network.attention === "linear").network, per = 2 * state.layers * state.width;
$("#crossing").textContent = `One pixel adds ${per} numbers to the cache, the state has ${state.held.toLocaleString("en")}: from pixel ${Math.ceil(state.held / per)} on the cache is the larger, and at the last it is ${((per * places) / state.held).toFixed(0)} times as large.`;
$("#origin").textContent = given.origin;
paper.write(3);
if (!matchMedia("(prefers-reduced-motion: reduce)").matches && location.hash !== "#still") setRunning(true);
