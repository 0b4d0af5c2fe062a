"""Minutes, breaks and routes of the course."""

from pathlib import Path

import pytest

from linattn_ref.experiments.publishing import course

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
CHAPTERS = sorted(NOTEBOOKS.glob("[0-9][0-9]_*.py"))
TEXT = """# %% [markdown]
# # 7. A title
#
# {words}

# %%
{lines}

# %% [markdown]
# ## One
#
# ### Its part
#
# {words}
#
# > **A break.** What was said.

# %% [markdown]
# ## Two
#
# {words}
"""


def test_minutes_are_words_and_lines_and_a_break_begins_a_sitting(tmp_path):
    text = TEXT.format(words="word " * 400, lines="x = 1\n\n" * 30)
    opening, one, two = course.of_text(text)
    assert opening == ("7. A title", (400 + 4) / 200 + 2, 0)
    assert one == ("One", (400 + 5 + 6) / 200, 0)
    assert two == ("Two", (400 + 2) / 200, 1)
    (tmp_path / "07_x.py").write_text(text, encoding="utf-8")
    assert course.sittings(tmp_path / "07_x.py") == [opening.minutes + one.minutes, two.minutes]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_no_sitting_is_longer_than_three_quarters_of_an_hour(path):
    assert max(course.sittings(path)) <= course.SITTING
    assert len(course.sittings(path)) <= 2
    assert course.needs(path)


def test_what_may_be_skipped_and_what_is_read_is_there():
    for number, titles in course.MAY_SKIP.items():
        (path,) = (path for path in CHAPTERS if path.name.startswith(number))
        assert 0 < course.chosen(path, titles) < sum(course.sittings(path)) / 2
    assert 90 <= sum(stop[2] for stop in course.evening(NOTEBOOKS)) <= 180


def test_a_section_that_is_not_there_is_named(tmp_path):
    (tmp_path / "07_x.py").write_text("# %% [markdown]\n# # 7. A title\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"07_x\.py: no section 'Two'; there are 7\. A title"):
        course.chosen(tmp_path / "07_x.py", ("Two",))
    with pytest.raises(ValueError, match=r"07_x\.py: expected a sentence that begins with 'You need'"):
        course.needs(tmp_path / "07_x.py")
