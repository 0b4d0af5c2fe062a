"""The decks: what each has, how long it takes, and that its numbers were measured where its notes say."""

import base64
import json
import re
import shutil
from functools import cache
from pathlib import Path

import pytest

from linattn_ref import cli
from linattn_ref.data.fetch import FetchError
from linattn_ref.lecture.slides import deck, records

build = pytest.importorskip("linattn_ref.lecture.slides.build")

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks" / "slides"
CHAPTERS = sorted(path.stem for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.py"))
DECKS = [name for name in CHAPTERS if (FOLDER / f"{name}.md").exists()]
ONE_EACH = ("title", "question", "formula", "picture", "surprise", "exercise", "remember")
FROM = re.compile(r'^From (chapter (\d+)|README|the gallery): ((?:"[^"]+"(?:, )?)+)$', re.MULTILINE)
NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")
YEAR = re.compile(r"\b(?:19\d\d|20[12]\d)\b")


@cache
def slides_of(name):
    return deck.read(FOLDER / f"{name}.md").slides


@cache
def source_text(where):
    """What a reader of the executed chapter, of README or of the gallery sees, its white space made one."""
    if where.isdecimal():
        (path,) = (ROOT / "notebooks").glob(f"{int(where):02}_*.ipynb")
        parts = []
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            parts.append("".join(cell["source"]))
            for output in cell.get("outputs", ()):
                parts.append("".join(output.get("text", output.get("data", {}).get("text/markdown", ""))))
        text = "\n".join(parts)
    else:
        text = (ROOT / ("README.md" if where == "README" else "figures/README.md")).read_text(encoding="utf-8")
    return " ".join(text.split())


def quotes_of(slide):
    """Pairs of a place and what is quoted from it."""
    return [
        (found[2] or found[1], quote)
        for found in FROM.finditer(slide.note)
        for quote in re.findall(r'"([^"]+)"', found[3])
    ]


def said(slide):
    """What is written or said in words: no formulas, no code, no years, no references to records or chapters."""
    text = f"{slide.text}\n{re.sub(r'^From .*$', '', slide.note, flags=re.MULTILINE)}"
    text = re.sub(r"```.*?```|\$\$.*?\$\$|\$[^$]*\$|`[^`]*`|\{\{.*?\}\}", " ", text, flags=re.DOTALL)
    return YEAR.sub(" ", re.sub(r"[Cc]hapters? \d+( to \d+)?|equations [\d ]+to \d+|Theorem \d", " ", text))


def values(text):
    return [float(word.replace(",", "")) for word in re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?", text)]


def is_measured(word, quoted):
    """Whether a number, a hundredth (per cent) or a million of it is one of those quoted, rounded as it is written."""
    digits = len(word.partition(".")[2])
    number = float(word.replace(",", ""))
    return any(round(scale * value, digits) == number for value in quoted for scale in (1, 100, 1e-6))


def test_every_chapter_has_a_deck():
    missing = set(CHAPTERS) - set(DECKS)
    assert not missing
    assert {path.stem for path in FOLDER.glob("*.md")} == {*DECKS, "00_course", "00_short"}


@pytest.mark.parametrize("name", DECKS)
def test_a_deck_is_fifteen_slides_and_fifteen_minutes_at_most(name):
    slides = slides_of(name)
    kinds = [slide.kind for slide in slides]
    assert len(slides) <= 15
    assert sum(slide.minutes for slide in slides) <= 15
    assert [kind for kind in ONE_EACH if kinds.count(kind) != 1] == []
    assert any(slide.picture for slide in slides)


@pytest.mark.parametrize("name", DECKS)
def test_each_slide_has_a_title_and_something_to_say(name):
    for slide in slides_of(name):
        assert re.match(r"##? \S", slide.text)
        assert len(slide.note.split()) >= 8, slide.text


@pytest.mark.parametrize(("name", "least", "most"), [("00_course", 110, 120), ("00_short", 85, 90)])
def test_the_course_takes_two_hours_and_the_lecture_ninety_minutes(name, least, most):
    assert least <= sum(slide.minutes for slide in slides_of(name)) <= most


@pytest.mark.parametrize("name", DECKS)
def test_a_deck_is_written_out_word_for_word(name):
    """At 70 words per minute at least, which leaves time to look at a picture and to answer a question."""
    spoken = [(slide.text[:50], len(slide.spoken.split()) / slide.minutes) for slide in slides_of(name)]
    assert [each for each in spoken if each[1] < 70] == []


@pytest.mark.parametrize("name", DECKS)
def test_what_a_note_quotes_stands_there(name):
    for slide in slides_of(name):
        assert len(FROM.findall(slide.note)) == len(re.findall(r"^From ", slide.note, re.MULTILINE)), slide.note
        for where, quote in quotes_of(slide):
            assert " ".join(quote.split()) in source_text(where), f"{slide.text[:60]!r}: {quote!r} from {where}"


@pytest.mark.parametrize("name", DECKS)
def test_numbers_on_slides_were_measured(name):
    """Above a dozen or with a point, each is in what its slide's notes quote, or taken from a record."""
    for slide in slides_of(name):
        quoted = [value for _, quote in quotes_of(slide) for value in values(quote)]
        unknown = {
            word
            for word in NUMBER.findall(said(slide))
            if ("." in word or float(word.replace(",", "")) > 12) and not is_measured(word, quoted)
        }
        assert not unknown, f"{slide.text[:60]!r}: {unknown} are in no quotation"


@pytest.mark.parametrize("name", DECKS)
def test_numbers_of_records_are_there(name):
    for slide in slides_of(name):
        assert "{{" not in records.fill(slide.text + slide.note, ROOT / "figures")


def test_a_number_of_a_record_is_found_by_name_place_and_row(tmp_path):
    rows = [{"n": 8, "kernel": "a, b", "ms": 0.5}, {"n": 9, "kernel": "a, b", "ms": 0.25}]
    (tmp_path / "one.json").write_text(json.dumps({"results": {"rows": rows, "ratio": [1, 2.5]}}))
    text = "{{one: rows[n=9,kernel=a, b].ms * 1e3 | .0f}} ms, {{one: ratio[-1] | .1f}}, {{one: rows[0].ms | .0%}}"
    assert records.fill(text, tmp_path) == "250 ms, 2.5, 50%"
    with pytest.raises(ValueError, match=r"no such number in figures/one\.json"):
        records.fill("{{one: rows[n=7].ms | .1f}}", tmp_path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("# T\n\nNote:\nn\n", "slide 1 must begin with"),
        ("<!-- joke, 1 min -->\n# T\n\nNote:\nn\n", "KIND one of"),
        ("<!-- title, 1 min -->\n# T\n", "slide 1 has no note"),
        ("<!-- title, 1 min -->\n## T\n\nNote:\nn\n", "slide 1 must be a `title` or a `part`, with a title"),
        ("<!-- plan, 1 min -->\n# T\n\nNote:\nn\n", "slide 1 must be a `title` or a `part`"),
        ("<!-- title, 1 min -->\n# T\n\n![a](figure:b)\n\n![a](figure:c)\n\nNote:\nn\n", "2 pictures"),
        ("<!-- title, 1 min -->\n# T\n\n![a](mine.png)\n\nNote:\nn\n", r"would lose the picture !\[a\]\(mine\.png\)"),
        ("<!-- title, 1 min -->\n# T\n\n<img src='mine.png'>\n\nNote:\nn\n", "would lose the picture <img"),
    ],
)
def test_a_deck_that_is_not_whole_says_so(text, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        deck.parse(text, "01", tmp_path)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        *(("from 02: " + which, f"02_a.md has no slide '{which}'") for which in ("idea 0", "idea 3", "idea x", "code")),
        ("from 02: idea, ", "02_a.md has no slide ''"),
        ("from 99: idea", "99 is the number of 0 decks, not of one"),
        ("from 03: idea", "03 is the number of 2 decks, not of one"),
    ],
)
def test_a_slide_that_cannot_be_taken_is_named_with_its_deck(line, told, tmp_path):
    title, first, second = (
        f"<!-- {kind}, 1 min -->\n# {name}\n\nNote:\nn\n"
        for kind, name in (("title", "T"), ("idea", "A"), ("idea", "B"))
    )
    for name in ("02_a", "03_a", "03_b"):
        (tmp_path / f"{name}.md").write_text("---\n".join((title, first, second)))
    own = tmp_path / "00_own.md"
    own.write_text(f"{title}---\n<!-- from 02: idea 2, idea -->\n")
    assert [slide.text for slide in deck.read(own).slides] == ["# T", "# B", "# A"]
    own.write_text(f"{title}---\n<!-- {line} -->\n")
    with pytest.raises(ValueError, match=re.escape(f"00_own.md: slide 2, <!-- {line} -->: {told}")):
        deck.read(own)


