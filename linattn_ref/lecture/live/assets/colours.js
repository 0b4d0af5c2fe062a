// Numbers as colours.
"use strict";

function largest(values) {
  let found = 1e-30;
  for (const value of values) found = Math.max(found, Math.abs(value));
  return found;
}

// From `behind` to `up` as a value goes to 1, to `down` as it goes to -1.
function paint(data, at, value, behind, up, down) {
  const towards = value > 0 ? up : down, share = Math.sqrt(Math.min(1, Math.abs(value)));
  for (let i = 0; i < 3; i++) data[at + i] = behind[i] + share * (towards[i] - behind[i]);
  data[at + 3] = 255;
}

// A colour of the style sheet as [red, green, blue].
function colour(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
}

// A matrix `at(row, column)`, drawn a pixel per number.
function heat(canvas, rows, columns, at, [behind, up, down], scale) {
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows);
  for (let r = 0; r < rows; r++)
    for (let c = 0; c < columns; c++) paint(image.data, 4 * (r * columns + c), at(r, c) / scale, behind, up, down);
  canvas.getContext("2d").putImageData(image, 0, 0);
}
