// The visitor's paper: 28 x 28 pixels, drawn on by mouse, finger or keys, with a soft pen as wide as MNIST's.
"use strict";

const SIDE = 28;
const PEN = 1.15; // radius, pixels

class Paper {
  // `changed` is called when there is other ink, `moved` when the keyboard's cursor is elsewhere.
  constructor(canvas, changed, moved) {
    Object.assign(this, { changed, moved });
    this.ink = new Uint8Array(SIDE * SIDE);
    this.cursor = null; // of the keyboard
    let last = null;
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return [((event.clientX - box.left) / box.width) * SIDE, ((event.clientY - box.top) / box.height) * SIDE];
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.cursor = null;
      last = at(event);
      this.stroke([last, last]);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!last) return;
      const next = at(event);
      this.stroke([last, next]);
      last = next;
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => (last = null));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener("blur", () => { this.cursor = null; this.moved(); });
  }

  #key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (!(event.key in moves) && event.key !== " ") return;
    event.preventDefault();
    this.cursor ??= [13.5, 6.5];
    if (event.key in moves) this.cursor = this.cursor.map((x, i) => Math.min(27.5, Math.max(0.5, x + moves[event.key][i])));
    if (event.key === " " || event.shiftKey) this.stroke([this.cursor, this.cursor]);
    else this.moved();
  }

  clear() {
    this.ink.fill(0);
    this.changed();
  }

  // A digit as somebody might write it.
  write(digit) {
    this.ink.fill(0);
    for (const line of STROKES[digit]) this.stroke(smooth(line), false);
    this.changed();
  }

  stroke(points, tell = true) {
    for (let p = 1; p < points.length; p++) {
      const [[ax, ay], [bx, by]] = [points[p - 1], points[p]];
      const steps = Math.max(1, Math.ceil(4 * Math.hypot(bx - ax, by - ay)));
      for (let i = 0; i <= steps; i++) this.#dot(ax + ((bx - ax) * i) / steps, ay + ((by - ay) * i) / steps);
    }
    if (tell) this.changed();
  }

  #dot(x, y) {
    for (let r = Math.max(0, Math.floor(y - 3)); r < Math.min(SIDE, y + 3); r++)
      for (let c = Math.max(0, Math.floor(x - 3)); c < Math.min(SIDE, x + 3); c++) {
        const distance = Math.hypot(c + 0.5 - x, r + 0.5 - y);
        const dark = Math.round(253 * Math.min(1, Math.max(0, PEN + 0.5 - distance)));
        if (dark > this.ink[r * SIDE + c]) this.ink[r * SIDE + c] = dark;
      }
  }
}

// Catmull and Rom's curve through the points.
function smooth(points) {
  const at = (i) => points[Math.min(points.length - 1, Math.max(0, i))], out = [];
  for (let i = 0; i + 1 < points.length; i++)
    for (let t = 0; t < 1; t += 0.125)
      out.push([0, 1].map((d) => {
        const [a, b, c, e] = [at(i - 1)[d], at(i)[d], at(i + 1)[d], at(i + 2)[d]];
        return 0.5 * (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - e) * t * t + (3 * b - a - 3 * c + e) * t * t * t);
      }));
  return [...out, points[points.length - 1]];
}

const STROKES = [
  [[[15, 5], [10.5, 8], [8.5, 14], [10, 20.5], [14, 23], [18, 20.5], [19.8, 14], [18.2, 7.5], [15, 5]]],
  [[[16, 4.5], [15, 10], [13.8, 16], [12.5, 23]]],
  [[[9, 9], [11.5, 5.6], [16, 5.2], [18.6, 8.5], [17, 13], [12.5, 18], [8.5, 22]], [[8.5, 22], [13, 21], [20, 22]]],
  [[[9, 6.5], [13, 5], [17.6, 6.5], [17.5, 10.5], [13, 13.2]], [[13, 13.2], [17.8, 14.8], [18.8, 18.8], [15, 22.6], [9, 22]]],
  [[[10, 5], [8.8, 10], [8.6, 14.2], [13, 14.6], [19, 13.6]], [[18.6, 5.4], [17.6, 13], [16.6, 23]]],
  [[[19, 5.4], [14, 5.4], [10.6, 6]], [[10.6, 6], [9.8, 12], [14, 11.4], [18, 14], [18.2, 18.6], [14, 22.4], [9, 21.6]]],
  [[[17, 4.6], [12, 9], [9.4, 16], [11, 21.6], [15.4, 22.6], [18.4, 19], [16.4, 15], [12, 15.4], [9.8, 18.4]]],
  [[[8.5, 6.6], [13, 5.8], [19.4, 6]], [[19.4, 6], [16.8, 12], [14.4, 17.4], [12.6, 23]]],
  [[[17.6, 7], [14, 4.8], [10.2, 7], [11, 11], [15, 13.6], [18.2, 17.8], [15.4, 22.6], [10.8, 21.8], [9.8, 17.8], [13, 13.8], [17.4, 10.4], [17.6, 7]]],
  [[[18, 8], [14.6, 5], [10.2, 7.4], [10, 11.6], [13.6, 13.4], [17.4, 11], [18, 8]], [[18, 8], [17.6, 15], [16.4, 23]]],
];
