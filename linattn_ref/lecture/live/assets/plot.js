// A small line plot that is drawn again as numbers come. Series are called "linear" and "softmax", and coloured so.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

class Plot {
  constructor(svg, { xMax, xName, unit, floor = 0 }) {
    Object.assign(this, { svg, xMax, xName, unit, floor });
    Object.assign(this, { left: 64, top: 14, height: 140 });
    this.bottom = this.height - 24;
    svg.classList.add("plot");
  }

  // `lines`: name -> [[x, y], ...]
  draw(lines) {
    const width = Math.max(260, this.svg.parentElement.clientWidth);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    this.right = width - 62; // room for the names at the lines' ends
    const points = Object.values(lines).flat();
    const yMax = roundUp(Math.max(this.floor, ...points.map(([, y]) => y)));
    const x = (value) => this.left + ((this.right - this.left) * value) / this.xMax;
    const y = (value) => this.bottom - ((this.bottom - this.top) * value) / yMax;
    this.svg.replaceChildren();
    for (const share of [0, 0.5, 1]) {
      this.#add("path", { class: "axis", d: `M${this.left},${y(share * yMax)}H${this.right}` });
      const unit = share === 1 ? ` ${this.unit}` : "";
      this.#add("text", { x: this.left - 6, y: y(share * yMax) + 4, "text-anchor": "end" }, short(share * yMax) + unit);
    }
    this.#add("text", { x: this.left, y: this.height - 7 }, "0");
    this.#add("text", { x: this.right, y: this.height - 7, "text-anchor": "end" }, `${this.xName} ${this.xMax}`);
    const ends = [];
    for (const [name, all] of Object.entries(lines)) {
      if (!all.length) continue;
      this.#add("polyline", { class: name, points: all.map(([a, b]) => `${x(a)},${y(b)}`).join(" ") });
      const [a, b] = all[all.length - 1];
      ends.push({ name, x: x(a) + 6, y: y(b) + 4 });
    }
    ends.sort((one, other) => other.y - one.y);
    ends.forEach((end, i) => {
      if (i && ends[i - 1].y - end.y < 14) end.y = ends[i - 1].y - 14; // names do not lie on each other
      this.#add("text", { class: end.name, x: end.x, y: end.y }, end.name);
    });
  }

  #add(kind, attributes, text) {
    const element = document.createElementNS(SVG, kind);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    this.svg.append(element);
  }
}

// The next number that reads well.
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value || 1));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((digit) => digit * power).find((rounded) => rounded >= value);
}

function short(value) {
  return value === 0 ? "0" : value < 1 ? `${+value.toPrecision(2)}` : Math.round(value * 10) / 10 + "";
}

function bytes(count) {
  return count < 1e6 ? `${(count / 1e3).toFixed(1)} kB` : `${(count / 1e6).toFixed(2)} MB`;
}
