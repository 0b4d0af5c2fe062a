// On a page with formulas beside its code: what belongs to one equation lights up together, be it formula, lines of code
// or a box of the drawing, under the mouse, a finger or the focus. What is out of sight is shown at the window's edge.
"use strict";

addEventListener("DOMContentLoaded", () => {
  const parts = [...document.querySelectorAll("[data-equations]")];
  const numbers = (part) => part?.dataset.equations.split(" ") ?? [];
  const peek = Object.assign(document.createElement("aside"), { className: "peek", ariaHidden: true });
  document.body.append(peek);
  let current = null;

  function outOfSight(part) {
    const { top, bottom } = part.getBoundingClientRect();
    return bottom < 0 || top > innerHeight;
  }

  // Formula and code come together, in a row; a box in its drawing.
  function shown(lit) {
    const code = lit.filter((part) => part.matches(".beside"));
    const drawn = lit.find((part) => part.matches(".box"))?.closest(".drawing");
    const hidden = code.length && code.every(outOfSight) ? code : [];
    return drawn && outOfSight(drawn) ? [drawn, ...hidden] : hidden;
  }

  function light({ target, clientY }) {
    const part = target.closest?.("[data-equations]") ?? null;
    if (part === current) return;
    current = part;
    const wanted = new Set(numbers(part));
    const lit = parts.filter((each) => numbers(each).some((number) => wanted.has(number)));
    for (const each of parts) each.classList.toggle("lit", lit.includes(each));
    peek.replaceChildren(...shown(lit).map((each) => each.cloneNode(true)));
    for (const copy of peek.querySelectorAll("[id]")) copy.removeAttribute("id");
    peek.classList.toggle("above", (clientY ?? target.getBoundingClientRect().top) > innerHeight / 2);
  }

  for (const kind of ["pointerover", "focusin", "click"]) document.addEventListener(kind, light);

  // A formula beside code is made a little smaller, rather than cut off.
  window.MathJax?.startup?.promise?.then(() => {
    for (const formula of document.querySelectorAll(".beside .formula")) {
      const share = formula.clientWidth / formula.scrollWidth;
      if (share < 1) formula.style.fontSize = `${Math.max(share, 0.75)}em`;
    }
  });
});
