// Begins when the formulas are set. On a phone held upright a slide is tall: half as wide, and its picture below.
window.start = () => {
  const tall = window.innerHeight > window.innerWidth && !/print-pdf/.test(window.location.search);
  document.body.classList.toggle("tall", tall);
  Reveal.initialize({
    width: tall ? 640 : 1280,
    height: tall ? 1280 : 720,
    margin: 0,
    center: false,
    hash: true,
    controls: false,
    slideNumber: "c/t",
    transition: "none",
    backgroundTransition: "none",
    pdfMaxPagesPerSlide: 1,
    defaultTiming: 60, // seconds; with it the speaker sees how far ahead of the slides' own minutes the talk is
    plugins: [RevealNotes],
  });
};
