addEventListener("load", async () => {
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "All pages");
  if (!document.querySelector("h1"))
    document.querySelector("article")?.insertAdjacentHTML("afterbegin", "<h1>Search</h1>");
  await window.MathJax?.startup?.promise;
  for (const part of document.querySelectorAll("pre, div.math, .formula, .table-wrapper"))
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
  for (const image of document.querySelectorAll("article img[alt]:not(.sd-card-img-top, .hero, .drawing img, a img)")) {
    const large = Object.assign(document.createElement("a"), { href: image.src, className: "large" });
    image.replaceWith(large);
    large.append(image);
  }
});
addEventListener("message", ({ source, data }) => {
  for (const frame of document.querySelectorAll(".slider-frame"))
    if (frame.contentWindow === source) frame.style.height = `${data.height}px`;
});
