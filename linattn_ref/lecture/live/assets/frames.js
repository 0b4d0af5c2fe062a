// Sliders over drawings that have been made already. A slider is the browser's own: arrow keys, Home and End work.
"use strict";

const { sliders } = JSON.parse(document.getElementById("chapter").textContent);
const alone = new URLSearchParams(location.search).get("slider"); // within a chapter, which has asked its question

function make(kind, properties = {}, ...children) {
  const element = Object.assign(document.createElement(kind), properties);
  element.append(...children);
  return element;
}

sliders.forEach(({ name, alt, frames, guess, answer }, number) => {
  if (alone !== null && Number(alone) !== number) return;
  const images = frames.map(({ image, size }) =>
    make("img", { src: `data:image/webp;base64,${image}`, width: size[0], height: size[1] }));
  const paper = make("div", { className: "paper" });
  const said = make("output", { className: "said", htmlFor: `slider-${number}` });
  said.setAttribute("aria-live", "polite");
  const slider = make("input", { type: "range", id: `slider-${number}`, min: 0, max: frames.length - 1, value: frames.length >> 1 });
  const step = (by, label, sign) => {
    const button = make("button", { type: "button", textContent: sign, ariaLabel: `${name}: ${label}` });
    button.addEventListener("click", () => { slider.value = Number(slider.value) + by; show(); });
    return button;
  };
  const show = () => {
    const at = Number(slider.value);
    images[at].alt = frames[at].said;
    paper.replaceChildren(images[at]);
    said.textContent = frames[at].said;
    slider.setAttribute("aria-valuetext", frames[at].said);
  };
  slider.addEventListener("input", show);
  const label = make("label", { htmlFor: slider.id, className: "unseen", textContent: name });
  const control = make("div", { className: "control" }, step(-1, "smaller", "◀"), slider, step(1, "larger", "▶"));
  const about = make("p", { className: "small", textContent: `${alt}.` });
  const asked = make("div", { className: "guess" },
    make("p", {}, make("b", { textContent: "Guess first. " }), guess),
    make("details", {}, make("summary", { textContent: "Answer" }), make("p", { textContent: answer })));
  const section = make("section", { className: "card slider" }, make("h2", { textContent: name }), ...(alone === null ? [asked] : []),
    paper, control, label, said, about);
  section.setAttribute("aria-label", name);
  document.getElementById("sliders").append(section);
  show();
});

if (alone !== null) {
  document.body.classList.add("alone");
  new ResizeObserver(() => parent.postMessage({ height: document.body.offsetHeight }, "*")).observe(document.body);
}
