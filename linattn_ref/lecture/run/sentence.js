// The page of one's own sentence: asks the kernel (kernel.js; sentence.py answers), and draws what comes. One singular
// value decomposition per head is made there; the slider adds or takes away its terms here.
"use strict";

const part = (id) => document.getElementById(id);
const floats = (text) => new Float32Array(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
const short = (share) => share.toFixed(2).replace(/^0/, "");
const quoted = (i) => `“${tokens[i]}”`;

let tokens, N, K; // of the text; N tokens, the curves are compared at K
let curves; // name -> [layer][head] = c_k for k = 1 ... N
let head = null; // { layer, head, p, u, s, vt }, the one that is looked at
let close, rank; // the sum of its first `rank` terms
let place = [0, 0]; // row and column that are pointed at

const kernel = new Kernel("sentence", () => (part("read").disabled = false));

// --- Asking -----------------------------------------------------------------------------------------------------------

async function ask(method, ...parameters) {
  part("stop").hidden = false;
  let told = "";
  const ran = await kernel.ask({ method, parameters }, (kind, content) => {
    if (kind === "data") receive(JSON.parse(content));
    else if (kind === "status") part("status").textContent = content;
    else part("status").textContent = told = `That went wrong: ${content.trim().split("\n").pop()}`;
  });
  part("status").textContent = ran === null ? "Stopped." : told;
  part("stop").hidden = true;
  return ran;
}

part("ask").onsubmit = async (event) => {
  event.preventDefault();
  const text = part("text").value, begun = performance.now();
  if (!text.trim()) {
    part("status").textContent = "There is no text to read.";
    return;
  }
  part("read").disabled = true;
  const seconds = () => `${((performance.now() - begun) / 1000).toFixed(0)} s`;
  if (await ask("read", text)) {
    const [layer, its] = head ? [head.layer, head.head] : FIRST;
    if ((await ask("look", layer, its)) && (await ask("compare")))
      part("status").textContent = `Read ${N} tokens in ${seconds()}.`;
  }
  part("read").disabled = false;
};
part("stop").onclick = () => kernel.stop();

const FIRST = [2, 0];

function receive(data) {
  if (data.kind === "read") {
    ({ tokens } = data);
    N = tokens.length;
    K = Math.max(1, N >> 2);
    curves = { given: byHead(data.given) };
    part("found").hidden = false;
    const cut = data.left_out ? ` Of your text, ${data.left_out} pieces at the end were left out: the network has places for ${N} tokens.` : "";
    part("note").textContent = `${N} tokens: the pieces of words that the network knows (“##” goes on with a word), and [CLS] and [SEP] at the ends.${cut} ` +
      "The untrained network has the same shape and random weights; Gaussian are random queries and keys. The network's weights are rounded to 8 bits here, those of words to 6, " +
      "which moves a head's curve by up to 0.01.";
    drawCurves();
    drawHeads();
  } else if (data.kind === "compared") {
    curves.untrained = byHead(data.untrained);
    curves.gaussian = byHead(data.gaussian);
    drawCurves();
  } else {
    head = { ...data, p: floats(data.p), u: floats(data.u), s: floats(data.s), vt: floats(data.vt) };
    [close, rank] = [new Float64Array(N * N), 0];
    place = [Math.min(place[0], N - 1), Math.min(place[1], N - 1)];
    const k = Number(part("rank").value);
    Object.assign(part("rank"), { max: N, value: part("rank").max === String(N) ? k : K });
    part("head").textContent = `Layer ${head.layer}, head ${head.head}`;
    part("most").replaceChildren(...tokens.map((_, i) => {
      const row = head.p.subarray(i * N, (i + 1) * N), j = row.indexOf(Math.max(...row));
      return element("li", { textContent: `${quoted(i)} at ${quoted(j)}, ${short(row[j])}` });
    }));
    drawCurves();
    drawHeads();
    approximate();
  }
}

// [layer][head] of an array (T, 12, N)
function byHead(text) {
  const all = floats(text), layers = all.length / (HEADS * N);
  return Array.from({ length: layers }, (_, t) =>
    Array.from({ length: HEADS }, (_, h) => all.subarray((t * HEADS + h) * N, (t * HEADS + h + 1) * N)));
}

const HEADS = 12;

// --- Curves -----------------------------------------------------------------------------------------------------------

function mean(lines) {
  return Float64Array.from(lines[0], (_, i) => lines.reduce((sum, line) => sum + line[i], 0) / lines.length);
}

function drawCurves() {
  const svg = part("curves"), width = svg.parentElement.clientWidth, height = 300;
  const [left, right, top, bottom] = [34, width - 12, 8, height - 26];
  const x = (k) => left + ((right - left) * k) / N, y = (share) => bottom - (bottom - top) * share;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  const add = (kind, attributes, text = "") => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.textContent = text;
    svg.append(made);
  };
  for (const share of [0, 0.5, 1]) {
    add("path", { class: "axis", d: `M${left} ${y(share)}H${right}` });
    add("text", { x: left - 6, y: y(share) + 4, "text-anchor": "end" }, String(share));
  }
  add("path", { class: "at", d: `M${x(K)} ${top}V${bottom}` });
  for (const [k, text] of [[0, "0"], [K, `k = ${K}`], [N, String(N)]])
    add("text", { x: x(k), y: height - 8, "text-anchor": k === N ? "end" : k ? "middle" : "start" }, text);
  const legend = [];
  const line = (values, look, style = "") =>
    add("path", { class: look, style, d: `M${x(0)} ${y(0)}` + Array.from(values, (share, i) => `L${x(i + 1).toFixed(1)} ${y(share).toFixed(1)}`).join("") });
  const named = (values, name, look, style = "") => {
    line(values, look, style);
    legend.push(element("li", { className: look, style, textContent: `${short(values[K - 1])} ${name}` }));
  };
  const layers = curves.given.map((lines) => mean(lines)), hue = (t) => `--line: oklch(var(--lightness) 0.13 ${300 - 34 * t})`;
  curves.given.forEach((lines, t) => lines.forEach((values) => line(values, "is-layer thin", hue(t))));
  layers.forEach((values, t) => named(values, `layer ${t}`, "is-layer", hue(t)));
  if (curves.untrained) {
    const untrained = curves.untrained.map(mean);
    untrained.slice(1).forEach((values) => line(values, "is-untrained"));
    named(untrained[0], "untrained", "is-untrained");
    named(mean(curves.gaussian[0]), "Gaussian", "is-gaussian");
  }
  if (head) named(curves.given[head.layer][head.head], `layer ${head.layer}, head ${head.head}`, "is-chosen");
  part("legend").replaceChildren(element("li", { textContent: `at k = ${K}:`, className: "title" }), ...legend);
  svg.ariaLabel = `Normalised cumulative singular values against k, from 0 to ${N}; at k = ${K}: ${legend.map((item) => item.textContent).join(", ")}`;
}

