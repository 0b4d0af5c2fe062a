"""The whole site in a real browser, without a network: every page, its links, its formulas; and cells that are run."""

import asyncio
import html
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

from linattn_ref.data import npm
from linattn_ref.experiments.rank import spectrum
from linattn_ref.lecture.run import build as run
from linattn_ref.lecture.run import kernel

pytestmark = pytest.mark.browser

async_api = pytest.importorskip("playwright.async_api", reason="needs playwright: pip install -e '.[browser]'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    *("--no-sandbox", "--no-first-run", "--no-default-browser-check", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps"),
]
TABS = 3
LEFT = "net::ERR_ABORTED"  # for the page was left before its icon had come
ROOT = Path(__file__).parents[2]
OWN = ("slides", "live")  # their own tests open these
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


KINDS = (
    *("index.html", "search.html", "papers.html", "chapters/course.html", "chapters/08_transformers_are_rnns.html"),
    *("code/attention.linear.html", "figures/gallery.html", "api/index.html", "api/linattn_ref.attention.linear.html"),
    *("live/pixels.html", "live/sums.html", "live/frames/05.html"),
)
AXE = npm.pinned(
    name="axe-core",
    version="4.10.3",
    integrity="sha512-Xm7bpRXnDSX2YE2YFfBk2FnF0ep6tmG7xPh8iHee8MIcrgq762Nkce856dYtJYLkuIoYZvGfTs/PbZhideTcEg==",
    megabytes=1,
)
# A formula is drawn, and said in MathML; in a table's head axe sees neither.
JUDGE = """async () => {
  if (window.MathJax && MathJax.startup) await MathJax.startup.promise;
  const found = await axe.run(document, { rules: { "empty-table-header": { enabled: false } } });
  return found.violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html.slice(0, 90)}`));
}"""

# Runs a chapter's cells from the first to the last; what each sent to the page.
RUN = """async () => {
  const sent = [], real = shown;
  for (const cell of cells.filter(({ native }) => !native)) {
    const mine = [];
    shown = (place, kind, content) => {
      if (place.isConnected && !place.closest(".run-slider")) mine.push([kind, content]);
      real(place, kind, content);
    };
    if (!(await cell.run())) throw new Error(`cell ${cell.number}: ${JSON.stringify(mine)}`);
    sent.push(mine);
  }
  return sent;
}"""
SENTENCE = "Caf\u00e9 owners didn't know: [MASK] was unaffable, and the keys to the cabinet are in 3.14 drawers!"
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
MEASURED = re.compile(r"peak_bytes|at the peak|perf_counter|process_time|finfo|(?s:error.*float32|float32.*error)")
ROUNDING = re.compile(r"-?\d(\.\d)?e[-+]\d+")
WORST = re.compile(r"^.*backward .*, numeric .*, off by .*$", re.MULTILINE)
PICTURE = "[a picture]"
CHAPTERS = [path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb")) if path.name[:2] in run.CHAPTERS]
TRAINED, EXACT = ("18", "20", "23"), (2e-3, 1e-5)
CHEAP = ("19_write_fade_erase", "24_downstream", "25_kernels_that_lied")


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    return built(tmp_path_factory)


@pytest.fixture(scope="session")
def running_site(tmp_path_factory):
    """With Python for the browser, a pretrained network and reviews, of which 175 MB have to be fetched once."""
    return built(tmp_path_factory, "--run", "--sentence")


@pytest.fixture(scope="session")
def few_chapters(site, tmp_path_factory):
    """Copies of pages that run, without the network, which these do not read."""
    out = tmp_path_factory.mktemp("few")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "CHAPTERS", [chapter[:2] for chapter in CHEAP])
        run.make(ROOT, out / run.FOLDER)
    (out / "chapters").mkdir()
    for chapter in CHEAP:
        cells = json.loads((ROOT / "notebooks" / f"{chapter}.ipynb").read_text(encoding="utf-8"))["cells"]
        page = (site / "chapters" / f"{chapter}.html").read_text(encoding="utf-8")
        with_foot = page.replace("</article>", f"{run.foot(chapter, cells)}</article>")
        (out / "chapters" / f"{chapter}.html").write_text(with_foot, encoding="utf-8")
    return out


