// What each network remembers, drawn to one scale: a number of the state or of the cache is a dot, its colour the value.
"use strict";

class MemoryPicture {
  constructor(canvas, network) {
    Object.assign(this, { canvas, network });
    canvas.width = network.places; // the whole cache: a column per token, in it keys and values of all layers
    canvas.height = 2 * network.width * network.layers;
    this.pen = canvas.getContext("2d");
    this.drawn = 0; // tokens of the cache
  }

  restart() {
    this.pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.drawn = 0;
  }

  draw(colours) {
    if (this.network.attention === "linear") this.#state(colours);
    else this.#cache(colours);
  }

  // S and Z of each head, a layer beside the other: at the cache's scale, and enlarged.
  #state([behind, up, down]) {
    const { heads, layers, width, states } = this.network, depth = width / heads;
    const image = new ImageData(layers * (depth + 1), heads * depth);
    states.forEach((state, l) => {
      for (let h = 0; h < heads; h++) {
        const s = state.s.subarray(h * depth * depth, (h + 1) * depth * depth), z = state.z.subarray(h * depth, (h + 1) * depth);
        const sMax = largest(s), zMax = largest(z);
        for (let c = 0; c < depth; c++)
          for (let m = 0; m <= depth; m++) {
            const value = m < depth ? s[c * depth + m] / sMax : z[c] / zMax; // the last column is Z
            paint(image.data, 4 * ((h * depth + c) * image.width + l * (depth + 1) + m), value, behind, up, down);
          }
      }
    });
    const stamp = new OffscreenCanvas(image.width, image.height);
    stamp.getContext("2d").putImageData(image, 0, 0);
    const { pen, canvas } = this, margin = 12;
    const zoom = Math.max(1, Math.floor(Math.min((canvas.height - 2 * margin) / image.height, (canvas.width - 4 * margin - image.width) / image.width)));
    const left = canvas.width - margin - zoom * image.width, top = canvas.height - margin - zoom * image.height;
    pen.clearRect(0, 0, canvas.width, canvas.height);
    pen.imageSmoothingEnabled = false;
    pen.strokeStyle = `rgb(${up})`;
    pen.lineWidth = 3;
    pen.globalAlpha = 0.45;
    pen.beginPath();
    pen.moveTo(margin + image.width, margin);
    pen.lineTo(left, top);
    pen.moveTo(margin + image.width, margin + image.height);
    pen.lineTo(left, top + zoom * image.height);
    pen.stroke();
    pen.globalAlpha = 1;
    pen.drawImage(stamp, margin, margin);
    pen.strokeRect(margin, margin, image.width, image.height);
    pen.drawImage(stamp, left, top, zoom * image.width, zoom * image.height);
  }

  // A column for each new token.
  #cache([behind, up, down]) {
    const { width, layers, states } = this.network, count = states[0].count;
    if (this.drawn === count) return;
    const columns = count - this.drawn, image = new ImageData(columns, 2 * width * layers);
    for (let j = 0; j < columns; j++)
      for (let l = 0; l < layers; l++)
        for (let i = 0; i < width; i++) {
          const at = (this.drawn + j) * width + i;
          [states[l].keys[at], states[l].values[at]].forEach((value, part) =>
            paint(image.data, 4 * (((2 * l + part) * width + i) * columns + j), value / (2 + Math.abs(value)), behind, up, down));
        }
    this.pen.putImageData(image, this.drawn, 0);
    this.drawn = count;
  }
}
