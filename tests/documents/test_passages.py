"""From texts to passages: nothing lost, nothing twice, and the lines are told as they are."""

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.documents.passages import MOST_LETTERS, passages_of
from tests.properties import examples

LINES = st.one_of(
    st.text(max_size=80),
    st.sampled_from(["", "# One", "## Two", "###### Six ##", "```", "~~~~", "def f():", "class A:", "    x"]),
    st.text(alphabet="ab. ", min_size=1000, max_size=4000),
)


def passages(text, *, is_code=False):
    return list(passages_of(text, is_code=is_code))


@pytest.mark.slow
@given(st.lists(LINES, max_size=60).map("\n".join), st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_nothing_is_lost_or_twice(text, is_code):
    found, lines = passages(text, is_code=is_code), text.split("\n")
    assert "".join("".join(one.text for one in found).split()) == "".join(text.split())
    for one in found:
        assert one.text.strip()
        assert len(one.text) <= MOST_LETTERS + 1
        there = "\n".join(lines[one.start - 1 : one.end])
        assert there == one.text if one.start < one.end else one.text in there
    for before, after in pairwise(found):
        assert before.end <= after.start
        assert before.section <= after.section


@pytest.mark.parametrize("ending", ["", "\n"])
def test_headings_are_told_with_those_above_them(ending):
    body = "Words of a section that is long enough. " * 6
    text = (
        f"# Install\n{body}\n## Linux ##\n{body}\n### Debian\n{body}\n## macOS\n{body}\n# Use\n{body}{ending}"
    )
    found = passages(text)
    titles = ["Install", "Install > Linux", "Install > Linux > Debian", "Install > macOS", "Use"]
    assert [(one.heading, one.section) for one in found] == [(title, n) for n, title in enumerate(titles)]
    assert [(one.start, one.end) for one in found] == [(1, 2), (3, 4), (5, 6), (7, 8), (9, 10)]


def test_what_is_in_fences_is_no_heading():
    body = "# a comment of the shell, which is no heading\n" * 9
    (only,) = passages(f"# Title\n````sh\n```\n{body}````")
    assert only.heading == "Title"


def test_short_sections_are_joined():
    (only,) = passages("# A\none\n# B\ntwo\n# C\nthree")
    assert (only.heading, only.start, only.end) == ("A", 1, 6)


def test_code_is_cut_at_definitions():
    text = "\n".join(f"def f{n}():\n" + "    some_call()\n" * 20 for n in range(9))
    assert all(one.text.startswith("def f") and not one.heading for one in passages(text, is_code=True))
    assert len(passages(text, is_code=True)) == 9


def test_passages_end_at_blank_lines():
    paragraph = "\n".join(["A line of some words, and others."] * 8)
    found = passages("\n\n".join([paragraph] * 9))
    assert all(len(one.text.split("\n\n")) > 1 or one is found[-1] for one in found)
    assert all(one.text.startswith("A line") and one.text.endswith("others.") for one in found)


def test_long_lines_are_cut_behind_sentences():
    sentence = "Dieser Satz ist nicht lang, aber es gibt ihn oft."
    found = passages("first\n" + " ".join([sentence] * 200) + "\nlast")
    assert [(one.start, one.end) for one in found[1:-1]] == [(2, 2)] * (len(found) - 2)
    assert all(re.fullmatch(f"({sentence} ?)+", one.text) for one in found[1:-1])
    assert "".join(passages("語" * 5000)[0].text) == "語" * MOST_LETTERS
