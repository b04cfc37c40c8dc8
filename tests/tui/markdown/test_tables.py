from hypothesis import given
from hypothesis import strategies as st
from textual.content import Content

from edgechat.tui.markdown.document import Document
from edgechat.tui.markdown.layout import table_lines


def shown(text, width):
    return [line.content.plain.rstrip() for line in Document(text).lines(width)]


TABLE = "| Name | Size | Where |\n|:--|--:|:-:|\n| a | 1 | x |\n| long name | 1000 | somewhere |"


def test_columns_are_aligned_as_the_table_says():
    assert shown(TABLE, 60) == [
        "Name       Size    Where",
        "─────────  ────  ─────────",
        "a             1      x",
        "long name  1000  somewhere",
    ]


def test_cells_are_wrapped_at_words_and_rows_then_told_apart():
    text = "| A | B |\n|---|---|\n| some words here | and a few others there |\n| c | d |"
    assert shown(text, 24) == [
        *("A            B", "───────────  ───────────", "some words   and a few", "here         others"),
        *("             there", "───────────  ───────────", "c            d"),
    ]


def test_a_table_that_cannot_fit_becomes_a_list():
    text = "| Name | Description | Reference | Consequence |\n|---|---|---|---|\n"
    text += "| a | one | two | *three* |\n| b | | | |"
    assert shown(text, 30) == [
        *("Name: a", "Description: one", "Reference: two", "Consequence: three", ""),
        *("Name: b", "Description:", "Reference:", "Consequence:"),
    ]


CELLS = st.text("ab 字é", max_size=30)


@given(st.lists(st.lists(CELLS, min_size=1, max_size=6), min_size=1, max_size=5), st.integers(8, 80))
def test_every_table_fits_and_keeps_its_letters(cells, width):
    rows = [tuple(map(Content, row)) for row in cells]
    lines = table_lines(rows, [], width)
    assert all(line.cell_length <= width for line in lines)
    text = "".join(line.plain for line in lines)
    repeated = len(rows) > 1 and ":" in text
    for letter in "ab字é":
        count = sum(row.plain.count(letter) for line in cells for row in map(Content, line))
        assert text.count(letter) >= count if repeated else text.count(letter) == count
