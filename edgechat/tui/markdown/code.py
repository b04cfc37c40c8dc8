"""Syntax highlighting, a run of lines at a time."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from textual.content import Content, Span

if TYPE_CHECKING:
    from pygments.lexer import Lexer

# Code is highlighted in runs of lines, so that a growing block costs only its last run.
_RUN_AT_LEAST = 24
_RUN_AT_MOST = 48

_STYLES = (
    ("Comment", ".code-comment"),
    ("Keyword", ".code-keyword"),
    ("Operator.Word", ".code-keyword"),
    ("Literal.String", ".code-string"),
    ("Literal.Number", ".code-number"),
    ("Name.Function", ".code-name"),
    ("Name.Class", ".code-name"),
    ("Name.Tag", ".code-name"),
    ("Name.Decorator", ".code-name"),
    ("Name.Builtin", ".code-builtin"),
    ("Generic.Deleted", ".code-deleted"),
    ("Generic.Inserted", ".code-inserted"),
    ("Generic.Subheading", ".code-name"),
    ("Generic.Heading", ".strong"),
)
_DIFF = re.compile(r"(?:diff --git |Index: .*\n|--- .*\n\+\+\+ |@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@)")


def language_of(source: str, language: str) -> str:
    """Return the language of code; a diff is one without being called so."""
    return "diff" if not language and _DIFF.match(source) else language


def split_runs(source: str) -> list[str]:
    """Split source code into runs of lines that are highlighted independently.

    A run ends where a statement begins at the margin after an empty line: most strings end before it.
    """
    lines = source.expandtabs(4).split("\n")
    pieces: list[str] = []
    start = 0
    for at in range(1, len(lines)):
        length = at - start
        paragraph = not lines[at - 1].strip() and lines[at][:1].strip()
        if length >= _RUN_AT_MOST or (length >= _RUN_AT_LEAST and paragraph):
            pieces.append("\n".join(lines[start:at]))
            start = at
    pieces.append("\n".join(lines[start:]))
    return pieces


def highlighted(run: str, language: str) -> list[Content]:
    """Return the lines of a run with spans for their colours; plain for an unknown language."""
    lexer = _lexer(language.lower()) if language else None
    if lexer is None:
        return [Content(line) for line in run.split("\n")]
    at = 0
    spans: list[Span] = []
    for token_type, text in lexer.get_tokens(run):
        if (style := _style(token_type)) and text.strip():
            spans.append(Span(at, min(at + len(text), len(run)), style))
        at += len(text)
    return list(Content(run, spans).split(allow_blank=True))


@lru_cache(maxsize=256)
def _style(token_type: Any) -> str:
    from pygments.token import string_to_tokentype

    return next((style for name, style in _STYLES if token_type in string_to_tokentype(name)), "")


@lru_cache(maxsize=64)
def _lexer(language: str) -> Lexer | None:
    """Return the lexer for a language that Pygments itself has.

    Its own look-up searches every installed package for plugins: 50 ms for a name that a model made up.
    """
    from pygments.lexers import LEXERS, get_lexer_by_name

    if not any(language in aliases for _, _, aliases, _, _ in LEXERS.values()):
        return None
    return get_lexer_by_name(language, stripnl=False)
