"""What is written of a growing text is never taken back, and in the end is what it looks like as a whole."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edgechat.base.text import printable
from edgechat.tui.markdown.document import Document
from edgechat.tui.markdown.stream import STYLES, MarkdownStream, as_escapes
from edgechat.tui.transcript.sheet import Sheet
from tests.properties import examples
from tests.tui.markdown.test_document import FENCE_WITH_WORDS, PIECES

ANSWER = r"""# Title

Some *emphasis that goes on for
more than a line*, `code`, [a link](http://x.y/z) and $\frac{a}{b}$; it costs $5 ** or * so.

- [x] done with **bold words in it**
- [ ] open
  1. nested

```python
def f(x):
    return "a rather long line of code that does not fit into the width at all"
```

| a | b |
|---|--:|
| one | two words |

$$
\frac{a}{b} = \sum_{i=1}^n i
$$

> quoted
> text[^1]

Setext
------
[^1]: note
"""


def written(pieces, width=40):
    stream, text = MarkdownStream(), ""
    for piece in pieces:
        stream.append(piece)
        text += "\n".join(part.plain for part in stream.take(width))
    return text + "\n".join(part.plain for part in stream.finish(width))


def whole(text, width=40):
    return "".join(f"{line.content.plain}\n" for line in Document(text, filled=False).lines(width))


@pytest.mark.slow
@settings(max_examples=examples(20), deadline=None)
@given(st.data())
def test_an_answer_is_written_as_it_looks_however_it_arrives(data):
    pieces, rest = [], ANSWER
    while rest:
        size = data.draw(st.integers(1, 40))
        pieces.append(rest[:size])
        rest = rest[size:]
    assert written(pieces) == whole(ANSWER)


@pytest.mark.slow
@pytest.mark.parametrize("width", [10, 40, 100])
def test_letter_by_letter(width):
    assert written(list(ANSWER), width) == whole(ANSWER, width)


@pytest.mark.slow
@given(st.lists(PIECES, max_size=20))
def test_no_word_is_lost(pieces):
    source = printable("".join(pieces))
    assume(not FENCE_WITH_WORDS.search(source))
    text = written([printable(piece) for piece in pieces])
    assert text.count("word") >= source.count("word")
    assert printable(text) == text


def test_prose_is_written_word_by_word():
    stream = MarkdownStream()
    seen = []
    for piece in ("Hello wor", "ld, this **is", " bold** and", " so on"):
        stream.append(piece)
        seen.append("\n".join(part.plain for part in stream.take(80)))
    assert seen == ["Hello", " world, this", " is bold", " and so"]


@pytest.mark.parametrize("inside", ["", "> ", "- x\n\n  "])
@pytest.mark.parametrize("after", ["$$\nx^2\n$$\nrest\n", "$$x$$ | y\n\nz\n", "$$ no | maths\nrest\n", "$$"])
def test_a_table_before_a_formula_is_written_as_it_looks(inside, after):
    between = inside.rpartition("\n")[2]
    rows = f"\n{between}".join(["| a | b |", "|---|---|", "| one | two |"])
    text = f"{inside}{rows}\n{after}"
    for size in (1, 5):
        assert written([text[at : at + size] for at in range(0, len(text), size)]) == whole(text)


def test_a_table_waits_for_its_end():
    stream = MarkdownStream()
    stream.append("Look:\n\n| a | b |\n|---|---|\n| c |")
    assert [part.plain for part in stream.take(40)] == ["Look:", ""]
    assert stream.waits_for == "table"
    assert stream.at_line_start


def test_a_resize_counts_from_the_next_block_on():
    stream = MarkdownStream()
    stream.append("word " * 12)
    text = "\n".join(part.plain for part in stream.take(30))
    stream.append("word " * 6 + "\n\n" + "more " * 12 + "\n")
    text += "\n".join(part.plain for part in stream.take(20))
    text += "\n".join(part.plain for part in stream.finish(20))
    lines = text.split("\n")
    assert " ".join(lines).split() == ["word"] * 18 + ["more"] * 12
    assert max(len(line) for line in lines if "word" in line) == 29
    assert max(len(line) for line in lines if "more" in line) == 19


def test_styles_are_those_of_the_app(monkeypatch):
    assert {name[1:] for name in STYLES} <= Sheet.COMPONENT_CLASSES
    stream = MarkdownStream()
    stream.append("**a** `b` [c](http://d.e)")
    pieces = stream.finish(40)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1ma\x1b[0m \x1b[36mb\x1b[0m" in as_escapes(pieces)
    assert ";http://d.e\x1b\\" in as_escapes(pieces)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1ma\x1b[0m b " in as_escapes(pieces)
