"""Three pages of the site in Firefox, where there is one: what Chromium shows is not all that readers see."""

import asyncio

import pytest
from built_site import CHEAP, CHECKED, LOOK
from firefox import FIREFOX, firefox

pytestmark = [pytest.mark.browser, pytest.mark.skipif(FIREFOX is None, reason="there is no Firefox here")]
pytest.importorskip("tornado.websocket", reason="needs the site's extra: pip install -e '.[browser]'")

COUNT = "(selector) => document.querySelectorAll(selector).length"
CHECK = """async () => {
  [...document.querySelectorAll("button")].find(({ textContent }) => textContent === "Check").click();
  const answers = ".run-verdict.right, .run-verdict.wrong, .run-error";
  while (!document.querySelector(answers)) await new Promise((done) => setTimeout(done, 100));
  return document.querySelector(answers).innerText;
}"""


def test_three_pages_show_what_they_should(few_that_run):
    asyncio.run(three(few_that_run))


@pytest.mark.thorough
def test_a_gradient_is_checked_in_the_page(few_that_run):
    assert asyncio.run(checked(few_that_run / "code" / f"{CHECKED}.html")).startswith("The gradient is right")


async def three(site):
    async with firefox() as tab:

        async def count(selector):
            return await tab.evaluate(f"({COUNT})({selector!r})")

        await tab.open(site / "index.html")
        assert await tab.evaluate(f"({LOOK})()") == []
        assert await tab.evaluate("document.querySelector('h1').innerText.trim()") == (
            "Efficient attention, written to be read"
        )
        assert await tab.evaluate("document.querySelector('img.hero').naturalWidth") > 300
        assert await count(".sd-card") >= 25
        assert await count(".way") >= 5

        await tab.open(site / "chapters" / f"{CHEAP[0]}.html")
        assert await tab.evaluate(f"({LOOK})()") == []
        cells = await count(".cell .cell_input")
        assert cells > 20
        assert await count(".run-bar") == cells
        assert await count(".cell_output img") > 1
        assert await count("mjx-container") > 50

        await tab.open(site / "code" / f"{CHECKED}.html")
        assert await tab.evaluate(f"({LOOK})()") == []
        assert "Check" in await tab.evaluate("[...document.querySelectorAll('button')].map((each) => each.innerText)")
        assert await count(".beside .formula mjx-container") > 5
        assert await count(".drawing .box") > 3
        assert await count(".beside pre[contenteditable]") > 5
        assert tab.told == []


async def checked(page):
    """What the page answers."""
    async with firefox() as tab:
        await tab.open(page)
        verdict = await tab.evaluate(f"({CHECK})()")
        assert tab.told == []
    return verdict