// The share at K by layer and head, a table of buttons; arrow keys move within it.
function drawHeads() {
  const shares = curves.given.map((heads) => heads.map((values) => values[K - 1])), all = shares.flat();
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const had = part("heads").contains(document.activeElement), [layer, its] = head ? [head.layer, head.head] : FIRST;
  const rows = shares.map((row, t) => element("tr", {}, element("th", { scope: "row", textContent: t, ariaLabel: `layer ${t}` }),
    ...row.map((share, h) => {
      const is = t === layer && h === its;
      const button = element("button", { type: "button", textContent: short(share), ariaLabel: `layer ${t}, head ${h}: ${short(share)}`, ariaPressed: String(is), tabIndex: is ? 0 : -1 });
      button.style.setProperty("--share", ((share - low) / (high - low || 1)).toFixed(3));
      button.onclick = () => look(t, h);
      button.onkeydown = (event) => {
        const by = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
        const to = by && [t + by[0], h + by[1]];
        if (!to || !shares[to[0]] || !(to[1] in shares[0])) return;
        event.preventDefault();
        look(...to);
      };
      return element("td", {}, button);
    }))).reverse(); // the first layer is the lowest, as in the figure
  const first = element("tr", {}, element("th", { ariaLabel: "layer" }), ...shares[0].map((_, h) => element("th", { scope: "col", textContent: h, ariaLabel: `head ${h}` })));
  part("heads").replaceChildren(element("tbody", {}, ...rows, first));
  part("heads").setAttribute("aria-describedby", "heads-note");
  part("heads-note").innerHTML = `<i>c<sub>k</sub></i> at <i>k</i> = ${K} by layer (up) and head (across). Choose a head.`;
  if (had) part("heads").querySelector("[aria-pressed=true]").focus();
}

async function look(layer, its) {
  head = { ...head, layer, head: its };
  drawHeads();
  await ask("look", layer, its);
}

// --- One head ---------------------------------------------------------------------------------------------------------

part("rank").oninput = () => approximate();

function term(i, sign) {
  for (let row = 0; row < N; row++) {
    const factor = sign * head.s[i] * head.u[row * N + i];
    for (let column = 0; column < N; column++) close[row * N + column] += factor * head.vt[i * N + column];
  }
}

function approximate() {
  const k = Number(part("rank").value);
  while (rank < k) term(rank++, 1);
  while (rank > k) term(--rank, -1);
  const squares = head.s.map((value) => value * value), sum = (values) => values.reduce((a, b) => a + b, 0);
  const lost = Math.sqrt(sum(squares.subarray(k)) / sum(squares)), kept = sum(head.s.subarray(0, k)) / sum(head.s);
  let worst = 0;
  for (let i = 0; i < N * N; i++) if (Math.abs(close[i] - head.p[i]) > Math.abs(close[worst] - head.p[worst])) worst = i;
  part("rank-said").textContent = `${k} of ${N}`;
  part("rank").setAttribute("aria-valuetext", `${k} of ${N}`);
  part("close-note").innerHTML = `the best matrix of rank ${k}, by its ${k} largest singular values; orange is below 0`;
  const weights = k === N ? "" : ` The weight that is farthest off: from ${quoted(Math.floor(worst / N))} to ${quoted(worst % N)}, ${head.p[worst].toFixed(2)} became ${close[worst].toFixed(2)}.`;
  part("loss").textContent = `Rank ${k} keeps ${(100 * kept).toFixed(1)}% of the sum of the singular values. It loses ${(100 * lost).toFixed(1)}% of the matrix in the Frobenius norm, ` +
    `and ${(k < N ? head.s[k] : 0).toFixed(3)} in the spectral norm; the largest singular value is ${head.s[0].toFixed(3)}.${weights}`;
  drawMatrices();
}