def built(tmp_path_factory, *options):
    for name in ("sphinx", "myst_nb", "furo", "numpydoc"):
        pytest.importorskip(name, reason="needs the site's extra: pip install -e '.[browser]'")
    out = tmp_path_factory.mktemp("built") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "linattn_ref", "site", *options, "--out", out], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return out


def pages_of(site):
    return [path for path in sorted(site.rglob("*.html")) if path.relative_to(site).parts[0] not in OWN]


def seen(output):
    """The text of what a cell sent to the page."""
    kind, content = output
    if kind == "slider":  # whose labels are not in the notebook
        return ""
    if content.startswith("<img "):
        return PICTURE
    return html.unescape(re.sub("<[^>]*>", " ", content)) if kind == "html" else content


def noted(output):
    """The text of an output of an executed notebook."""
    data = output.get("data", {})
    if "image/png" in data:
        return PICTURE
    if "text" in output:
        return "".join(output["text"])
    return seen(("html", kernel._markdown("".join(data.get("text/markdown", "")))))


class Links(HTMLParser):
    """Where a page leads and what in it can be led to."""

    def __init__(self, text):
        super().__init__()
        self.links, self.targets = [], {""}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id" or (tag == "a" and name == "name"):
                self.targets.add(value)
            if name in ("href", "src") and value and tag != "base":
                self.links.append((tag, value))


def test_no_link_leads_nowhere_and_nothing_is_loaded_from_outside(site):
    found = {path: Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    wrong = []
    for path in pages_of(site):
        for tag, link in found[path].links:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "") and parts.netloc:
                if tag != "a":
                    wrong.append(f"{path.relative_to(site)} loads {link}")
                continue
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                wrong.append(f"{path.relative_to(site)}: there is no {link}")
            elif parts.fragment and target in found and unquote(parts.fragment) not in found[target].targets:
                wrong.append(f"{path.relative_to(site)}: nothing there is {link}")
    assert wrong == []


def test_every_page_opens_without_a_network_and_shows_what_it_should(site):
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    pages = pages_of(site)
    assert len(pages) > 150
    assert asyncio.run(looked_at(pages, site)) == []


@pytest.mark.thorough
def test_code_and_formulas_stand_whole_beside_each_other_on_a_laptop(site):
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    pages = [path for path in pages_of(site) if path.parent.name == "code"]
    assert len(pages) > 50
    cut = """() => [...document.querySelectorAll(".beside .formula")]
      .filter((each) => each.scrollWidth > each.clientWidth + 1)
      .map((each) => `cut off: ${each.parentElement.parentElement.textContent.slice(-5)}`)"""
    assert asyncio.run(looked_at(pages, site, (1280, 800), cut)) == []


