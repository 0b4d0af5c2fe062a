"""What runs in the site's pages, in a real browser, without a network: cells, Check, and one's own sentence."""

import asyncio
import json
import re

import chapter_numbers
import numpy as np
import pytest
from built_site import CHEAP, CHROMIUM, FLAGS, JUDGE, ROOT, axe, needs_chromium, opened

from linattn_ref.experiments.rank import spectrum
from linattn_ref.lecture.run import build as run

pytestmark = [pytest.mark.browser, needs_chromium]

async_api = pytest.importorskip("playwright.async_api", reason="needs playwright: pip install -e '.[browser]'")
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
CHAPTERS = [path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb")) if path.name[:2] in run.CHAPTERS]
TRAINED = ("20",)
EXACT, ROUNDED, LEARNED = (2e-3, 1e-5), (0.04, 0.01), (0.02, 0.01)


@pytest.mark.thorough
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapters_cells_run_in_the_page_with_the_pictures_and_numbers_of_the_notebook(running_site, chapter):
    assert differences(chapter, asyncio.run(ran(running_site / "chapters" / f"{chapter}.html"))) == []


@pytest.mark.parametrize("chapter", CHEAP)
def test_cells_of_three_chapters_run_in_their_pages(few_that_run, chapter):
    assert differences(chapter, asyncio.run(ran(few_that_run / "chapters" / f"{chapter}.html"))) == []


def differences(chapter, sent):
    """Where what cells sent to the page is not what the executed notebook holds.

    An index takes 4 bytes there instead of 8. Numbers are the same to 4 % or 0.01 with the rounded network, whose draws
    beyond a limit are only counted; to 2 % or 0.01 or a whole percent where networks are trained.
    """
    cells = json.loads((ROOT / "notebooks" / f"{chapter}.ipynb").read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    number = chapter[:2]
    rounded, trained = number in run.WITH_NETWORK, number in TRAINED
    rtol, atol = ROUNDED if rounded else LEARNED if trained else EXACT
    wrong = []
    runs_here = [(i, cell) for i, cell in enumerate(code, 1) if run.NATIVE not in cell["metadata"]]
    for (i, cell), found in zip(runs_here, sent, strict=True):
        draws = rounded and "jl.count_failures" in "".join(cell["source"])
        told = map(chapter_numbers.seen, found)
        off = chapter_numbers.differences(cell, told, rtol=rtol, atol=atol, counted=draws, percent=trained)
        wrong += [f"cell {i}: {text}" for text in off]
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
    asyncio.run(checked(running_site / "code" / f"attention.{page}.html", *MISTAKES[page]))


@pytest.mark.thorough
def test_code_beside_formulas_is_typed_in_fails_is_stopped_and_restored(running_site):
    asyncio.run(typed(running_site / "code" / "attention.softmax.html"))


@pytest.mark.thorough
def test_code_can_be_changed_stopped_and_restored(running_site):
    asyncio.run(changed(running_site / "chapters" / "05_kernel_smoother.html"))


@pytest.mark.thorough
def test_ones_own_sentence_has_the_spectrum_that_the_command_draws(running_site, tmp_path):
    """Of heads too: rounding moves a curve by up to 0.008. What has not been rounded differs by float32's digits."""
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


async def requests_of(tab):
    """All from now on; nothing that runs is loaded before it is asked for."""
    asked = []
    tab.on("request", lambda request: asked.append(request.url))
    await tab.wait_for_timeout(500)
    assert [url for url in asked if run.FOLDER in url] == []
    return asked


async def ran(page):
    """What the cells of a chapter sent to its page."""
    async with async_api.async_playwright() as play:
        browser, tab = await opened(play, page)
        asked = await requests_of(tab)
        sent = await tab.evaluate(RUN)
        drawn = "(frames) => frames.filter(({ hidden }) => !hidden).length"
        assert await tab.locator(".slider-frame").evaluate_all(drawn) == 0  # the cell's own slider stands there
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
        asked = await requests_of(tab)
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
        await tab.evaluate(axe())
        wrong = await tab.evaluate(JUDGE)
        await browser.close()
    return tokens, curves, wrong
