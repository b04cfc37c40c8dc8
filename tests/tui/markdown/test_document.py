import re
from functools import partial

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.style import Style

from edgechat.base.text import printable
from edgechat.tui.markdown.document import CITED, Document, Sources
from tests.counting import calls_of

WIDTH = 40


def shown(text, width=WIDTH):
    return [line.content.plain.rstrip() for line in Document(text).lines(width)]


def test_prose():
    found = shown("# Title\n\nHello **you**,\nand [here](http://x.y).\n\n---")
    assert found == ["Title", "━━━━━", "", "Hello you,", "and here (http://x.y).", "", "─" * WIDTH]


def test_lists_keep_their_marks_and_the_lines_their_writer_left_empty():
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


def test_long_lines_hang_from_their_mark():
    assert shown("- " + "word " * 12) == ["• " + "word " * 6 + "word", "  " + "word " * 4 + "word"]


def test_code_is_shown_as_it_is_and_folded():
    assert shown("```py\nif x:\n\ty = '<b>'\n\n" + "z" * 50 + "\n```") == [
        "▏ py" + " " * 31 + "copy",
        "▏ if x:",
        "▏     y = '<b>'",
        "▏",
        "▏ " + "z" * 37,
        "↪ " + "z" * 13,
    ]


def test_a_table_fits():
    text = "| Way | Memory |\n|---|---|\n| `a` | none |\n| b | " + "much " * 10 + "|"
    lines = shown(text)
    assert lines[3] == "───  " + "─" * 35  # rows of several lines are told apart
    assert lines[:3] == ["Way  Memory", "───  " + "─" * 35, "a    none"]
    assert max(map(len, lines)) <= WIDTH
    assert " ".join(lines).count("much") == 10


def test_html_and_thinking_tags_are_text():
    text = "<b>bold</b> <think>\n\n<div>\nx\n</div>"
    assert shown(text) == text.split("\n")


@pytest.mark.parametrize("language", ["python", "PYTHON", "nonesuch", "c++", "{.py}", ""])
def test_any_language_will_do(language):
    name, code = shown(f"```{language}\nx = 1\n```")
    assert (name.split(), code) == (["▏", *filter(None, [language]), "copy"], "▏ x = 1")


def test_colours_are_spans_named_after_what_they_mean():
    _, line = Document("```python\ndef f(): return 'x'  # why\n```").lines(WIDTH)
    found = {line.content.plain[span.start : span.end]: span.style for span in line.content.spans}
    assert found["def"] == found["return"] == ".code-keyword"
    assert found["# why"] == ".code-comment"


def styles_of(text):
    lines = Document(text).lines(WIDTH)
    return {
        line.content.plain[span.start : span.end]: span.style
        for line in lines
        for span in line.content.spans
        if isinstance(span.style, str) and span.style != ".code-block"
    }


@pytest.mark.parametrize(
    "text", ["```diff\n-old\n+new\n```", "```\n--- a\n+++ b\n@@ -1 +1 @@\n-old\n+new\n```"]
)
def test_a_diff_is_red_and_green_whether_it_is_called_one_or_not(text):
    found = {part.strip(): style for part, style in styles_of(text).items()}
    assert (found["-old"], found["+new"]) == (".code-deleted", ".code-inserted")


def test_levels_of_headings_differ():
    assert shown("# A\n## B\n### C\n#### D") == ["A", "━", "", "B", "─", "", "C", "", "D"]
    found = styles_of("# A\n## B\n### C\n#### D\n##### E\n###### F")
    assert [found[name] for name in "ABCDEF"] == [f".heading-{level}" for level in (1, 2, 3, 4, 5, 5)]


def test_checkboxes():
    text = "- [ ] open\n- [x] done\n  - [X] below\n1. [ ] first\n\n[x] prose\n\n"
    text += "- [x](http://y.z)\n- [y] no\n- [x]no"
    assert shown(text) == [
        *("☐ open", "☑ done", "  ☑ below", "", " 1. ☐ first", "", "[x] prose", ""),
        *("• x (http://y.z)", "• [y] no", "• [x]no"),
    ]


def test_the_backslashes_of_latex_stay_and_those_of_markdown_go():
    assert shown(r"a\,b \; \{x\} 5\% \*not\* \_so\_ \# \`x\` \[citation needed\] 1\. a\|b") == [
        r"a\,b \; \{x\} 5\% *not* _so_ # `x`",
        "[citation needed] 1. a|b",
    ]


