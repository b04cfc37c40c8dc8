"""Guards control tokens: ensures that only the template's own text becomes control tokens.

A message containing `<|im_end|>` would end its turn, and the rest of the message could forge other turns. So
before a chat is rendered, a character that does not occur in any text is inserted into every such mark
(`guard`). The template passes this character through. If the text between two control tokens contains it, the
text is tokenized as plain text (`tokens`). Text without marks is not changed.
"""

from __future__ import annotations

import itertools
import random
import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from edgechat.engine.backends.base import Vocabulary
from edgechat.engine.prompt.media_tokens import MediaTokens

_PROSE = re.compile(r"[\w\s.,;:!?'\"()-]*")
"""Matches text that cannot contain a control token."""
_SLICE = 4096
"""Number of characters to tokenize at once. With many control tokens, llama.cpp takes quadratic time."""


class ControlTokens:
    """A vocabulary's control tokens, and protection against messages that contain them."""

    def __init__(self, vocabulary: Vocabulary, media: MediaTokens | None = None) -> None:
        """media: for models with vision or audio."""
        self._vocabulary = vocabulary
        self.media = media or MediaTokens()
        # A private-use character, chosen at random in each process so that nobody can put it into a message.
        self._break = chr(random.SystemRandom().randrange(0xF0000, 0xFFFFE))
        self._strips: dict[str, tuple[bool, bool]] = {}

    @cached_property
    def _texts(self) -> frozenset[str]:
        return frozenset(text for text in self._vocabulary.control_texts() if len(text) > 1)

    @cached_property
    def _firsts(self) -> re.Pattern[str]:
        firsts = "".join(re.escape(char) for char in sorted({text[0] for text in self._texts}))
        return re.compile(f"[{firsts}]" if firsts else r"(?!)")

    @cached_property
    def _lengths(self) -> list[int]:
        return sorted({len(text) for text in self._texts}, reverse=True)

    @cached_property
    def _forwards(self) -> list[str]:
        return sorted(self._texts)

    @cached_property
    def _backwards(self) -> list[str]:
        return sorted(text[::-1] for text in self._texts)

    def guard(self, value: Any) -> Any:
        """Break up all marks in a string, or in lists and dicts of strings (including keys)."""
        if isinstance(value, str):
            return self._guarded(value)
        if isinstance(value, dict):
            return {self.guard(key): self.guard(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.guard(item) for item in value]
        return value

    def _guarded(self, text: str) -> str:
        if _PROSE.fullmatch(text) or not self._texts:
            return text
        places = {at + 1 for at, _ in self._marks(text)}
        # Partial marks at either end, which the template's text could complete.
        stripped = text.rstrip()
        start = len(text) - len(text.lstrip())
        for n in range(2, self._lengths[0]):
            if _begins_one_of(self._forwards, stripped[-n:], n):
                places.add(len(stripped) - n + 1)
            if _begins_one_of(self._backwards, text[start : start + n][::-1], n):
                places.add(start + n - 1)
        if not places:
            return text
        cuts = [0, *sorted(places), len(text)]
        return self._break.join(text[a:b] for a, b in itertools.pairwise(cuts))

    def _marks(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the span of each control token in `text`; if several start together, only the longest."""
        for match in self._firsts.finditer(text):
            start = match.start()
            for length in self._lengths:
                if text[start : start + length] in self._texts:
                    yield start, start + length
                    break

    def tokens(self, text: str, *, bos: bool, most: int | None = None) -> list[int]:
        """Return the token ids for rendered text; see `Vocabulary.tokenize`.

        most: stop as soon as there are more tokens than this.
        """
        ids: list[int] = []
        for before, run in self.media.stretches(text):
            for stretch, special in self._stretches(before):
                ids += self._vocabulary.tokenize(stretch, bos=bos and not ids, special=special)
                if most is not None and len(ids) > most:
                    return ids
            ids += run
        return ids

    def _stretches(self, text: str) -> Iterator[tuple[str, bool]]:
        """Split text before control tokens; yield each stretch and whether to parse control tokens in it."""
        if len(text) <= _SLICE and self._break not in text:
            yield text, True
            return
        begun = end = 0
        before = ""
        for start, stop in [*self._marks(text), (len(text), len(text))]:
            if start < end:  # overlaps the previous mark
                continue
            plain, mark = text[end:start], text[start:stop]
            if self._break in plain:
                if begun < end:
                    yield text[begun:end], True
                yield self._stripped(plain.replace(self._break, ""), before, mark), False
                begun = start
            elif start - begun > _SLICE and not (plain[-1:].isspace() and self._swallows(mark)[0]):
                yield text[begun:start], True
                begun = start
            end, before = stop, mark
        if begun < len(text):
            yield text[begun:], True

    def _stripped(self, plain: str, before: str, behind: str) -> str:
        """Strip whitespace that the surrounding control tokens swallow in some vocabularies."""
        if before and self._swallows(before)[1]:
            plain = plain.lstrip()
        return plain.rstrip() if behind and self._swallows(behind)[0] else plain

    def _swallows(self, mark: str) -> tuple[bool, bool]:
        """Return two flags: whether a control token swallows whitespace before it, and after it."""
        if mark not in self._strips:

            def same(left: str, right: str) -> bool:
                ids = [self._vocabulary.tokenize(text, bos=False, special=True) for text in (left, right)]
                return ids[0] == ids[1]

            self._strips[mark] = same(f"a\n{mark}", f"a{mark}"), same(f"{mark}\na", f"{mark}a")
        return self._strips[mark]


def _begins_one_of(texts: list[str], begins: str, n: int) -> bool:
    """Return True if any of the sorted texts is longer than `begins` and starts with it. n: `len(begins)`."""
    at = bisect_left(texts, begins)
    at += at < len(texts) and texts[at] == begins
    return len(begins) == n and at < len(texts) and texts[at].startswith(begins)
