"""Counts the lines that were added below what the reader of a transcript has seen."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class UnreadLines:
    """Remembers where the text ended that has been seen: a line of a piece, which may move as a whole."""

    def __init__(self) -> None:
        self.count = 0
        self._seen: tuple[int, int] | None = None
        """The piece and the line of it; None while the end of the text is on the screen."""

    def before_adding(self, heights: Sequence[int]) -> None:
        """Remember the end of the text before something is added that is not seen. heights: of the pieces."""
        if self._seen is None and heights:
            self._seen = (len(heights) - 1, heights[-1])

    def forget(self) -> None:
        """Count from the end of the text again."""
        self._seen = None

    def update(self, tops: Sequence[int], bottom: int) -> bool:
        """Count again, and return whether the count has changed.

        tops: of the pieces, then the end of the text. bottom: the last line on the screen.
        """
        before, self.count = self.count, 0
        if self._seen is not None:
            index, line = self._seen
            if bottom > tops[index] + line:
                index = max(0, min(bisect_right(tops, bottom), len(tops) - 1) - 1)
                line = bottom - tops[index]
                self._seen = (index, line)
            self.count = max(0, tops[-1] - tops[index] - line)
            if not self.count:
                self._seen = None
        return self.count != before
