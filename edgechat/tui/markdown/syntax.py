r"""Maths, footnotes and citations for markdown-it.

Maths is written as $..$, \(..\), $$..$$, \[..\] or \begin{align}..\end{align}. mdit-py-plugins recognizes a
formula only once its end has arrived. Here, an unfinished formula is also a token, shown as written, so that
nothing flickers while it is streamed and Markdown consumes none of its backslashes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from edgechat.base.latex.symbols import LINES, SUPERSCRIPTS, scripted
from edgechat.documents.citations import CITATION, CITATIONS

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline

_CLOSING = {"$": "$", "$$": "$$", "\\(": "\\)", "\\[": "\\]"}
_LONGEST = 2000
"""Maximum length of an inline formula, which bounds the search for its end."""
_LATEX = frozenset(",;:{}()]%&\"'/=?@^")
"""A backslash before one of these is LaTeX or meaningless. It is kept, although CommonMark would drop it."""
_COMMAND = re.compile(r"\\(?:text\w*|mathrm|mbox|operatorname)\*?\s*\{[^{}]*\}|\\[A-Za-z]+|\\.")
_SIGN = re.compile(r"\\[A-Za-z]|[\^_]")
_PROSE = re.compile(r"[A-Za-z\d][,.;:!?]?\s+[A-Za-z]{2,}")
_FOOTNOTE = re.compile(r"\[\^(\w{1,12})\]")
_BEGIN = re.compile(r"\\begin\{(\w{1,20}\*?)\}")
_PUNCTUATION = ".,;:"


class _Formula(NamedTuple):
    """A formula found at a position: where it ends, and whether that end has arrived."""

    inside: str
    end: int
    closed: bool = True


def enable(parser: MarkdownIt) -> MarkdownIt:
    """Add the rules to a parser and return it."""
    parser.block.ruler.before("fence", "maths", _block, {"alt": ["paragraph", "blockquote", "list"]})
    parser.inline.ruler.before("escape", "maths", _inline)
    parser.inline.ruler.before("link", "footnote", _footnote)
    parser.inline.ruler.before("link", "citation", _citation)
    return parser


# Inline rules.


def _inline(state: StateInline, silent: bool) -> bool:
    source, at = state.src, state.pos
    if source[at] not in "$\\":
        return False
    if (formula := _formula_at(source, at, state.posMax)) is not None:
        if not silent:
            token = state.push("math_inline" if formula.closed else "math_unfinished", "", 0)
            token.markup, token.content = source[at : formula.end], formula.inside
        state.pos = formula.end
        return True
    if source[at] == "\\" and (bracketed := _bracketed_words(source, at, state.posMax)):
        text, state.pos = f"[{bracketed}]", at + len(bracketed) + 4
    elif source[at] == "\\" and at + 1 < state.posMax and source[at + 1] in _LATEX | {"["}:
        text, state.pos = source[at : at + 2], at + 2
    else:
        return False
    if not silent:
        state.push("text", "", 0).content = text
    return True


def _formula_at(source: str, at: int, end: int) -> _Formula | None:
    opening = source[at : at + 2]
    if opening not in _CLOSING:
        opening = source[at]
    if opening not in _CLOSING:
        return None
    if opening == "$" and not _may_open(source, at, end):
        return None
    begin = at + len(opening)
    close = _closing(source, opening, begin, min(end, begin + _LONGEST))
    if close < 0:
        rest = source[begin:end] if end - begin < _LONGEST else ""
        unfinished = _SIGN.search(rest) and not _is_prose(rest)
        return _Formula(rest, end, closed=False) if unfinished else None
    inside = source[begin:close]
    if not inside.strip() or not _is_maths(inside, opening):
        return None
    return _Formula(inside, close + len(_CLOSING[opening]))


def _may_open(source: str, at: int, end: int) -> bool:
    before = source[at - 1] if at else " "
    return not (before.isalnum() or before in "$\\") and at + 1 < end and not source[at + 1].isspace()


def _closing(source: str, opening: str, begin: int, end: int) -> int:
    """Return the index of a formula's closing delimiter, or -1 if it has none or is a price such as $5."""
    if opening != "$":
        return source.find(_CLOSING[opening], begin, end)
    close = begin
    while (close := source.find("$", close, end)) > 0 and source[close - 1] == "\\":
        close += 1
    inside, after = source[begin:close], source[close + 1 : close + 2]
    if close < 0 or "\n" in inside or inside[-1:].isspace() or after == "$":
        return -1
    # Allows the $n$th, but not $5/$6 or $HOME/$USER.
    may_have_letters_after = _COMMAND.search(inside) or (len(inside) == 1 and inside.isalpha())
    return -1 if after.isdigit() or (after.isalpha() and not may_have_letters_after) else close


