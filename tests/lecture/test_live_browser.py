"""The live pages in a real browser, beside NumPy: the same pixels, the same sums, no request to any other host."""

import shutil

import numpy as np
import page_network
import pytest

from linattn_ref import cli
from linattn_ref.attention import linear, softmax
from linattn_ref.lecture.live import head

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("live")]
BOTH = ("linear", "softmax")
# Sums of a few hundred float64 numbers of size 1 to 10, in another order: 1e-15 times their count, and then some.
TOLERANCE = 1e-10


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install -e '.[browser]'")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def networks():
    from linattn_ref.lecture.live import weights

    found = [page_network.network(weights.read(path)) for path in weights.SHIPPED]
    return {network.facts["attention"]: network for network in found}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from linattn_ref.lecture.live import build

    out = tmp_path_factory.mktemp("live")
    build.make(out)
    return out


@pytest.fixture(scope="module")
def opened(browser, folder):
    """Opens a page; at the end nothing may have failed or been asked of anybody."""
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    wrong = []
    context.on(
        "request", lambda request: None if request.url.startswith(("file:", "data:")) else wrong.append(request.url)
    )
    context.on("weberror", lambda error: wrong.append(str(error.error)))
    context.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)

    def open_page(name):
        page = context.new_page()
        page.goto((folder / name).as_uri() + "#still")
        return page

    yield open_page
    assert wrong == []
    context.close()


@pytest.fixture(scope="module")
def pixels(opened):
    return opened("pixels.html")


def generated(network, prefix, seed, temperature):
    """By NumPy: all pixels."""
    from linattn_ref.models import generate

    first = np.concatenate([[256], prefix]).astype(np.int64)[None]
    options = {"rng": np.random.default_rng(seed), "temperature": temperature, "way": "steps"}
    return generate.generate(first, 785 - first.shape[1], network.params, network.model, **options)[0, 1:]


# --- Pixel by pixel -------------------------------------------------------------------------------------------------

WRITE = """({ attention, prefix, seed, temperature }) => {
  const { network } = writers.find(({ network }) => network.attention === attention), random = new Random(seed);
  network.reset();
  const pixels = [], scores = [];
  for (let i = 0; i < 784; i++) {
    const said = network.step(i ? pixels[i - 1] : network.begin);
    if (i % 56 === 55) scores.push(Array.from(said));
    pixels.push(i < prefix.length ? prefix[i] : pick(said, temperature, random));
  }
  return { pixels, scores };
}"""


def begun(pixels, digit, rows):
    """The first rows of a digit as the page's pen writes it."""
    return pixels.evaluate("(digit) => { paper.write(digit); return Array.from(paper.ink); }", digit)[: 28 * rows]


@pytest.mark.parametrize("attention", BOTH)
@pytest.mark.parametrize("rows", [0, 10])
def test_the_likeliest_pixels_are_numpys_and_so_are_the_scores(pixels, networks, attention, rows):
    from linattn_ref.models import causal

    richest, prefix, found = -1, [], {}
    for digit in range(10) if rows else [0]:  # of ten beginnings the one that is gone on with in most intensities
        given = {"attention": attention, "prefix": begun(pixels, digit, rows), "seed": 0, "temperature": 0}
        written = pixels.evaluate(WRITE, given)
        if (intensities := len(set(written["pixels"][28 * rows :]))) > richest:
            richest, prefix, found = intensities, given["prefix"], written
    network = networks[attention]
    expected = generated(network, prefix, 0, 0)
    assert found["pixels"] == expected.tolist()
    assert rows == 0 or richest > 1
    read = np.concatenate([[256], expected[:-1]])[None]
    scores, _ = causal.forward(read, network.params, network.model)
    np.testing.assert_allclose(found["scores"], scores[0, 55::56], rtol=0, atol=TOLERANCE)


def test_the_page_writes_what_numpy_draws_for_the_same_seed(pixels, networks):
    prefix = begun(pixels, 5, 9)
    for name, value in (("#keep", 9), ("#temperature", 0.9), ("#speed", 3)):
        pixels.locator(name).fill(str(value))
    pixels.locator("#seed").fill("20261122")
    pixels.locator("#seed").dispatch_event("change")
    pixels.locator("#play").click()
    pixels.evaluate("new Promise((done) => (function look() { running ? requestAnimationFrame(look) : done(); })())")
    for attention, found in zip(BOTH, pixels.evaluate("writers.map(({ pixels }) => pixels)"), strict=True):
        assert found == generated(networks[attention], prefix, 20261122, 0.9).tolist()
    assert "Done. Pixel 784 of 784" in pixels.locator("#status").text_content()


