"""The n-grams of the conversation as a drafter."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from edgechat.engine.scheduling.draft import MOST, Draft
from edgechat.engine.scheduling.sequence import Sequence as Stream
from edgechat.engine.speculative.acceptance import class_of_match

_LONG_PATTERN, _SHORT_PATTERN = 4, 2  # tokens of the patterns that are searched for, in this order
_MATCHES_TRIED = 8  # places that are compared for the longest match, the latest first
_LONGEST_MATCH = 32


class NgramDrafter:
    """Prompt lookup (Saxena 2023): what followed the same tokens earlier in the conversation."""

    def __init__(self) -> None:
        self._texts: dict[Stream, tuple[array[int], bytearray]] = {}

    def draft(self, stream: Stream, most: int) -> Draft | None:
        """Return a draft of up to `most` tokens; None if there is no earlier match."""
        tokens, raw = self._text(stream)
        match = self._match(tokens, raw, _LONG_PATTERN) or self._match(tokens, raw, _SHORT_PATTERN)
        if match is None:
            return None
        at, length = match
        tokens_after = list(tokens[at : at + min(most, MOST["ngram"])])
        return Draft("ngram", tokens_after, [class_of_match(length + n) for n in range(len(tokens_after))])

    def _text(self, stream: Stream) -> tuple[array[int], bytearray]:
        tokens, raw = self._texts.setdefault(stream, (array("i"), bytearray()))
        new_tokens = array("i", stream.tokens[len(tokens) :])
        tokens.extend(new_tokens)
        raw += new_tokens.tobytes()
        return tokens, raw

    def _match(self, tokens: array[int], raw: bytearray, size: int) -> tuple[int, int] | None:
        """Return what follows the longest of the latest matches of the last `size` tokens, and its length."""
        width = tokens.itemsize
        pattern = raw[-size * width :]
        if len(tokens) <= size:
            return None
        best: tuple[int, int] | None = None
        stop = len(raw) - 1
        for _ in range(_MATCHES_TRIED):
            at = raw.rfind(pattern, 0, stop)
            if at < 0:
                break
            stop = at + len(pattern) - 1
            if at % width:
                continue
            end = at // width + size
            length = size + _common_suffix(tokens, end - size, len(tokens) - size)
            if best is None or length > best[1]:
                best = end, length
        return best

    def forget(self, stream: Stream) -> None:
        """Forget a stream that has ended or has other tokens now."""
        self._texts.pop(stream, None)


def _common_suffix(tokens: Sequence[int], one: int, other: int) -> int:
    """Return how many tokens before two places are the same."""
    n = 0
    while n < min(one, _LONGEST_MATCH) and tokens[one - 1 - n] == tokens[other - 1 - n]:
        n += 1
    return n
