// A chapter's cells, made to run: buttons, a kernel in a worker, and what it sends shown in place. ABOUT, of about.js,
// lists the files that the kernel needs; each is a script that calls given(name, base64 of its gzipped bytes).
"use strict";

const PLACE = new URL(".", document.currentScript.src);
const MB = 1e6;
const arrived = {};

function given(name, text) {
  arrived[name] = text;
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
  const bytes = Uint8Array.from(atob(arrived[name]), (letter) => letter.charCodeAt(0));
  delete arrived[name];
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

// --- The kernel -------------------------------------------------------------------------------------------------------

class Kernel {
  files = null; // kept, so that one that was stopped starts again without loading them
  worker = null;
  jobs = Promise.resolve(); // one after the other
  generation = 0; // jobs of a kernel that was stopped are not run by the next

  // Runs { code, title } or { slider, to } when its turn comes; whether it ran to its end, or null if it was stopped.
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
    await this.send({ given: rest, packages: ABOUT.packages, sources: ABOUT.sources }, receive);
    URL.revokeObjectURL(address);
  }

  async load(receive) {
    const files = {}, sizes = Object.values(ABOUT.files), all = sizes.reduce((a, b) => a + b, 0);
    let loaded = 0;
    for (const [name, size] of Object.entries(ABOUT.files)) {
      receive("status", `Loading Python, ${Math.round(loaded / MB)} of ${Math.round(all / MB)} MB …`);
      files[name] = await file(name);
      loaded += size;
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
    for (const cell of cells) cell.ran = false;
  }
}

const SCRIPTS = ["pyodide.asm.js", "pyodide.js"];
const kernel = new Kernel();

// --- What a cell shows ------------------------------------------------------------------------------------------------

// Appends to `place` what the kernel sends.
function shown(place, kind, content) {
  if (kind === "text" || kind === "error") {
    const look = kind === "error" ? "run-error" : "run-text";
    if (!place.lastChild?.classList.contains(look))
      place.append(element("div", { className: `highlight ${look}` }, element("pre", { tabIndex: 0 })));
    place.lastChild.firstChild.append(content);
  } else if (kind === "html") {
    const part = element("div", { className: "run-html", innerHTML: content });
    for (const table of part.querySelectorAll("table")) table.tabIndex = 0;
    place.append(part);
    if (part.querySelector(".math")) window.MathJax?.typesetPromise?.([part]);
  } else if (kind === "slider") {
    place.append(slider(JSON.parse(content)));
  }
}

function slider({ number, name, labels }) {
  const said = element("output");
  const control = element("input", { type: "range", min: 0, max: labels.length - 1, value: Math.floor(labels.length / 2) });
  const drawn = element("div");
  const move = () => {
    said.textContent = labels[control.value];
    const parts = element("div");
    kernel.ask({ slider: number, to: Number(control.value) }, (kind, content) => shown(parts, kind, content)).then(() => {
      if (parts.hasChildNodes()) drawn.replaceChildren(...parts.childNodes);
    });
  };
  control.onchange = move;
  move();
  return element("div", { className: "run-slider" }, element("label", {}, `${name} `, control, " ", said), drawn);
}

// --- Cells ------------------------------------------------------------------------------------------------------------

class Cell {
  constructor(part, number, native) {
    Object.assign(this, { part, number, native, ran: false });
    this.input = part.querySelector(".cell_input");
    this.before = part.querySelector(".cell_output"); // of the executed notebook
    this.bar = element("div", { className: "run-bar" });
    this.input.after(this.bar);
    if (native) {
      this.bar.append(`Not run here: ${native} What is shown is from the executed notebook.`);
      return;
    }
    this.editor = part.querySelector(".cell_input pre");
    this.html = this.editor.innerHTML;
    this.original = this.code;
    this.editor.contentEditable = "plaintext-only";
    if (this.editor.contentEditable !== "plaintext-only") this.editor.contentEditable = "true";
    const about = { spellcheck: false, role: "textbox", ariaMultiLine: "true", ariaLabel: `Code of cell ${number}` };
    Object.assign(this.editor, about);
    this.editor.oninput = () => this.changed();
    this.editor.onkeydown = (event) => {
      if (event.key !== "Enter" || !(event.shiftKey || event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      this.run();
    };
    const button = (text, onclick) => element("button", { type: "button", textContent: text, onclick });
    this.status = element("span", { role: "status" });
    this.stop = button("Stop", () => kernel.stop());
    this.restore = button("Restore", () => this.restored());
    this.stop.hidden = this.restore.hidden = true;
    this.bar.append(button("Run", () => this.run()), button("Run all above", () => runTo(this)), this.stop, this.restore);
    this.bar.append(this.status);
    this.bar.firstChild.ariaLabel = `Run cell ${number}`;
  }

  get code() {
    return this.editor.innerText.replaceAll("\u00a0", " ");
  }

  changed() {
    this.ran = false;
    this.restore.hidden = !this.after && this.code === this.original;
  }

  // Whether it ran to its end.
  async run() {
    const after = element("div", { className: "cell_output run-output" });
    this.status.textContent = "Waiting …";
    this.stop.hidden = false;
    let begun = performance.now();
    const receive = (kind, content) => {
      if (kind === "status") [this.status.textContent, begun] = [content, performance.now()];
      else shown(this.put(after), kind, content);
    };
    const started = kernel.jobs.then(() => {
      begun = performance.now();
      this.status.textContent = "Running …";
    });
    const ran = await kernel.ask({ code: this.code, title: `cell ${this.number}` }, receive);
    await started;
    this.put(after);
    this.stop.hidden = true;
    this.ran = ran === true;
    const seconds = ((performance.now() - begun) / 1000).toFixed(1);
    this.status.textContent = ran === null ? "Stopped. All names are gone." : ran ? `Ran in ${seconds} s.` : "Error.";
    if (ran === false && after.lastChild?.textContent.includes("NameError") && above(this).some((cell) => !cell.ran))
      this.status.textContent = "Error. Press “Run all above”: some cells above have not run.";
    return this.ran;
  }

  // Shows new output in the place of what was there.
  put(after) {
    if (this.after !== after) {
      (this.after ?? this.before)?.remove();
      this.part.append(after);
      this.after = after;
      this.restore.hidden = false;
    }
    return after;
  }

  restored() {
    this.editor.innerHTML = this.html;
    this.after?.remove();
    if (this.before) this.part.append(this.before);
    this.after = null;
    this.changed();
    this.status.textContent = "";
  }
}

function above(cell) {
  return cells.slice(0, cells.indexOf(cell)).filter(({ native }) => !native);
}

// Runs what is above and has not run since it was changed, then the cell itself; stops at an error.
async function runTo(cell) {
  for (const each of [...above(cell).filter(({ ran }) => !ran), cell]) if (!(await each.run())) return false;
  return true;
}

const reasons = JSON.parse(document.getElementById("native").textContent);
const cells = [...document.querySelectorAll(".cell")]
  .filter((part) => part.querySelector(".cell_input"))
  .map((part, i) => new Cell(part, i + 1, reasons[i]));
const size = Object.values(ABOUT.files).reduce((a, b) => a + b, 0) / MB;
document.querySelector("h1").after(
  element(
    "p",
    { className: "run-note" },
    "The code on this page runs in your browser, and you can change it. The first Run loads Python, ",
    `${Math.round(size)} MB, from this site. Here `,
    element("code", { textContent: "kernels=jit" }),
    " computes with NumPy, since there is no compiler: the numbers are the same, the times are not.",
  ),
);
