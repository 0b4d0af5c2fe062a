"""``linattn-ref live --speed``: how fast the networks write in headless Chromium."""

import shutil
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from linattn_ref.lecture.live import build, page

__all__ = ["measure", "told"]

REPEATS = 5


def measure(networks: Sequence[Path] | None = None) -> dict[str, Any]:
    """Milliseconds of each row of 28 pixels, the median of some digits, for each network."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise FileNotFoundError("there is no Chromium on the path: apt-get install chromium")
    write = (page.ASSETS / "speed.js").read_text(encoding="utf-8")
    text = page.inline("pixels.html", build.pixels(networks), links="")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "pixels.html"
        file.write_text(text, encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        opened = browser.new_page()
        opened.goto(f"{file.as_uri()}#still")
        found: dict[str, Any] = {"browser": f"Chromium {browser.version}"}
        for attention in ("linear", "softmax"):
            digits = [opened.evaluate(write, attention) for _ in range(REPEATS + 1)][1:]  # the first is compiled
            found[attention] = [statistics.median(row) for row in zip(*digits, strict=True)]
        browser.close()
    return found


def told(found: dict[str, Any]) -> Iterator[str]:
    """A line for each network."""
    for attention in ("linear", "softmax"):
        rows = found[attention]
        yield (
            f"{attention}: {len(rows) * 28 / sum(rows) * 1000:.0f} pixels per second in {found['browser']};"
            f" {rows[0] / 28:.2f} ms per pixel in the first row, {rows[-1] / 28:.2f} in the last"
        )