def test_the_search_finds_a_word_of_a_chapter(site):
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    assert asyncio.run(searched(site, "Nyström")) > 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nobody_is_kept_out(site, scheme):
    """axe-core's rules, by a page of each kind: contrast, names, headings, what can be reached by keys."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    assert len([path for path in KINDS if (site / path).is_file()]) == len(KINDS) == 12
    assert asyncio.run(judged(site, scheme)) == []


def test_it_is_small(site):
    sizes = {path: path.stat().st_size for path in site.rglob("*") if path.is_file()}
    assert sum(sizes.values()) < 60e6
    assert (site / "_static" / "mathjax" / "LICENSE").exists()


def test_formula_code_and_drawing_light_up_together(site):
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    asyncio.run(pointed_at(site / "code" / "attention.linear.html"))


@pytest.mark.thorough
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapters_cells_run_in_the_page_with_the_pictures_and_numbers_of_the_notebook(running_site, chapter):
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    assert differences(chapter, asyncio.run(ran(running_site / "chapters" / f"{chapter}.html"))) == []


@pytest.mark.parametrize("chapter", CHEAP)
def test_cells_of_three_chapters_run_in_their_pages(few_chapters, chapter):
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    assert differences(chapter, asyncio.run(ran(few_chapters / "chapters" / f"{chapter}.html"))) == []


def differences(chapter, sent):
    """Where what cells sent to the page is not what the executed notebook holds.

    Numbers are the same to 0.2 % or 1e-5, as an index takes 4 bytes there instead of 8, or to one in the last decimal;
    to 4 % or 0.01 with the rounded network; to 2 % or 0.01 where networks are trained, which makes much of a last
    digit. Those of one or two digits and an exponent, most of which are errors of rounding, are the same to a factor of
    4. They are counted alone where a cell measures time or memory, or errors of float32; which entry of a gradient is
    off most is not compared.
    """
    cells = json.loads((ROOT / "notebooks" / f"{chapter}.ipynb").read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    rtol, atol = (0.04, 0.01) if chapter[:2] in run.WITH_NETWORK else (0.02, 0.01) if chapter[:2] in TRAINED else EXACT
    wrong = []
    runs_here = [(i, cell) for i, cell in enumerate(code, 1) if run.NATIVE not in cell["metadata"]]
    for (i, cell), found in zip(runs_here, sent, strict=True):
        source = "".join(cell["source"])
        told, was = "\n".join(map(seen, found)), "\n".join(map(noted, cell["outputs"]))
        pictures = [text.count(PICTURE) for text in (told, was)]
        numbers = [[each.replace(",", "") for each in NUMBER.findall(WORST.sub("", text))] for text in (told, was)]
        if pictures[0] != pictures[1]:
            wrong.append(f"cell {i}: {pictures[0]} pictures, expected {pictures[1]}")
        if len(numbers[0]) != len(numbers[1]):
            wrong.append(f"cell {i}: {len(numbers[0])} numbers, expected {len(numbers[1])}")
        elif not MEASURED.search(source):
            for a, b in zip(*numbers, strict=True):
                x, y = float(a), float(b)
                last = 1.01 * 10.0 ** -len(b.partition(".")[2]) if "." in b and "e" not in b else 0
                near = ROUNDING.fullmatch(a) and ROUNDING.fullmatch(b) and abs(y) / 4 < abs(x) < abs(y) * 4
                if abs(x - y) > max(atol, rtol * abs(y), last) and not near:
                    wrong.append(f"cell {i}: {a}, expected {b}")
    return wrong


# A mistake for each page, and the gradients that it makes wrong.
MISTAKES = {
    "softmax": ("d_k = scale", "d_k = -scale", "k"),
    "online_softmax": ("d_q += scale", "d_q += -scale", "q"),
    "linear": ("d_v[keys] = phi_k", "d_v[keys] = -phi_k", "v"),
    "gated_linear": ("Gradients(saved", "Gradients(-saved", "q"),
    "delta": ("d_v = beta", "d_v = -beta", "v"),
    "delta_rule": ("d_e[row] = -d_v", "d_e[row] = d_v", "erase"),
    "linformer": ("product_for(f.shape, d_mixed_v", "product_for(f.shape, -d_mixed_v", "f"),
    "performer": ("backward = linear.backward", "backward = lambda d, saved: linear.backward(-d, saved)", "q k v"),
    "rfa": ("d_gate = d_log_gate / gate - ", "d_gate = d_log_gate / gate + ", "gate"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("page", MISTAKES)
def test_a_sign_is_changed_in_the_page_and_the_gradient_that_is_off_is_named(running_site, page):
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    asyncio.run(checked(running_site / "code" / f"attention.{page}.html", *MISTAKES[page]))


@pytest.mark.thorough
def test_code_beside_formulas_is_typed_in_fails_is_stopped_and_restored(running_site):
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    asyncio.run(typed(running_site / "code" / "attention.softmax.html"))


@pytest.mark.thorough
def test_code_can_be_changed_stopped_and_restored(running_site):
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    asyncio.run(changed(running_site / "chapters" / "05_kernel_smoother.html"))


@pytest.mark.thorough
def test_ones_own_sentence_has_the_spectrum_that_the_command_draws(running_site, tmp_path):
    """Of heads too: rounding moves a curve by up to 0.008. What has not been rounded differs by float32's digits."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    (tmp_path / "own.txt").write_text(SENTENCE, encoding="utf-8")
    tokens, curves, wrong = asyncio.run(read_by_the_page(running_site / "sentence.html"))
    assert wrong == []
    n = len(tokens)
    expected = spectrum.compute(text=tmp_path / "own.txt", length=n, sentences=1, baselines=1)
    for name, tolerance in (("given", 0.01), ("untrained", 1e-5), ("gaussian", 1e-5)):
        found = np.array(curves[name])  # (T, 12, N)
        assert found.shape[1:] == (12, n)
        np.testing.assert_allclose(found.mean(axis=1), expected.curves[name].mean, atol=tolerance, err_msg=name)
        np.testing.assert_allclose(found[..., expected.k - 1], expected.curves[name].at_k, atol=tolerance, err_msg=name)