function drawMatrices() {
  const peak = head.p.reduce((a, b) => Math.max(a, b), 0);
  draw(part("exact"), head.p, peak);
  draw(part("close"), close, peak);
  const [row, column] = place, at = row * N + column;
  part("cell").textContent = `From ${quoted(row)} to ${quoted(column)}: ${head.p[at].toFixed(3)}, at rank ${rank} ${close[at].toFixed(3)}.`;
  part("exact").ariaLabel = `Attention matrix of layer ${head.layer}, head ${head.head}, ${N} by ${N}. Arrow keys read its cells.`;
  part("close").ariaLabel = `Its best approximation of rank ${rank}. Arrow keys read its cells.`;
}

const MARGIN = 74; // for tokens

function draw(canvas, matrix, peak) {
  const size = canvas.parentElement.clientWidth, scale = devicePixelRatio, side = size - MARGIN, cell = side / N;
  canvas.width = canvas.height = Math.round(size * scale);
  const paint = canvas.getContext("2d"), style = getComputedStyle(document.body);
  const [behind, up, down] = ["--color-background-secondary", "--color-brand-primary"].map((name) => rgb(style.getPropertyValue(name))).concat([[217, 119, 40]]);
  const image = new ImageData(N, N);
  for (let i = 0; i < N * N; i++) {
    const share = Math.sqrt(Math.min(1, Math.abs(matrix[i]) / peak)), towards = matrix[i] < 0 ? down : up;
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = behind[c] + share * (towards[c] - behind[c]);
    image.data[4 * i + 3] = 255;
  }
  const small = element("canvas", { width: N, height: N });
  small.getContext("2d").putImageData(image, 0, 0);
  paint.scale(scale, scale);
  paint.imageSmoothingEnabled = false;
  paint.drawImage(small, MARGIN, MARGIN, side, side);
  paint.font = `11px ${style.fontFamily}`;
  paint.textBaseline = "middle";
  const every = Math.ceil(11 / cell);
  const [row, column] = place;
  const name = (i, chosen, turn) => {
    paint.save();
    paint.translate(...(turn ? [MARGIN + (i + 0.5) * cell, MARGIN - 4] : [MARGIN - 4, MARGIN + (i + 0.5) * cell]));
    if (turn) paint.rotate(-Math.PI / 2);
    paint.textAlign = turn ? "left" : "right";
    paint.fillStyle = style.getPropertyValue(chosen ? "--color-foreground-primary" : "--color-foreground-secondary");
    if (chosen) paint.font = `bold ${paint.font}`;
    paint.fillText(tokens[i], 0, 0, MARGIN - 6);
    paint.restore();
  };
  const shown = (i, chosen) => i === chosen || (i % every === 0 && Math.abs(i - chosen) >= every);
  for (let i = 0; i < N; i++) {
    if (shown(i, row)) name(i, i === row, false);
    if (shown(i, column)) name(i, i === column, true);
  }
  paint.strokeStyle = style.getPropertyValue("--color-foreground-primary");
  paint.strokeRect(MARGIN + column * cell, MARGIN + row * cell, cell, cell);
}

// A colour of the style sheet, "#rgb" or "#rrggbb", as [red, green, blue].
function rgb(text) {
  const digits = text.trim().slice(1), each = digits.length / 3;
  return [0, 1, 2].map((i) => parseInt(digits.slice(i * each, (i + 1) * each).padStart(2, digits[i * each]), 16));
}

for (const canvas of [part("exact"), part("close")]) {
  canvas.onpointermove = canvas.onpointerdown = (event) => {
    const cell = (canvas.clientWidth - MARGIN) / N, to = (offset) => Math.floor((offset - MARGIN) / cell);
    const [row, column] = [to(event.offsetY), to(event.offsetX)];
    if (row >= 0 && column >= 0 && row < N && column < N) [place] = [[row, column]];
    drawMatrices();
  };
  canvas.onkeydown = (event) => {
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!by) return;
    event.preventDefault();
    place = place.map((at, i) => Math.min(N - 1, Math.max(0, at + by[i])));
    drawMatrices();
  };
}

function redraw() {
  if (!curves) return;
  drawCurves();
  if (head?.p) drawMatrices();
}
addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
new MutationObserver(redraw).observe(document.body, { attributeFilter: ["data-theme"] });
part("status").textContent = `The first time this loads ${kernel.megabytes} MB from this site: Python, and the network.`;
