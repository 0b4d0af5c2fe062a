"""The whole site in a real browser, without a network: every page, its links, its formulas."""

import asyncio
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.browser

async_api = pytest.importorskip("playwright.async_api", reason="needs playwright: pip install -e '.[browser]'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    *("--no-sandbox", "--no-first-run", "--no-default-browser-check", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps"),
]
TABS = 3
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
  const wide = document.documentElement.scrollWidth - window.innerWidth;
  if (wide > 1) wrong.push(`${wide} pixels wider than the window`);
  return wrong;
}"""


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    for name in ("sphinx", "myst_nb", "furo", "numpydoc"):
        pytest.importorskip(name, reason="needs the site's extra: pip install -e '.[browser]'")
    out = tmp_path_factory.mktemp("built") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "linattn_ref", "site", "--out", out], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return out


def pages_of(site):
    return [path for path in sorted(site.rglob("*.html")) if path.relative_to(site).parts[0] not in OWN]


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


def test_the_search_finds_a_word_of_a_chapter(site):
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    assert asyncio.run(searched(site, "Nyström")) > 0


def test_it_is_small(site):
    sizes = {path: path.stat().st_size for path in site.rglob("*") if path.is_file()}
    assert sum(sizes.values()) < 60e6
    assert (site / "_static" / "mathjax" / "LICENSE").exists()


async def looked_at(pages, site):
    """What is wrong with the pages, seen in a window as wide as a phone."""
    wrong, waiting = [], list(reversed(pages))
    async with async_api.async_playwright() as play:
        browser = await play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)

        async def one_tab():
            context = await browser.new_context(viewport={"width": 390, "height": 844}, offline=True)
            tab = await context.new_page()
            told = []
            tab.on("console", lambda message: told.append(message.text) if message.type == "error" else None)
            tab.on("pageerror", lambda error: told.append(str(error)))
            tab.on("requestfailed", lambda request: told.append(f"no {request.url}"))
            tab.on("request", lambda r: told.append(f"asks for {r.url}") if re.match(r"https?:", r.url) else None)
            while waiting:
                path = waiting.pop()
                await tab.goto(path.as_uri())
                told += await tab.evaluate(LOOK)
                wrong.extend(f"{path.relative_to(site)}: {line}" for line in told)
                told.clear()

        await asyncio.gather(*(one_tab() for _ in range(TABS)))
        await browser.close()
    return wrong


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