def test_a_picture_of_the_lecturers_own_is_in_the_deck(tmp_path):
    pictures = pytest.importorskip("linattn_ref.lecture.slides.pictures")
    text = "<!-- title, 1 min -->\n# T\n\n![A square](file:my-own.png)\n\nNote:\nn\n"
    (slide,) = deck.parse(text, "01", tmp_path).slides
    assert slide.picture.source == "file:my-own.png"
    with pytest.raises(ValueError, match=r"no picture 'my-own\.png' in "):
        pictures.of(slide.picture.source, tmp_path)
    folder = tmp_path / "notebooks" / "slides"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "figures" / "pages" / "slide.png", folder / "my-own.png")
    drawn = pictures.of(slide.picture.source, tmp_path)
    assert drawn.address.startswith("data:image/png;base64,iVBORw0KGgo")
    assert 1.5 < drawn.ratio < 2
    content = (folder / "my-own.png").read_bytes() + b"<!-- which in SVG is no part of the picture -->"
    (folder / "my-other.png").write_bytes(content)
    assert pictures.of("file:my-other.png", tmp_path).address.endswith(base64.b64encode(content).decode())


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("figure:spectrum#x", "no picture 'figure:spectrum#x': expected figure:NAME,"),
        ("figure:nothing", "no picture 'figure:nothing': expected figure:NAME,"),
        ("notebook:01#99", "chapter 01 has \\d+ pictures, counted from 1; got 99"),
        ("notebook:99#1", "chapter 99 has 0 pictures, counted from 1; got 1"),
    ],
)
def test_a_picture_that_is_not_there_is_named(source, told):
    pictures = pytest.importorskip("linattn_ref.lecture.slides.pictures")
    with pytest.raises(ValueError, match=told):
        pictures.of(source, ROOT)