@pytest.mark.thorough
def test_everything_that_runs_is_small_enough(running_site):
    assert sum(path.stat().st_size for path in running_site.rglob("*") if path.is_file()) < 110e6


async def looked_at(pages, site, size=(390, 844), also="() => []"):
    """What is wrong with the pages, seen in a window that is by default as wide as a phone."""
    wrong, waiting = [], list(reversed(pages))
    async with async_api.async_playwright() as play:
        browser = await play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)

        async def one_tab():
            context = await browser.new_context(
                viewport=dict(zip(("width", "height"), size, strict=True)), offline=True
            )
            tab = await context.new_page()
            told = []
            tab.on("console", lambda message: told.append(message.text) if message.type == "error" else None)
            tab.on("pageerror", lambda error: told.append(str(error)))
            tab.on("requestfailed", lambda r: None if r.failure == LEFT else told.append(f"no {r.url}"))
            tab.on("request", lambda r: told.append(f"asks for {r.url}") if re.match(r"https?:", r.url) else None)
            while waiting:
                path = waiting.pop()
                await tab.goto(path.as_uri())
                told += await tab.evaluate(LOOK) + await tab.evaluate(also)
                wrong.extend(f"{path.relative_to(site)}: {line}" for line in told)
                told.clear()

        await asyncio.gather(*(one_tab() for _ in range(TABS)))
        await browser.close()
    return wrong


async def judged(site, scheme):
    """What axe-core finds wrong."""
    wrong, script = [], npm.read(AXE, "axe.min.js").decode()
    async with async_api.async_playwright() as play:
        browser = await play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = await browser.new_context(color_scheme=scheme, bypass_csp=True, reduced_motion="reduce")
        for path in KINDS:
            tab = await context.new_page()
            await tab.goto((site / path).as_uri(), wait_until="load")
            await tab.evaluate(script)
            wrong += [f"{path}: {line}" for line in await tab.evaluate(JUDGE)]
            await tab.close()
        await browser.close()
    return wrong


async def pointed_at(page):
    """Mouse, focus and finger on each of the three."""
    async with async_api.async_playwright() as play:
        browser, tab = await opened(play, page)
        formula = tab.locator(".derivation .equation[data-equations='9']")
        code = tab.locator(".literate .beside[data-equations='9']")
        await formula.hover()
        assert "lit" in await code.get_attribute("class")
        assert "d_v[keys] = phi_k[keys] @ d_s" in await tab.locator(".peek").inner_text()  # for it is out of sight
        assert await tab.locator(".box.lit").count() == 0
        await tab.locator("h1").hover()
        assert await tab.locator(".lit").count() == 0
        assert await tab.locator(".peek").inner_text() == ""
        value = tab.get_by_label("v, in equations 1, 4")
        await value.focus()
        assert "lit" in await tab.locator("#eq-1").get_attribute("class")
        assert await tab.locator(".literate .beside.lit").count() > 1
        await tab.locator("#eq-2 .number a").focus()
        labels = [await box.get_attribute("aria-label") for box in await tab.locator(".box.lit").all()]
        assert [label[0] for label in labels] == ["p", "z", "z"]  # phi(K)
        await tab.locator(".literate .beside[data-equations='3'] pre").click()
        assert "lit" in await tab.locator("#eq-3").get_attribute("class")
        assert await tab.locator(".peek .drawing .box.lit").count() > 1
        await browser.close()


