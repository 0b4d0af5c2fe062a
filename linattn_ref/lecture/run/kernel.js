// The kernel of a page, in a worker, and what it sends to be shown. ABOUT, of about.js, lists the files that it needs; each
// is a script that calls given(name, count, the count bytes of it, gzipped, as letters of 15 bits from U+3400 on).
"use strict";

const PLACE = new URL(".", document.currentScript.src);
const MB = 1e6;
const arrived = {};

function given(name, count, letters) {
  const bytes = new Uint8Array(count);
  let held = 0, bits = 0, at = 0;
  for (let i = 0; at < count; i++) {
    held = (held << 15) | (letters.charCodeAt(i) - 0x3400);
    for (bits += 15; bits >= 8 && at < count; at++) bytes[at] = held >> (bits -= 8);
    held &= (1 << bits) - 1;
  }
  arrived[name] = bytes;
}

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// --- Files ------------------------------------------------------------------------------------------------------------

async function file(name) {
  const script = element("script", { src: new URL(`${name}.js`, PLACE) });
  await new Promise((loaded, failed) => {
    script.onload = loaded;
    script.onerror = () => failed(new Error(`${script.src} cannot be loaded`));
    document.head.append(script);
  });
  script.remove();
  const bytes = arrived[name];
  delete arrived[name];
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

// --- The kernel -------------------------------------------------------------------------------------------------------

class Kernel {
  files = null; // kept, so that one that was stopped starts again without loading them
  worker = null;
  jobs = Promise.resolve(); // one after the other
  generation = 0; // jobs of a kernel that was stopped are not run by the next

  // What it runs is the code of "cells", of "pages", or of one's own "sentence".
  constructor(of, stopped = () => {}) {
    Object.assign(this, { of, needs: ABOUT.needs[of], afterStop: stopped });
  }

  get megabytes() {
    return Math.round(this.needs.files.reduce((sum, name) => sum + ABOUT.files[name], 0) / MB);
  }

  // Runs { code, title }, { slider, to }, { page, rows } or { method, parameters } when its turn comes; whether it ran to its end, or null if it
  // was stopped.
  ask(message, receive) {
    const generation = this.generation;
    const job = this.jobs.then(async () => {
      if (generation !== this.generation) return null;
      try {
        if (!this.worker) await this.start(receive);
        return generation === this.generation ? await this.send(message, receive) : null;
      } catch (error) {
        this.stop();
        receive("error", `${error.message}\n`);
        return false;
      }
    });
    this.jobs = job;
    return job;
  }

  async start(receive) {
    const generation = this.generation;
    this.files ??= await this.load(receive);
    if (generation !== this.generation) return;
    const { [SCRIPTS[0]]: engine, [SCRIPTS[1]]: loader, ...rest } = this.files;
    const address = URL.createObjectURL(new Blob([engine, "\n", loader, "\n", ABOUT.worker]));
    this.worker = new Worker(address);
    await this.send({ given: rest, of: this.of, ...this.needs }, receive);
    URL.revokeObjectURL(address);
  }

  async load(receive) {
    const files = {};
    let loaded = 0;
    for (const name of this.needs.files) {
      receive("status", `Loading, ${Math.round(loaded / MB)} of ${this.megabytes} MB …`);
      files[name] = await file(name);
      loaded += ABOUT.files[name];
    }
    return files;
  }

  send(message, receive) {
    return new Promise((done, failed) => {
      this.stopped = () => done(null);
      this.worker.onerror = (event) => failed(new Error(event.message));
      this.worker.onmessage = ({ data }) => (data.kind === "done" ? done(data.content) : receive(data.kind, data.content));
      this.worker.postMessage(message);
    });
  }

  stop() {
    this.generation += 1;
    this.worker?.terminate();
    this.worker = null;
    this.stopped?.();
    this.afterStop();
  }
}

const SCRIPTS = ["pyodide.asm.js", "pyodide.js"];

// --- What is shown ----------------------------------------------------------------------------------------------------

// Appends to `place` what the kernel sends.
function shown(place, kind, content) {
  if (kind === "text" || kind === "error") {
    const look = kind === "error" ? "run-error" : "run-text";
    if (!place.lastChild?.classList.contains(look))
      place.append(element("div", { className: `highlight ${look}` }, element("pre", { tabIndex: 0 })));
    place.lastChild.firstChild.append(content);
  } else if (kind === "html") {
    const part = element("div", { className: "run-html", innerHTML: content });
    for (const wide of part.querySelectorAll("table, pre")) wide.tabIndex = 0;
    place.append(part);
    if (part.querySelector(".math")) window.MathJax?.typesetPromise?.([part]);
  }
}

// --- What is edited ---------------------------------------------------------------------------------------------------

function editable(part, label, changed, run) {
  part.contentEditable = "plaintext-only";
  if (part.contentEditable !== "plaintext-only") part.contentEditable = "true";
  Object.assign(part, { spellcheck: false, role: "textbox", ariaMultiLine: "true", ariaLabel: label, oninput: changed });
  part.onkeydown = (event) => {
    event.stopPropagation(); // Sphinx would take a stroke as the wish to search
    if (event.key !== "Enter" || !(event.shiftKey || event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    run();
  };
}

function button(text, onclick) {
  return element("button", { type: "button", textContent: text, onclick });
}