def test_what_a_visitor_sees_first_is_finished_as_it_was_begun(opened):
    """Both networks finish the digit on the paper; a blob would be further away from it than an empty page, at 1."""
    page = opened("pixels.html")
    page.locator("#play").click()
    page.get_by_role("button", name="Write again").wait_for(timeout=60_000)
    keep = 28 * int(page.locator("#keep").input_value())
    begun = np.array(page.evaluate("Array.from(paper.ink)"), float)[keep:]
    for written in page.evaluate("writers.map(({ pixels }) => pixels)"):
        assert np.linalg.norm(written[keep:] - begun) < 0.6 * np.linalg.norm(begun)


def test_twenty_digits_stand_beside_each_other(opened):
    page = opened("pixels.html")
    page.locator("#keep").fill("27")
    first = int(page.locator("#seed").input_value())
    page.locator("#many").click()
    page.get_by_role("button", name="Write again").wait_for(timeout=120_000)
    assert page.locator("#written .pair").count() == 20
    said = [page.locator("#written canvas").nth(at).get_attribute("aria-label") for at in (0, 39)]
    assert said == [f"Written by linear attention, seed {first + 19}", f"Written by softmax attention, seed {first}"]


def test_the_state_has_one_size_and_the_cache_grows(pixels, networks):
    from linattn_ref.models import causal

    pixels.evaluate("restart(); writers.forEach((writer) => writer.write(30, 1))")
    in_page = dict(zip(BOTH, pixels.evaluate("writers.map(({ held }) => [held[0], held[29]])"), strict=True))
    for attention, (params, model, *_) in networks.items():
        state = causal.init_state(1, params, model)
        for _ in range(30):
            _, state = causal.step(np.array([0]), params, state, model)
        if attention == "linear":
            count = sum(part.s.size + part.z.size for part in state.blocks)
            assert in_page[attention] == [count, count]
        else:
            width, layers = params.embedding.table.shape[1], len(params.blocks)
            assert in_page[attention] == [2 * width * layers, 30 * 2 * width * layers]


def test_random_numbers_are_numpys(pixels):
    for seed in (0, 1, 12345, 2**32 - 1):
        found = pixels.evaluate(
            "(seed) => { const r = new Random(seed); return [...'1234'].map(() => r.uniform()); }", seed
        )
        assert found == np.random.default_rng(seed).random(4).tolist()


def test_erf_is_scipys(pixels):
    from scipy.special import erf

    x = np.concatenate([np.linspace(-7, 7, 2001), [0.0, 1e-300, 3.0, np.nextafter(3, 0)]])
    found = pixels.evaluate("(x) => x.map(erf)", x.tolist())
    np.testing.assert_allclose(found, erf(x), rtol=4e-15, atol=0)  # a series of 60 terms, each rounded


def test_int8_comes_out_as_numpy_says(pixels, networks, monkeypatch):
    from linattn_ref.lecture.live import weights

    monkeypatch.setattr(weights, "LARGEST", 400_000)
    network = weights.read(weights.SHIPPED[0])
    described = weights.packed(network)
    assert described["format"] == "int8"
    found = pixels.evaluate("(given) => Array.from(unpacked(given)['head.w'])", described)
    np.testing.assert_array_equal(found, page_network.network(network).params.head.w.ravel())


def test_a_visitor_draws_by_mouse_and_by_keys(pixels):
    pixels.get_by_role("button", name="Clear the paper").click()
    box = pixels.locator("#paper").bounding_box()
    pixels.mouse.move(box["x"] + 60, box["y"] + 40)
    pixels.mouse.down()
    pixels.mouse.move(box["x"] + 120, box["y"] + 40)
    pixels.mouse.up()
    row = pixels.evaluate("Array.from(paper.ink.subarray(5 * 28, 6 * 28))")
    assert min(row[8:14]) > 200
    assert max(row[:5] + row[19:]) == 0
    pixels.get_by_role("button", name="Clear the paper").click()
    pixels.locator("#paper").focus()
    for key in ("ArrowRight", "ArrowDown", " "):
        pixels.keyboard.press(key)
    assert pixels.evaluate("paper.ink[7 * 28 + 14]") > 200
    pixels.evaluate("writers.forEach((writer) => writer.write(5, 1))")
    for key in ("ArrowRight", "Tab"):  # the cursor moves, and goes: what has been written stays
        pixels.keyboard.press(key)
    assert pixels.evaluate("writers.map(({ pixels }) => pixels.length)") == [5, 5]
    pixels.keyboard.press("Shift+Tab")
    pixels.keyboard.press(" ")
    assert pixels.evaluate("writers.map(({ pixels }) => pixels.length)") == [0, 0]
    pixels.get_by_role("button", name="Begin a 8").click()
    assert pixels.evaluate("writers[0].prefix.length") == 28 * int(pixels.locator("#keep").input_value())


