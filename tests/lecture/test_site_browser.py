"""The whole site in a real browser, without a network: every page, its links, its formulas."""

import asyncio
import re
import zlib
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest
from built_site import CHROMIUM, FLAGS, JUDGE, LOOK, axe, needs_chromium, opened

pytestmark = pytest.mark.browser

async_api = pytest.importorskip("playwright.async_api", reason="needs playwright: pip install -e '.[browser]'")
TABS = 3
COLOURS = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
LEFT = "net::ERR_ABORTED"  # for the page was left before its icon had come
OWN = ("slides", "live")  # their own tests open these
KINDS = (
    *("index.html", "search.html", "papers.html", "chapters/course.html", "chapters/24_downstream.html"),
    *("code/attention.linear.html", "figures/gallery.html", "api/index.html", "api/linattn_ref.attention.linear.html"),
    *("live/pixels.html", "live/sums.html", "live/frames/05.html"),
)


def pages_of(site):
    return [path for path in sorted(site.rglob("*.html")) if path.relative_to(site).parts[0] not in OWN]


class Links(HTMLParser):
    """Where a page leads and what in it can be led to."""

    def __init__(self, text):
        super().__init__()
        self.links, self.targets, self.slides = [], {""}, 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == "section" and "data-timing" in dict(attributes):
            self.targets.add(f"/{self.slides}")
            self.slides += 1
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


def test_a_class_is_looked_up_where_it_is_defined(site):
    """Whichever of its pages was read last: else a site that is built twice is not the same bytes."""
    lines = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode().splitlines()
    found = [line.split() for line in lines if " py:class " in line]
    homes = {name: f"api/{name.rpartition('.')[0]}.html" for name, *_ in found}
    wrong = [name for name, _, _, page, _ in found if (site / homes[name]).exists() and homes[name] not in page]
    assert len(found) > 100
    assert wrong == []


@needs_chromium
def test_every_page_opens_without_a_network_and_shows_what_it_should(site):
    pages = pages_of(site)
    assert len(pages) > 150
    assert asyncio.run(looked_at(pages, site)) == []


@pytest.mark.thorough
@needs_chromium
def test_code_and_formulas_stand_whole_beside_each_other_on_a_laptop(site):
    pages = [path for path in pages_of(site) if path.parent.name == "code"]
    assert len(pages) > 50
    cut = """() => [...document.querySelectorAll(".beside .formula")]
      .filter((each) => each.scrollWidth > each.clientWidth + 1)
      .map((each) => `cut off: ${each.parentElement.parentElement.textContent.slice(-5)}`)"""
    assert asyncio.run(looked_at(pages, site, (1280, 800), cut)) == []


@needs_chromium
def test_the_search_finds_a_word_of_a_chapter_and_shows_a_line_of_it(site):
    count, line = asyncio.run(searched(site, "Nyström", "chapters/11_nystromformer.html"))
    assert count > 3
    assert "nyström" in line.lower()
    assert len(line.split()) > 5


@needs_chromium
def test_nobody_is_kept_out(site):
    """axe-core's rules, by a page of each kind: contrast, names, headings, what can be reached by keys."""
    assert len([path for path in KINDS if (site / path).is_file()]) == len(KINDS) == 12
    assert asyncio.run(judged(site)) == []


def test_it_is_small(site):
    sizes = {path: path.stat().st_size for path in site.rglob("*") if path.is_file()}
    assert sum(sizes.values()) < 60e6
    assert (site / "_static" / "mathjax" / "LICENSE").exists()


@needs_chromium
def test_formula_code_and_drawing_light_up_together(site):
    asyncio.run(pointed_at(site / "code" / "attention.linear.html"))


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


async def judged(site):
    """What axe-core finds wrong: in the light by all rules, in the dark by those of colours."""
    wrong, script, waiting = [], axe(), list(KINDS)
    async with async_api.async_playwright() as play:
        browser = await play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)

        async def one_tab():
            context = await browser.new_context(color_scheme="light", bypass_csp=True, reduced_motion="reduce")
            tab = await context.new_page()
            while waiting:
                path = waiting.pop()
                await tab.goto((site / path).as_uri(), wait_until="load")
                await tab.evaluate(script)
                wrong.extend(f"{path}: {line}" for line in await tab.evaluate(JUDGE))
                await tab.emulate_media(color_scheme="dark")
                wrong.extend(f"{path}, dark: {line}" for line in await tab.evaluate(JUDGE, COLOURS))
                await tab.emulate_media(color_scheme="light")

        await asyncio.gather(*(one_tab() for _ in range(TABS)))
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


async def searched(site, word, page):
    """How many pages the search finds, and what it shows of one."""
    async with async_api.async_playwright() as play:
        browser = await play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        tab = await browser.new_page()
        await tab.goto(f"{(site / 'search.html').as_uri()}?q={word}")
        found = tab.locator("#search-results li", has=tab.locator(f'a[href^="{page}"]')).first
        await found.locator(".found-line mark").first.wait_for(timeout=20_000)
        line = await found.locator(".found-line").inner_text()
        count = await tab.locator("#search-results li").count()
        await browser.close()
        return count, line