def test_names_of_addresses_and_footnotes_stay():
    assert shown("See [this][a].[^1][^why]\n\n[a]: http://x.y\n\n[^1]: Note") == [
        *("See [this][a].¹ʷʰʸ", "", "[a]: http://x.y", "", "¹: Note")
    ]


PIECES = st.sampled_from(
    [
        *("- ", "* ", "1. ", "2) ", "> ", "# ", "-", "#", "*", "**", "`", "\\", "---", "==="),
        *("```\n", "```py\n", "~~~\n", "    ", "  ", "\t", "\n", "\n\n", "\u2028"),
        # Not right behind the mark of an item: CommonMark makes a table of some such, depending on the item.
        *("\n\na | b\n---|---\nc | d\n", "[x](y)", "<b>", "word ", "word\n"),
        *("$", "$$", "\n$$\n", "\\(", "\\)", "\\[", "\n\\]\n", "\\frac{a}{b}", "x^2", "[ ] ", "[^1]"),
    ]
)


FENCE_WITH_WORDS = re.compile(r"(?:```|~~~).*word")
"""What stands behind a fence is cut to the width."""


@pytest.mark.slow
@given(st.lists(PIECES, max_size=30).map("".join), st.data())
def test_a_text_looks_the_same_however_it_arrives(text, data):
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


@pytest.mark.parametrize(
    "text",
    ["- -$\n$$\n```\n", "- - <b>\n$$\n\n$$\n", "- -\n\na | b\n---|---\nc | d\n$$\\frac{a}{b}x^2```\n$$```\n"],
)
def test_a_formula_that_turns_out_to_be_words_belongs_to_what_stands_before(text):
    whole = [line.content.plain for line in Document(text).lines(WIDTH)]
    for at in range(1, len(text)):
        grown = Document(text[:at])
        grown.append(text[at:])
        assert [line.content.plain for line in grown.lines(WIDTH)] == whole, at


@given(st.lists(PIECES, max_size=30).map("".join))
def test_no_word_is_lost_and_no_line_too_wide(text):
    assume(not FENCE_WITH_WORDS.search(text))
    lines = [line.content.plain for line in Document(text).lines(WIDTH)]
    unfolded = "".join(re.sub(r"^\W*↪ ", "", line.rstrip()) for line in lines)  # of code that is too wide
    assert len(re.findall("word", text)) == len(re.findall("word", unfolded))
    assert max(map(cell_len, lines), default=0) <= WIDTH or max(line.count("▎") for line in lines) > 5


@given(st.text(st.characters(codec="utf-8"), max_size=200), st.integers(1, 60))
def test_no_control_character_comes_out_whatever_goes_in(text, width):
    source = printable(text + "&#x202e;&#12; [a](http://x&#x202e;y) ```&#x202e;\n")
    for line in Document(source).lines(width):
        assert printable(line.content.plain) == line.content.plain


@pytest.mark.slow
def test_growing_costs_what_comes_and_not_what_there_is():
    item = "{}. **Item** with some `code` and words to it\n"
    line = "def f{}(x): return str(x) + 'abc'  # comment\n"
    for first, more in (("", item), ("```python\n", line), ("", "Some *prose* {} as models write it.\n\n")):
        document = Document(first)

        def grow(text, document=document):
            document.append(text)
            document.lines(100)

        costs = [calls_of(partial(grow, more.format(at))) for at in range(1, 150)]
        assert sum(costs[-30:]) < 2 * sum(costs[20:50])


def test_numbers_of_passages_are_links_and_others_plain():
    text = "See [1], **[2]** and [2; 9], not [3], `[1]`, a[1] or [1](http://x.y).\n\n| a |\n|---|\n| b [1] |"
    document = Document(text, sources=Sources((1, 2)))
    lines = [line.content for line in document.lines(100)]
    assert lines[0].plain == "See [1], [2] and [2; 9], not [3], [1], a[1] or 1 (http://x.y)."
    cited = [
        (line.plain[span.start : span.end], span.style.meta[CITED])
        for line in lines
        for span in line.spans
        if isinstance(span.style, Style) and CITED in span.style.meta
    ]
    assert cited == [("[1]", 1), ("[2]", 2), ("[2", 2), ("[1]", 1)]
    styles = [span.style for line in Document(text).lines(100) for span in line.content.spans]
    assert ".citation" not in styles
