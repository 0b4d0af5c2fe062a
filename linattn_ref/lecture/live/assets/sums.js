// The page of the brackets: one head, stepped through a text. The arithmetic is in attention.js.
"use strict";

const $ = (selector) => document.querySelector(selector);
const head = JSON.parse($("#head").textContent);
const steps = attend(head), total = steps.length;
const depth = head.k[0].length, width = head.v[0].length;
const kept = { softmax: (n) => n * (depth + width), linear: () => depth * (width + 1) };
const worked = { softmax: (n) => n * (depth + width), linear: () => 2 * depth * (width + 1) }; // into the sums, and out
const most = (rows) => Math.max(...rows.map(largest));
const scales = { k: most(head.k), v: most(head.v), phi: most(steps.map(({ phiK }) => phiK)) };
const heldPlot = new Plot($("#held-plot"), { xMax: total, xName: "token", unit: "" });
const workPlot = new Plot($("#work-plot"), { xMax: total, xName: "token", unit: "" });
let timer = null;

const said = (n) => n.toLocaleString("en");

for (const token of head.tokens) $("#tokens").append(Object.assign(document.createElement("li"), { textContent: token }));

function show() {
  const n = Number($("#place").value), step = steps[n - 1], hidden = $("#never").checked;
  const well = colour("--well"), soft = colour("--soft"), ink = colour("--ink");
  const own = { softmax: colour("--softmax"), linear: colour("--linear") };
  const orange = [well, own.softmax, soft], blue = [well, own.linear, soft];

  const row = (i) => (hidden ? steps[i].never : steps[i].weights);
  heat($("#triangle"), total, total, (i, j) => (i < n && j <= i ? row(i)[j] : 0), hidden ? blue : orange, 1);
  const pen = $("#triangle").getContext("2d");
  pen.fillStyle = `rgba(${ink}, 0.14)`;
  pen.fillRect(n, n - 1, total - n, 1); // points at the row that has just come
  heat($("#keys"), total, depth, (j, d) => (j < n ? head.k[j][d] : 0), orange, scales.k);
  heat($("#values"), total, width, (j, m) => (j < n ? head.v[j][m] : 0), orange, scales.v);
  heat($("#phi-k"), depth, 1, (c) => step.phiK[c], blue, scales.phi);
  heat($("#outer"), depth, width, (c, m) => step.phiK[c] * head.v[n - 1][m], blue, scales.phi * scales.v);
  heat($("#sum-s"), depth, width, (c, m) => step.s[c][m], blue, most(step.s));
  heat($("#sum-z"), depth, 1, (c) => step.z[c], blue, largest(step.z));
  const outScale = Math.max(largest(step.softmax), largest(step.linear));
  heat($("#softmax-out"), 1, width, (_, m) => step.softmax[m], orange, outScale);
  heat($("#linear-out"), 1, width, (_, m) => step.linear[m], blue, outScale);

  [...$("#tokens").children].forEach((item, j) => {
    item.className = j === n - 1 ? "now" : j >= n ? "later" : "";
    const share = j < n ? row(n - 1)[j] : 0;
    item.style.background = share > 0.01 ? `rgba(${own[hidden ? "linear" : "softmax"]}, ${(0.55 * Math.sqrt(share)).toFixed(3)})` : "";
  });
  for (const name of ["softmax", "linear"]) {
    $(`#${name}-held`).textContent = said(kept[name](n));
    $(`#${name}-work`).textContent = said(worked[name](n));
  }
  const best = row(n - 1).indexOf(Math.max(...row(n - 1)));
  $("#row-said").textContent = `${n} weight${n > 1 ? "s" : ""}`;
  $("#said").textContent = `Token ${n} of ${total}, “${head.tokens[n - 1]}”: most weight, ${row(n - 1)[best].toFixed(2)}, on “${head.tokens[best]}”`;
  $("#place").setAttribute("aria-valuetext", `token ${n}, ${head.tokens[n - 1]}`);
  const lines = (count) => Object.fromEntries(Object.keys(count).map((name) => [name, Array.from({ length: n }, (_, i) => [i + 1, count[name](i + 1)])]));
  heldPlot.draw(lines(kept));
  workPlot.draw(lines(worked));
  const apart = Math.hypot(...step.softmax.map((x, m) => x - step.linear[m])) / Math.hypot(...step.softmax);
  $("#differ").textContent = `At this token the two outputs differ by ${Math.round(100 * apart)} % of softmax's.`;
}

function go(to) {
  $("#place").value = Math.min(total, Math.max(1, to));
  show();
}

function play(on) {
  clearInterval(timer);
  if (on && Number($("#place").value) === total) go(1);
  timer = on ? setInterval(() => { go(Number($("#place").value) + 1); if (Number($("#place").value) === total) play(false); }, 700) : null;
  $("#play").textContent = on ? "Pause" : "Play";
  $("#said").setAttribute("aria-live", on ? "off" : "polite"); // nobody can listen that fast
}

$("#place").max = total;
$("#place").addEventListener("input", () => { play(false); show(); });
$("#never").addEventListener("change", show);
$("#play").addEventListener("click", () => play(timer === null));
$("#back").addEventListener("click", () => { play(false); go(Number($("#place").value) - 1); });
$("#next").addEventListener("click", () => { play(false); go(Number($("#place").value) + 1); });
document.addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by || event.target.id === "place" || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  play(false);
  go(Number($("#place").value) + by);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);

const crosses = (count) => Array.from({ length: 10 * total }, (_, i) => i + 1).find((n) => count.softmax(n) > count.linear(n));
$("#crossing").textContent = `With heads of ${depth} columns the cache is the larger from token ${crosses(kept)} on, and takes more work from token ${crosses(worked)} on.`;
$("#origin").textContent = head.origin;
show();
