// A chapter's cells, made to run: buttons, and what the kernel sends shown in place. Below kernel.js.
"use strict";

const { kind, reasons } = JSON.parse(document.getElementById("run-data").textContent);
const kernel = new Kernel(kind, () => {
  for (const cell of cells) cell.ran = false;
});

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
      this.bar.append(`Not run here: ${native}${this.before ? " What is shown is from the executed notebook." : ""}`);
      return;
    }
    this.editor = part.querySelector(".cell_input pre");
    this.html = this.editor.innerHTML;
    this.original = this.code;
    editable(this.editor, `Code of cell ${number}`, () => this.changed(), () => this.run());
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
      else if (kind === "slider") {
        this.put(after).append(slider(JSON.parse(content)));
        this.drawn(false);
      } else shown(this.put(after), kind, content);
    };
    const started = kernel.jobs.then(() => {
      begun = performance.now();
      this.status.textContent = "Running …";
    });
    const clock = setInterval(() => {
      const seconds = Math.round((performance.now() - begun) / 1000);
      if (this.status.textContent.startsWith("Running")) this.status.textContent = `Running, ${seconds} s …`;
    }, 10_000); // it is read aloud
    const ran = await kernel.ask({ code: this.code, title: `cell ${this.number}` }, receive);
    await started;
    clearInterval(clock);
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

  // The slider over drawings that were made beforehand.
  drawn(seen) {
    const frame = this.part.nextElementSibling;
    if (frame?.matches(".slider-frame")) frame.hidden = !seen;
  }

  restored() {
    this.editor.innerHTML = this.html;
    this.after?.remove();
    if (this.before) this.part.append(this.before);
    this.after = null;
    this.drawn(true);
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

const cells = [...document.querySelectorAll(".cell")]
  .filter((part) => part.querySelector(".cell_input"))
  .map((part, i) => new Cell(part, i + 1, reasons[i]));
document.querySelector("h1").after(
  element(
    "p",
    { className: "run-note" },
    "The code on this page runs in your browser, and you can change it. The first Run loads Python, ",
    `${kernel.megabytes} MB, from this site. Here `,
    element("code", { textContent: "kernels=jit" }),
    " computes with NumPy, since there is no compiler: the numbers are the same, the times are not.",
  ),
);