def _is_maths(inside: str, opening: str) -> bool:
    """Return whether text between delimiters is a formula rather than prose with prices or brackets."""
    if opening == "\\(" or re.search(r"\\[A-Za-z]", inside):
        return True
    if opening == "\\[" and re.fullmatch(r"[\w\s,.'’-]{2,}", inside):
        return False
    return not _is_prose(inside)


def _is_prose(text: str) -> bool:
    """Return whether the text has two words in a row outside LaTeX commands."""
    return _PROSE.search(_COMMAND.sub(" ", text)) is not None


def _bracketed_words(source: str, at: int, end: int) -> str:
    r"""Return the text in escaped brackets, as in `\[citation needed\]`, or '' if there is none."""
    if source[at : at + 2] != "\\[":
        return ""
    close = source.find("\\]", at, min(end, at + _LONGEST))
    inside = source[at + 2 : close] if close > 0 else ""
    return inside if inside.strip() and not _is_maths(inside, "\\[") and "\n" not in inside else ""


def _footnote(state: StateInline, silent: bool) -> bool:
    """Parse a footnote mark, either in the text or before the note itself: [^1] becomes ¹."""
    match = _FOOTNOTE.match(state.src, state.pos, state.posMax)
    if match is None:
        return False
    if not silent:
        token = state.push("footnote", "", 0)
        token.markup = match[0]
        token.content = scripted(match[1], SUPERSCRIPTS) or match[0]
    state.pos = match.end()
    return True


def _citation(state: StateInline, silent: bool) -> bool:
    """Parse one or more citations of passages: [1] or [1, 3]."""
    match = CITATIONS.match(state.src, state.pos, state.posMax) if state.src[state.pos] == "[" else None
    if match is None:
        return False
    for one in () if silent else CITATION.finditer(match[0]):
        state.push("citation", "", 0).content = one[0]
    state.pos = match.end()
    return True


# Block rule.


def _block(state: StateBlock, begin: int, end: int, silent: bool) -> bool:
    """Parse a displayed formula. An unfinished one runs to the end of the text and has empty content."""
    if state.is_code_block(begin):
        return False
    first = state.src[state.bMarks[begin] + state.tShift[begin] : state.eMarks[begin]]
    opening, closing = _display_at(first)
    if not opening:
        return False
    line, found = begin, False
    while True:
        text = state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]].rstrip()
        inside = text[len(opening) :] if line == begin else text
        found = inside.rstrip(_PUNCTUATION).endswith(closing)
        line += 1
        if found:
            break
        if closing in inside:  # a paragraph that contains formulas
            return False
        if line >= end or state.isEmpty(line) or state.sCount[line] < state.blkIndent:
            break
    lines = state.getLines(begin, line, state.blkIndent, False)
    if not found and (line < end or not _may_be_unfinished(lines, opening)):
        return False
    formula = ""
    if found:
        whole = lines.strip()
        formula = whole.rstrip(_PUNCTUATION)
        after = whole[len(formula) :]
        if opening in _CLOSING:
            formula = formula[len(opening) : -len(closing)]
            if not _is_maths(formula, opening):
                return False
        formula += after
    if not silent:
        state.line = line
        token = state.push("math_block", "", 0)
        token.map = [begin, line]
        token.markup, token.content = lines.rstrip("\n"), formula
    return True


def _display_at(line: str) -> tuple[str, str]:
    """Return the delimiters of a displayed formula at the start of the line, or ('', '') if there is none."""
    if line.startswith(("$$", "\\[")) and line[2:3] != "$":
        return line[:2], _CLOSING[line[:2]]
    match = _BEGIN.match(line)
    if match is None or match[1].removesuffix("*") not in LINES:
        return "", ""
    return match[0], f"\\end{{{match[1]}}}"


def _may_be_unfinished(lines: str, opening: str) -> bool:
    rest = lines.strip()[len(opening) :]
    return opening.startswith("\\begin") or not rest.strip() or not _is_prose(rest.split("\n")[0])