# --- The brackets ---------------------------------------------------------------------------------------------------


def test_the_head_is_softmaxs_and_linear_attentions(opened):
    page = opened("sums.html")
    kept = head.read()
    q, k, v = (np.array(kept[name]) for name in "qkv")
    steps = page.evaluate("steps")
    p = softmax.matrix(q, k, causal=True)
    state = linear.init_state((), q.shape[1], v.shape[1])
    for i, step in enumerate(steps):
        np.testing.assert_allclose(step["weights"], p[i, : i + 1], rtol=0, atol=1e-13)
        np.testing.assert_allclose(step["softmax"], p[i] @ v, rtol=0, atol=1e-13)
        out, state = linear.step(q[i], k[i], v[i], state)
        np.testing.assert_allclose(step["linear"], out, rtol=0, atol=1e-13)
        np.testing.assert_allclose(step["s"], state.s, rtol=0, atol=1e-11)
        np.testing.assert_allclose(step["never"], linear.matrix(q, k, causal=True)[i, : i + 1], rtol=0, atol=1e-13)
    assert kept["tokens"][int(p[9].argmax())] == "animal"


def test_the_text_is_stepped_through_by_keys(opened):
    page = opened("sums.html")
    page.keyboard.press("ArrowRight")
    kept = head.read()
    row = softmax.matrix(np.array(kept["q"]), np.array(kept["k"]), causal=True)[10]
    assert page.locator("#said").text_content() == (
        f"Token 11 of 48, “was”: most weight, {row.max():.2f}, on “{kept['tokens'][row.argmax()]}”"
    )
    assert page.locator("#softmax-held").text_content() == str(11 * 64)
    assert page.locator("#linear-held").text_content() == "1,056"
    page.locator("#never").check()
    page.locator("#place").press("End")
    assert "Token 48 of 48" in page.locator("#said").text_content()


# --- Sliders --------------------------------------------------------------------------------------------------------


def test_a_slider_moves_by_arrow_keys_and_says_its_numbers(opened):
    page = opened("frames/01.html")
    slider, said = page.locator("input[type=range]"), page.locator(".said")
    slider.press("Home")
    assert said.text_content() == "temperature T = 0.05; entropy 0.38"
    first = page.locator(".paper img").get_attribute("src")
    slider.press("ArrowRight")
    assert said.text_content().startswith("temperature T = 0.063; entropy ")
    assert slider.get_attribute("aria-valuetext") == said.text_content()
    assert page.locator(".paper img").get_attribute("src") != first
    page.get_by_role("button", name="temperature T: larger").click()
    assert said.text_content().startswith("temperature T = 0.079; ")


LOOK = """() => Promise.all([...document.querySelectorAll(".slider")].map(async (section) => {
  const slider = section.querySelector("input"), found = [];
  for (let i = 0; i <= slider.max; i++) {
    slider.value = i;
    slider.dispatchEvent(new Event("input"));
    const image = section.querySelector(".paper img");
    await image.decode();
    found.push([section.querySelector(".said").textContent, image.naturalWidth]);
  }
  return found;
}))"""


def test_each_chapters_frames_are_there(opened, folder):
    numbers = sorted(path.stem for path in (folder / "frames").glob("[0-9]*.html"))
    assert numbers
    page = opened("frames/index.html")
    assert page.evaluate("[...document.querySelectorAll('.chapters a')].length") == 2 * len(numbers)
    for number in numbers:
        page.goto((folder / "frames" / f"{number}.html").as_uri())
        for frames in page.evaluate(LOOK):
            assert len({said for said, _ in frames}) == len(frames) > 2
            assert min(width for _, width in frames) > 200


@pytest.mark.parametrize("size", [(1280, 720), (390, 844)])
def test_no_page_is_wider_than_the_window(browser, folder, size):
    page = browser.new_page(viewport={"width": size[0], "height": size[1]})
    for path in folder.rglob("*.html"):
        page.goto(path.as_uri() + "#still")
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0], path
    page.close()


# --- Bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--networks", "none.safetensors", "none.safetensors"], "no checkpoint at none.safetensors"),
        (["--draw", "99"], "draw: expected a chapter with sliders, 01, "),
    ],
)
def test_bad_input_is_told_in_a_line(tmp_path, monkeypatch, capsys, options, told):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["live", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"linattn-ref: error: {told}")
    assert not list(tmp_path.iterdir())


def test_two_networks_of_one_kind_are_no_pair(capsys, tmp_path):
    from linattn_ref.lecture.live import weights

    one = str(weights.SHIPPED[0])
    assert cli.main(["live", "--networks", one, one, "--out", str(tmp_path / "out")]) == 2
    assert "expected one with linear and one with softmax attention, got linear and linear" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
