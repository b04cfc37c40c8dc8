"""Words that are searched for in a transcript: where they are, and how they are marked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from edgechat.chat.storage.search import marks, parse_query
from edgechat.tui.markdown.blocks import RenderedLine
from edgechat.tui.transcript.pieces import Piece, Place


class Finder:
    """Finds the words of a query, by the rules of the search in all conversations."""

    def __init__(self, query: str) -> None:
        self._spans = partial(marks, words=parse_query(query))

    def step(self, pieces: Sequence[Piece], place: Place, by: int, width: int) -> Place | None:
        """See `WordSearch.step`."""
        first, line = place
        for distance in range(len(pieces) + 1):
            index = (first + by * distance) % len(pieces)
            lines = self._lines(pieces[index], width)
            if not distance:
                lines = [number for number in lines if (number > line if by > 0 else number < line)]
            if lines:
                return index, lines[0 if by > 0 else -1]
        return None

    def _lines(self, piece: Piece, width: int) -> list[int]:
        if not piece.is_searched or not self._spans(piece.text):
            return []
        lines = piece.lines(width)
        return [number for number, line in enumerate(lines) if self._spans(line.content.plain)]

    def mark(self, lines: Sequence[RenderedLine], here: int | None) -> list[RenderedLine]:
        """See `WordSearch.mark`."""
        marked: list[RenderedLine] = []
        for number, line in enumerate(lines):
            content = line.content
            for start, end in self._spans(content.plain):
                content = content.stylize(".here" if number == here else ".match", start, end)
            marked.append(line._replace(content=content))
        return marked
