// Below each page that is found, a line of it with a word that was searched for. LINES, of lines.js, has paragraphs by the
// page's address.
"use strict";

{
  const words = (new URLSearchParams(location.search).get("q") ?? "").toLowerCase().split(/[^\p{L}\p{N}]+/u).filter((word) => word.length > 2);
  const [BEFORE, AFTER] = [60, 120]; // letters around the first of the words

  function lineOf(address) {
    const paragraphs = LINES[address.replace(/^\.\//, "").replace(/[?#].*$/, "")] ?? [];
    const count = (text) => words.filter((word) => text.toLowerCase().includes(word)).length;
    const best = paragraphs.reduce((most, text) => (count(text) > count(most) ? text : most), "");
    const places = words.map((word) => best.toLowerCase().indexOf(word)).filter((place) => place >= 0);
    if (!places.length) return "";
    const at = Math.min(...places), from = at > BEFORE ? best.indexOf(" ", at - BEFORE) : 0;
    const to = at + AFTER < best.length ? best.lastIndexOf(" ", at + AFTER) : best.length;
    return `${from ? "…" : ""}${best.slice(from, to)}${to < best.length ? " …" : ""}`;
  }

  function show(item) {
    const line = lineOf(item.querySelector("a")?.getAttribute("href") ?? "");
    if (!line) return;
    const shown = Object.assign(document.createElement("p"), { className: "found-line" });
    const found = new RegExp(`(${words.map((word) => word.replace(/[^\p{L}\p{N}]/gu, "")).join("|")})`, "giu");
    for (const part of line.split(found)) {
      const matches = words.includes(part.toLowerCase());
      shown.append(matches ? Object.assign(document.createElement("mark"), { textContent: part }) : part);
    }
    item.append(shown);
  }

  const script = Object.assign(document.createElement("script"), { src: new URL("lines.js", document.currentScript.src) });
  script.onload = () => {
    const results = document.getElementById("search-results");
    const all = () => results.querySelectorAll("li:not([data-line])").forEach((item) => {
      item.dataset.line = "";
      show(item);
    });
    new MutationObserver(all).observe(results, { childList: true, subtree: true });
    all();
  };
  if (words.length) document.head.append(script);
}