async def searched(site, word):
    """How many pages the search finds."""
    async with async_api.async_playwright() as play:
        browser = await play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        tab = await browser.new_page()
        await tab.goto(f"{(site / 'search.html').as_uri()}?q={word}")
        await tab.wait_for_selector("#search-results li", timeout=20_000)
        count = await tab.locator("#search-results li").count()
        await browser.close()
        return count


async def opened(play, page):
    """A page that runs, where no other host can be asked; the browser, to be closed."""
    browser = await play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
    context = await browser.new_context(offline=True)
    tab = await context.new_page()
    tab.set_default_timeout(120_000)
    await tab.goto(page.as_uri())
    return browser, tab


async def ran(page):
    """What the cells of a chapter sent to its page."""
    async with async_api.async_playwright() as play:
        browser, tab = await opened(play, page)
        asked = []
        tab.on("request", lambda request: asked.append(request.url))
        await tab.wait_for_timeout(500)
        assert [url for url in asked if run.FOLDER in url] == []  # nothing is loaded before it is asked for
        sent = await tab.evaluate(RUN)
        assert len(asked) > 10
        assert [url for url in asked if not url.startswith(("file:", "blob:", "data:"))] == []
        await browser.close()
    return sent


# Changes a line of the page's code, as typing would.
CHANGE = """([was, is]) => {
  const row = rows.find((row) => row.code.includes(was));
  const line = row.lines.find((line) => line.textContent.includes(was));
  line.textContent = line.textContent.replace(was, is);
  row.editor.oninput();
  return row.number;
}"""


async def checked(page, old, new, wrong):
    """The page as it is, with a mistake, and restored."""
    async with async_api.async_playwright() as play:
        browser, tab = await opened(play, page)
        asked = []
        tab.on("request", lambda request: asked.append(request.url))
        await tab.wait_for_timeout(500)
        assert [url for url in asked if run.FOLDER in url] == []  # nothing is loaded before it is asked for
        verdict, check = tab.locator(".run-verdict"), tab.get_by_role("button", name="Check")
        await check.click()
        await tab.locator(".run-verdict.right").wait_for()
        assert "The gradient is right" in await verdict.inner_text()
        assert [url for url in asked if not url.startswith(("file:", "blob:", "data:"))] == []
        row = await tab.evaluate(CHANGE, [old, new])
        await check.click()
        await tab.locator(".run-verdict.wrong").wait_for()
        told = await verdict.inner_text()
        assert re.findall(r"The gradient of (\w+) is wrong", told) == wrong.split()
        assert re.search(rf"At {wrong[0]}\w*\[[\d, ]+\] backward returns .+: off by ", told)
        assert await tab.locator(f"#line-{row}.suspect").count() == 1
        await tab.get_by_role("button", name="Restore").click()
        assert await tab.locator(".suspect").count() == 0
        await check.click()
        await tab.locator(".run-verdict.right").wait_for()
        await browser.close()


async def typed(page):
    """A reader types."""
    async with async_api.async_playwright() as play:
        browser, tab = await opened(play, page)
        line = tab.locator(".beside .line", has_text="d_v = mix(p.mT, d_out)")
        row = await line.evaluate("line => line.closest('.beside').id")
        editor = tab.locator(f"#{row} pre")
        await line.click()
        await tab.keyboard.press("End")
        await tab.keyboard.press("Enter")
        await tab.keyboard.type("    d_v = d_v / nothing")
        await tab.keyboard.press("Control+Enter")
        error = tab.locator(".run-error")
        await error.wait_for()
        told = await error.inner_text()
        assert "d_v = d_v / nothing" in told
        assert 'File "linattn_ref/attention/softmax.py", line 118, in backward' in told
        assert told.rstrip().endswith("NameError: name 'nothing' is not defined")
        await tab.keyboard.press("Shift+Home")
        await tab.keyboard.type("    while True: pass")
        await tab.keyboard.press("Control+Enter")
        await tab.get_by_role("button", name="Stop").click()
        await tab.get_by_text("Stopped.").wait_for()
        await editor.press("Control+End")
        await tab.keyboard.press("Shift+Home")
        await tab.keyboard.press("Backspace")
        await tab.keyboard.press("Backspace")
        await tab.keyboard.press("Control+Enter")
        await tab.locator(".run-verdict.right").wait_for()
        assert "d_v = mix(p.mT, d_out)" in await editor.inner_text()
        await browser.close()


