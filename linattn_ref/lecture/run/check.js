// A page with formulas beside its code: the code can be changed, and its gradient be checked. Below kernel.js.
"use strict";

const kernel = new Kernel("pages");
const page = JSON.parse(document.getElementById("run-data").textContent);

// --- The code, in rows ------------------------------------------------------------------------------------------------

class Row {
  constructor(part) {
    Object.assign(this, { part, number: part.id.replace("line-", ""), editor: part.querySelector("pre") });
    for (const line of this.lines) {
      line.lastChild.data = line.lastChild.data.replace(/\n$/, ""); // each line is a block of its own already
      if (!line.textContent) line.append(element("br"));
    }
    this.html = this.editor.innerHTML;
    this.original = this.code;
    editable(this.editor, `Code from line ${this.number}`, () => update(), () => check());
  }

  get lines() {
    return [...this.editor.childNodes];
  }

  // Enter makes a line break within a line; one at the end of it only holds an empty line open.
  get code() {
    const lines = this.lines.map((line) => {
      const copy = line.cloneNode(true);
      for (const end of copy.querySelectorAll?.("br") ?? []) end.replaceWith("\n");
      return copy.textContent.replace(/\n$/, "").replaceAll("\u00a0", " ");
    });
    return lines.join("\n");
  }

  get changed() {
    return this.code !== this.original;
  }

  restore() {
    if (this.changed) this.editor.innerHTML = this.html;
  }
}

const rows = [...document.querySelectorAll(".literate > .beside")].map((part) => new Row(part));

// --- The bar, and what it shows ---------------------------------------------------------------------------------------

const verdict = element("div", { className: "run-verdict", tabIndex: -1 });
const status = element("span", { role: "status" });
const stop = button("Stop", () => kernel.stop());
const restore = button("Restore", () => {
  for (const row of rows) row.restore();
  clear();
  update();
});
const bar = element("div", { className: "run-bar" }, button("Check", () => check()), stop, restore, status);
document.querySelector(".literate").after(element("div", { className: "run-check" }, verdict, bar));
stop.hidden = true;
status.textContent =
  `Change the code, a sign in backward for example, and check its gradient. The first check loads Python, ` +
  `${kernel.megabytes} MB, from this site.`;
update();

function update() {
  restore.hidden = !rows.some((row) => row.changed) && !verdict.hasChildNodes();
}

function clear() {
  verdict.replaceChildren();
  verdict.className = "run-verdict";
  for (const part of document.querySelectorAll(".suspect")) part.classList.remove("suspect");
  status.textContent = "";
}

async function check() {
  clear();
  stop.hidden = false;
  let begun = performance.now();
  const receive = (kind, content) => {
    if (kind === "status") [status.textContent, begun] = [content, performance.now()];
    else if (kind === "checked") found(JSON.parse(content));
    else shown(verdict, kind, content);
  };
  status.textContent = "Checking …";
  const changed = rows.filter((row) => row.changed).map((row) => [row.number, row.code]);
  const ran = await kernel.ask({ page, rows: Object.fromEntries(changed) }, receive);
  const seconds = ((performance.now() - begun) / 1000).toFixed(1);
  status.textContent = ran === null ? "Stopped." : ran ? `Checked in ${seconds} s.` : "Error.";
  stop.hidden = true;
  update();
}

function found({ ok, said, report, rows: numbers }) {
  const parts = numbers.map((number) => document.getElementById(`line-${number}`)).filter(Boolean);
  const equations = new Set(parts.flatMap((part) => part.dataset.equations?.split(" ") ?? []));
  const marked = [...document.querySelectorAll(".equation")].filter((part) =>
    part.dataset.equations?.split(" ").some((number) => equations.has(number)),
  );
  for (const part of [...parts, ...marked]) part.classList.add("suspect");
  verdict.classList.add(ok ? "right" : "wrong");
  verdict.append(...said.map((textContent) => element("p", { textContent })));
  if (parts.length) verdict.append(element("p", {}, "Look here: ", ...parts.flatMap((part) => [link(part), " "])));
  verdict.append(element("details", {}, element("summary", { textContent: "The report" }), element("pre", { textContent: report })));
  parts[0]?.scrollIntoView({ block: "center", behavior: "smooth" });
}

function link(part) {
  const numbers = part.dataset.equations?.split(" ").map((number) => `(${number})`);
  const textContent = numbers?.join(" ") ?? part.querySelector("pre").textContent.trim().split("\n")[0].slice(0, 40);
  return element("a", { href: `#${part.id}`, textContent });
}
