from __future__ import annotations

import re
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat.tui.markdown.document import Document
from tests.counting import calls_of

WIDTH = 40


def shown(text: str, width: int = WIDTH) -> list[str]:
    return [line.content.plain.rstrip() for line in Document(text).lines(width)]


def test_prose() -> None:
    assert shown("# Title\n\nHello **you**,\nand [here](http://x.y).\n\n---") == [
        "Title",
        "",
        "Hello you,",
        "and here (http://x.y).",
        "",
        "─" * 24,
    ]


def test_lists_keep_their_marks_and_the_lines_their_writer_left_empty() -> None:
    text = "- a\n  - b\n    - c\n- d\n\n  more\n\n3. x\n4. y\n\n5. z\n\n> q\n> > r"
    assert shown(text) == [
        "• a",
        "  ◦ b",
        "    ▪ c",
        "• d",
        "",
        "  more",
        "",
        " 3. x",
        " 4. y",
        "",
        " 5. z",
        "",
        "▎ q",
        "",
        "▎ ▎ r",
    ]


def test_long_lines_hang_from_their_mark() -> None:
    assert shown("- " + "word " * 12) == ["• " + "word " * 6 + "word", "  " + "word " * 4 + "word"]


def test_code_is_shown_as_it_is_and_folded() -> None:
    assert shown("```py\nif x:\n\ty = '<b>'\n\n" + "z" * 50 + "\n```") == [
        "▏ if x:",
        "▏     y = '<b>'",
        "▏",
        "▏ " + "z" * 38,
        "▏ " + "z" * 12,
    ]


def test_a_table_fits() -> None:
    text = "| Way | Memory |\n|---|---|\n| `a` | none |\n| b | " + "much " * 10 + "|"
    lines = shown(text)
    assert lines[:3] == ["Way  Memory", "───  " + "─" * 35, "a    none"]
    assert max(map(len, lines)) <= WIDTH
    assert " ".join(lines).count("much") == 10


def test_html_and_thinking_tags_are_text() -> None:
    text = "<b>bold</b> <think>\n\n<div>\nx\n</div>"
    assert shown(text) == text.split("\n")


@pytest.mark.parametrize("language", ["python", "PYTHON", "nonesuch", "c++", "{.py}", ""])
def test_any_language_will_do(language: str) -> None:
    assert shown(f"```{language}\nx = 1\n```") == ["▏ x = 1"]


def test_colours_are_spans_named_after_what_they_mean() -> None:
    (line,) = Document("```python\ndef f(): return 'x'  # why\n```").lines(WIDTH)
    found = {line.content.plain[span.start : span.end]: span.style for span in line.content.spans}
    assert found["def"] == found["return"] == ".code-keyword"
    assert found["# why"] == ".code-comment"


PIECES = st.sampled_from(
    [
        *("- ", "* ", "1. ", "2) ", "> ", "# ", "-", "#", "*", "**", "`", "\\", "---", "==="),
        *("```\n", "```py\n", "~~~\n", "    ", "  ", "\t", "\n", "\n\n", "\u2028"),
        # Not right behind the mark of an item: CommonMark makes a table of some such, depending on the item.
        *("\n\na | b\n---|---\nc | d\n", "[x](y)", "<b>", "word ", "word\n"),
    ]
)


@given(st.lists(PIECES, max_size=30).map("".join), st.data())
def test_a_text_looks_the_same_however_it_arrives(text: str, data: st.DataObject) -> None:
    grown = Document()
    rest = text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        grown.append(rest[:size])
        rest = rest[size:]
        grown.lines(WIDTH)
    assert [line.content.plain for line in grown.lines(WIDTH)] == [
        line.content.plain for line in Document(text).lines(WIDTH)
    ]


@given(st.lists(PIECES, max_size=30).map("".join))
def test_no_word_is_lost_and_no_line_too_wide(text: str) -> None:
    lines = [line.content.plain for line in Document(text).lines(WIDTH)]
    assert len(re.findall("word", text)) == len(re.findall("word", "".join(lines)))


@pytest.mark.slow
def test_growing_costs_what_comes_and_not_what_there_is() -> None:
    item = "{}. **Item** with some `code` and words to it\n"
    line = "def f{}(x): return str(x) + 'abc'  # comment\n"
    for first, more in (("", item), ("```python\n", line), ("", "Some *prose* {} as models write it.\n\n")):
        document = Document(first)

        def grow(text: str, document: Document = document) -> None:
            document.append(text)
            document.lines(100)

        costs = [calls_of(partial(grow, more.format(at))) for at in range(1, 150)]
        assert sum(costs[-30:]) < 2 * sum(costs[20:50])