async def changed(page):
    """A reader presses the buttons."""
    async with async_api.async_playwright() as play:
        browser, tab = await opened(play, page)
        first, second = tab.locator(".cell").nth(0), tab.locator(".cell").nth(1)
        kept = await second.locator(".cell_output").inner_text()
        await second.get_by_role("button", name="Run cell 2").click()
        error = second.locator(".run-error")
        await error.wait_for()
        assert "NameError: name 'np' is not defined" in await error.inner_text()
        await second.get_by_text("some cells above have not run").wait_for()
        await second.get_by_role("button", name="Run all above").click()
        await second.get_by_text("Ran in").wait_for()
        assert (await second.locator(".cell_output").inner_text()).strip() == kept.strip()
        code = second.get_by_role("textbox", name="Code of cell 2")
        await code.fill("print(N := 6 * 7)\nwhile True:\n    pass")
        await code.press("Shift+Enter")
        await second.get_by_text("42", exact=True).wait_for()
        await second.get_by_role("button", name="Stop").click()
        await second.get_by_text("All names are gone").wait_for()
        await second.get_by_role("button", name="Restore").click()
        assert await second.locator(".cell_output").inner_text() == kept
        assert "one_query" in await code.inner_text()
        await second.get_by_role("button", name="Run all above").click()
        await second.get_by_text("Ran in").wait_for()
        await first.get_by_text("Ran in").wait_for()
        await browser.close()


async def read_by_the_page(page):
    """The tokens of a sentence, the curves that are drawn of it, and what axe-core finds wrong in the dark."""
    async with async_api.async_playwright() as play:
        browser = await play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = await browser.new_context(offline=True, bypass_csp=True, color_scheme="dark")
        tab = await context.new_page()
        tab.set_default_timeout(300_000)
        asked = []
        tab.on("request", lambda request: asked.append(request.url))
        await tab.goto(page.as_uri())
        assert [url for url in asked if url.endswith((".zip.js", ".whl.js"))] == []  # before it is asked for
        await tab.get_by_label("Your text").fill(SENTENCE)
        await tab.get_by_role("button", name="Read it").click()
        await tab.get_by_text(re.compile(r"^Read \d+ tokens in")).wait_for()
        assert [url for url in asked if not url.startswith(("file:", "blob:", "data:"))] == []
        # By keys: another head, a lower rank, another cell.
        chosen = tab.locator("#heads [aria-pressed=true]")
        await chosen.press("ArrowRight")
        heading = tab.get_by_role("heading", name="Layer 2, head 1")
        await heading.wait_for()
        await tab.locator("#loss").filter(has_text="keeps").wait_for()
        rank = tab.get_by_role("slider")
        await rank.press("End")
        assert "keeps 100.0%" in await tab.locator("#loss").inner_text()
        await rank.press("Home")
        assert (await tab.locator("#loss").inner_text()).startswith("Rank 1 keeps")
        await tab.locator("#exact").press("ArrowDown")
        assert "From \u201ccafe\u201d to \u201c[CLS]\u201d" in await tab.locator("#cell").inner_text()
        tokens = await tab.evaluate("tokens")
        text = "(all) => all.map((heads) => heads.map((values) => [...values]))"
        curves = {name: await tab.evaluate(f"({text})(curves.{name})") for name in ("given", "untrained", "gaussian")}
        await tab.evaluate("document.querySelector('.back-to-top').remove()")  # furo's own, in no landmark
        await tab.evaluate(npm.read(AXE, "axe.min.js").decode())
        wrong = await tab.evaluate(JUDGE)
        await browser.close()
    return tokens, curves, wrong
