"""The built site for tests in real browsers: built once for all workers, and looked at without a network."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

try:
    import fcntl
except ImportError:  # on Windows, where one worker builds it
    fcntl = None  # type: ignore[assignment]

from linattn_ref.data import npm
from linattn_ref.lecture.run import build as run

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
FLAGS = [
    *("--no-sandbox", "--no-first-run", "--no-default-browser-check", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps"),
]
CHEAP = ("19_write_fade_erase", "24_downstream", "25_kernels_that_lied")  # chapters
CHECKED = "attention.linear"

# Text that a reader sees and that is no code: TeX in it was not typeset. And what does not fit on a phone.
LOOK = r"""async () => {
  if (window.MathJax && MathJax.startup) await MathJax.startup.promise;
  const wrong = [];
  const seen = document.querySelector("article") || document.body;
  const copy = seen.cloneNode(true);
  const known = "pre, code, mjx-container, script, style, .sd-hide-link-text";
  for (const part of copy.querySelectorAll(known)) part.remove();
  const raw = copy.textContent.match(/\\[()\[\]]|\$[^$\s][^$\n]*\$|\\(?:frac|sum|mathrm|text|phi)\b|``/);
  if (raw) wrong.push(`not typeset: ${raw[0]}`);
  for (const error of document.querySelectorAll("mjx-merror, [data-mjx-error]")) wrong.push(error.outerHTML);
  if (document.querySelector(".math") && !document.querySelector("mjx-container")) wrong.push("no formula is typeset");
  const unread = document.querySelector(".problematic, .system-message");
  if (unread) wrong.push(`Sphinx could not read: ${unread.textContent}`);
  for (const image of document.images) if (image.complete && !image.naturalWidth) wrong.push(`no picture ${image.src}`);
  if ([...document.querySelectorAll(".beside pre")].some((code) => code.scrollWidth > code.clientWidth + 1))
    wrong.push("code beside a formula is cut off");
  if ([...document.querySelectorAll(".number")].some((number) => number.getBoundingClientRect().right > innerWidth))
    wrong.push("an equation's number is off the screen");
  const wide = document.documentElement.scrollWidth - window.innerWidth;
  if (wide > 1) wrong.push(`${wide} pixels wider than the window`);
  return wrong;
}"""

AXE = npm.pinned(
    name="axe-core",
    version="4.10.3",
    integrity="sha512-Xm7bpRXnDSX2YE2YFfBk2FnF0ep6tmG7xPh8iHee8MIcrgq762Nkce856dYtJYLkuIoYZvGfTs/PbZhideTcEg==",
    megabytes=1,
)
# A formula is drawn, and said in MathML; in a table's head axe sees neither.
JUDGE = """async (rules) => {
  if (window.MathJax && MathJax.startup) await MathJax.startup.promise;
  const but = { "empty-table-header": { enabled: false } };
  const options = { runOnly: rules ?? undefined, resultTypes: ["violations"], rules: but };
  const found = await axe.run(document, options);
  return found.violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html.slice(0, 90)}`));
}"""


def axe():
    """The script whose function ``axe.run`` `JUDGE` calls."""
    return npm.read(AXE, "axe.min.js").decode()


def built(tmp_path_factory, *options):
    """The folder of the site, built by whichever worker is the first to want it."""
    for name in ("sphinx", "myst_nb", "furo", "numpydoc"):
        pytest.importorskip(name, reason="needs the site's extra: pip install -e '.[browser]'")
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # which all workers share
    out = base / "".join(["site", *options])
    with (base / f"{out.name}.lock").open("w") as lock:
        if fcntl:
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not out.exists():
            command = [sys.executable, "-m", "linattn_ref", "site", *options, "--out", out]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
    return out


def with_few_that_run(site, out):
    """A copy of the site where three chapters run, and one page is checked, without the network, which these do not
    read."""
    shutil.copytree(site, out, copy_function=os.link)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "CHAPTERS", [chapter[:2] for chapter in CHEAP])
        run.make(ROOT, out / run.FOLDER)
    feet = {out / "code" / f"{CHECKED}.html": run.page_foot(f"linattn_ref.{CHECKED}")}
    for chapter in CHEAP:
        cells = json.loads((ROOT / "notebooks" / f"{chapter}.ipynb").read_text(encoding="utf-8"))["cells"]
        feet[out / "chapters" / f"{chapter}.html"] = run.foot(chapter, cells)
    for path, foot in feet.items():
        text = path.read_text(encoding="utf-8")
        path.unlink()  # which the site has too
        path.write_text(text.replace("</article>", f"{foot}</article>"), encoding="utf-8")


async def opened(play, page):
    """A page that runs, where no other host can be asked; the browser, to be closed."""
    browser = await play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
    context = await browser.new_context(offline=True)
    tab = await context.new_page()
    tab.set_default_timeout(120_000)
    await tab.goto(page.as_uri())
    return browser, tab
