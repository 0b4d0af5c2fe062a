"""Every deck in a real browser, without a network: nothing overflows, no formula is left as it was typed."""

import functools
import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("slides")]

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    *("--no-sandbox", "--no-first-run", "--no-default-browser-check"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps"),
]
FOLDER = Path(__file__).parents[2] / "notebooks" / "slides"
NAMES = sorted(path.stem for path in FOLDER.glob("[0-9][0-9]_*.md"))
# What is wrong with a slide, in the page's own pixels.
LOOK = """() => Array.from({length: Reveal.getTotalSlides()}, (_, number) => {
  Reveal.slide(number);
  const section = Reveal.getCurrentSlide(), slide = section.querySelector(".slide"), wrong = [];
  const foot = slide.querySelector(".foot").getBoundingClientRect(), edge = slide.getBoundingClientRect();
  if (slide.scrollHeight > slide.clientHeight + 1 || slide.scrollWidth > slide.clientWidth + 1) wrong.push("overflows");
  for (const part of slide.querySelectorAll(".text, .text > *, figure, svg, td, pre")) {
    const box = part.getBoundingClientRect();
    if (box.width && (box.bottom > foot.top + 1 || box.right > edge.right - 8 || box.top < edge.top))
      wrong.push(`${part.tagName} ends at ${Math.round(box.right)}, ${Math.round(box.bottom)}`);
  }
  for (const image of slide.querySelectorAll("img"))
    if (!image.naturalWidth || !image.alt || image.getBoundingClientRect().height < 150) wrong.push("a small picture");
  if (section.querySelector("mjx-merror, [data-mjx-error]")) wrong.push("a formula is wrong");
  if (/\\$|\\\\[(\\[a-z]|\\{\\{/.test(section.innerText)) wrong.push("a formula is not set");
  const note = section.querySelector("aside.notes");
  if (!note || note.textContent.trim().length < 40) wrong.push("there is no note");
  return wrong.map(what => `slide ${number + 1}: ${what}`);
}).flat()"""


@pytest.fixture(scope="module")
def decks(tmp_path_factory):
    """Where a deck of a name is, built when it is first asked for."""
    pytest.importorskip("markdown_it")
    from linattn_ref.lecture.slides import build, page

    folder, found = tmp_path_factory.mktemp("slides"), page.libraries()

    @functools.cache
    def file_of(name):
        file = folder / f"{name}.html"
        file.write_text(build.rendered(FOLDER / f"{name}.md", found), encoding="utf-8")
        return file

    return file_of


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def show(browser):
    """Open a file in a window of a size; at the end nothing was asked of anybody, and nothing complained."""
    told, pages = [], []

    def opened(file, width=1280, height=720, query=""):
        page = browser.new_page(viewport={"width": width, "height": height}, offline=True)
        pages.append(page)
        page.on("request", lambda request: told.append(request.url[:200]) if _leaves(request.url) else None)
        page.on("console", lambda said: told.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: told.append(str(error)))
        page.goto(file.as_uri() + query)
        page.wait_for_function("window.Reveal && Reveal.isReady()")
        return page

    yield opened
    for page in pages:
        page.close()
    assert told == []


def _leaves(address):
    return not address.startswith(("file:", "data:", "blob:", "about:"))


@pytest.mark.parametrize("name", NAMES)
def test_slides_fit_and_are_whole(name, decks, show):
    assert show(decks(name)).evaluate(LOOK) == []


def test_slides_fit_a_phone_held_upright(decks, show):
    assert show(decks("05_kernel_smoother"), 390, 844).evaluate(LOOK) == []


def test_print_gives_a_page_a_slide(decks, show):
    page = show(decks("05_kernel_smoother"), query="?print-pdf")
    page.wait_for_selector(".pdf-page")
    slides = page.evaluate("Reveal.getTotalSlides()")
    assert page.locator(".pdf-page").count() == slides
    printed = page.pdf(prefer_css_page_size=True)
    assert printed.count(b"/Type /Page\n") == slides
    assert b"/FontFile" in printed  # text, not a picture of it


def test_the_speaker_has_notes_and_a_clock(decks, show):
    page = show(decks("05_kernel_smoother"))
    with page.expect_popup() as opening:
        page.keyboard.press("s")
    window = opening.value
    window.wait_for_selector(".speaker-controls-notes .value")
    window.wait_for_function("document.querySelector('.speaker-controls-notes .value').innerText.length > 40")
    assert window.locator(".timer").first.is_visible()
    assert window.locator(".pacing").is_visible()


def test_a_deck_is_not_large(decks):
    sizes = {name: decks(name).stat().st_size / 1e6 for name in NAMES}
    assert max(size for name, size in sizes.items() if not name.startswith("00")) < 5
    assert max(sizes["00_course"], sizes["00_short"]) < 10
