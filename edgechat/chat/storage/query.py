"""What people type to search for, and where it is found in a text.

Every word must occur, the last one as the beginning of a word. Case and diacritics make no difference. What
the index knows no words of (scripts without spaces, signs as in "C++") is looked for letter by letter.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from edgechat.base.text import one_line

_LONGEST, _MOST_WORDS = 200, 12
_SNIPPET, _BEFORE = 160, 40
_MOST_PLACES = 200
"""Places of a word in one text that are looked at."""

# Thai, Lao, Burmese, Khmer, Hangul, kana and Han: words begin anywhere.
_WIDE = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
_SIGN = re.compile(r"""[^\w\s\u0300-\u036f"'`‘’“”«».,;:!?¡¿()\[\]{}*…/\\–—-]""")
"""Signs that tell words apart, as in C++ and C#; others stand beside words."""
_MARKS = "[\u0300-\u036f]*"


class _Folding(dict[int, str]):
    """From a letter's code to the letter without case and diacritics: always one for one."""

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        parts = unicodedata.normalize("NFD", letter)
        base = parts[0]
        if _WIDE.match(letter) or not all(map(unicodedata.combining, parts[1:])):
            base = letter
        lower = base.lower()
        folded = self[code] = lower if len(lower) == 1 else letter
        return folded


_FOLDING = _Folding()


def folded(text: str) -> str:
    """Return `text` without case and diacritics, each character in its place."""
    return text.lower() if text.isascii() else text.translate(_FOLDING)


@dataclass(frozen=True, slots=True)
class SearchWord:
    """One of the words that are looked for."""

    text: str
    is_last: bool
    is_literal: bool
    """It is looked for letter by letter."""
    pattern: re.Pattern[str]
    """Finds it in a folded text."""

    @property
    def match(self) -> str | None:
        """What finds it in the index, and perhaps more; None where the index cannot."""
        if _WIDE.search(self.text) or not any(map(str.isalnum, self.text)):
            return None
        # A string in quotes is no syntax: its words must follow each other.
        quoted = self.text.replace('"', " ")
        return f'"{quoted}"{"*" if self.is_last else ""}'

    @property
    def like(self) -> str | None:
        """The pattern of a LIKE with escapes, for a literal word."""
        if not self.is_literal:
            return None
        return "%" + re.sub("([%_~])", r"~\1", self.text) + "%"


@dataclass(frozen=True, slots=True)
class Snippet:
    """The line around what was found, and where that is in it."""

    text: str
    marks: tuple[tuple[int, int], ...]
    n_words: int
    """How many of the words the text has, be it outside the line."""


def words_of(typed: str) -> list[SearchWord]:
    """Return the words of what was typed, of which nothing is syntax."""
    typed = unicodedata.normalize("NFC", typed[: 4 * _LONGEST].encode("utf-8", "replace").decode())
    texts = one_line(typed, _LONGEST).removesuffix("…").split()
    texts = [text for text in texts if any(map(str.isalnum, text)) or _SIGN.search(text)][:_MOST_WORDS]
    return [_word(text, is_last=number == len(texts)) for number, text in enumerate(texts, 1)]


def occur(words: list[SearchWord], text: str) -> bool:
    """Say whether all the words are in a text."""
    text = folded(text)
    return all(word.pattern.search(text) for word in words)


def snippet(text: str, words: list[SearchWord]) -> Snippet:
    """Return one printable line of `text` where most of the words are; its beginning where none is."""
    whole = folded(text)
    places = [(start, number) for number, word in enumerate(words) for start in _starts(word, whole)]
    if not places:
        return Snippet(one_line(text[: 2 * _SNIPPET], _SNIPPET), (), 0)
    places.sort()
    first = max(places, key=lambda place: (_words_from(places, place[0]), -place[0]))[0]
    begin = max(0, first - _BEFORE)
    if begin:
        space = re.compile(r"\s+").search(text, begin, first)
        begin = space.end() if space else begin
    line = one_line(text[begin : begin + 2 * _SNIPPET], _SNIPPET)
    line = f"…{line}" if begin else line
    return Snippet(line, marks(line, words), len({number for _, number in places}))


def marks(line: str, words: list[SearchWord]) -> tuple[tuple[int, int], ...]:
    """Return where the words are in a line, in order and apart."""
    text = folded(line)
    found: list[tuple[int, int]] = []
    for start, end in sorted(match.span() for word in words for match in word.pattern.finditer(text)):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return tuple(found)


def _word(text: str, *, is_last: bool) -> SearchWord:
    is_literal = bool(_WIDE.search(text) or _SIGN.search(text))
    if is_literal:
        pattern = re.escape(folded(text))
    else:
        bare = re.sub(_MARKS, "", folded(text))
        parts = [_MARKS.join(map(re.escape, part)) for part in re.findall(r"[^\W_]+", bare)]
        behind = "" if is_last else r"(?![^\W_])"
        pattern = r"(?<![^\W_])" + r"[\W_]+".join(parts) + _MARKS + behind
    return SearchWord(text, is_last, is_literal, re.compile(pattern))


def _starts(word: SearchWord, text: str) -> list[int]:
    matches = word.pattern.finditer(text)
    return [match.start() for match, _ in zip(matches, range(_MOST_PLACES), strict=False)]


def _words_from(places: list[tuple[int, int]], start: int) -> int:
    return len({number for at, number in places if start <= at < start + _SNIPPET - _BEFORE})