def test_a_fence_may_be_empty():
    assert '<pre class="code" style="font-size: 28px"></pre>' in build.page.markup.to_html("```\n```")


@pytest.mark.parametrize("word", ["0", "99", "five", "-1"])
def test_an_unknown_chapter_is_an_error_of_one_line(word, tmp_path, capsys):
    assert cli.main(["slides", "--out", str(tmp_path / "out"), "--", word]) == 2
    told = capsys.readouterr().err
    assert re.match(
        rf"linattn-ref: error: slides: no deck of chapter '{word}'; there are all, short, 1, 2, .*\n$", told
    )
    assert list(tmp_path.iterdir()) == []


def test_without_the_libraries_nothing_is_written(tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise FetchError("cannot fetch mathjax 3.2.2 from npm's registry")

    monkeypatch.setattr(build.page.npm, "read", refuse)
    assert cli.main(["slides", "1", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == "linattn-ref: error: cannot fetch mathjax 3.2.2 from npm's registry\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", DECKS)
def test_code_on_slides_is_there(name):
    for slide in slides_of(name):
        for source, lines in re.findall(r"^```source (\S+)\n(.*?)```$", slide.text, re.MULTILINE | re.DOTALL):
            assert len(build.page.markup.excerpt(source, lines.split("\n")[:-1]).splitlines()) <= 10


def test_a_deck_is_one_page(tmp_path):
    """All its slides, with pictures, formulas and code; the libraries, which are fetched, stand in for themselves."""
    found = {name: f"the {name}" for name in ("style", "typeset", "reveal", "notes", "licences")}
    text = build.rendered(FOLDER / "01_softmax_attention.md", found)
    slides, at_the_end = slides_of("01_softmax_attention"), text.count('class="slide sources')
    assert text.count("<section ") == text.count('<aside class="notes">') == len(slides) + at_the_end
    assert at_the_end >= 1
    said, _, where = text.partition('class="slide sources')
    quotes = [quote for slide in slides for _, quote in quotes_of(slide)]
    assert quotes
    assert all("From chapter" not in each for each in (said, *(slide.spoken for slide in slides)))
    assert "144 heads, 4096 tokens: 9 GiB of P for one sequence" in where
    assert "data:image/" in text
    assert all(each in text for each in found.values())


@pytest.mark.parametrize("name", ["00_course", "00_short"])
def test_the_plan_has_a_row_for_each_part(name):
    parts = [slide for slide in slides_of(name) if slide.kind in ("title", "part")]
    rows = re.findall("<tr><td>(\\d+:\\d\\d)</td>", build.page.plan(slides_of(name)))
    assert len(rows) == len(parts)
    assert rows[0] == "0:00"
