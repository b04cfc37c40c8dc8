"""Media among tokens: images and sounds take cells of the cache as tokens do, under ids that no token has.

The ids are made of what is in them, so that lists of ids can be compared, found again and saved as those of
texts are: the same image in the same place is the same prefix. A run of ids also tells its own length, and
how far it moves positions, which is less for images with M-RoPE.

    id    bit 30: media; bit 29: the first of a run; 29 bits of
    1st   a hash of the content
    2nd   number of cells (14 bits), positions (14 bits)
    rest  more of the hash
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_MEDIA, _FIRST = 1 << 30, 1 << 29
_HASH = _FIRST - 1
_BITS = 14
MOST_CELLS = (1 << _BITS) - 1
"""Cells that one run may have."""
_KEY = 4
"""Ids by which a run is recognized: 87 bits of hash and its sizes."""


@dataclass(frozen=True, slots=True)
class MediaRun:
    """A run of media ids in a list of tokens."""

    start: int
    n_cells: int
    n_positions: int

    @property
    def stop(self) -> int:
        """Where the next token is."""
        return self.start + self.n_cells


def is_media(token: int) -> bool:
    """Say whether an id stands for a cell of an image or a sound."""
    return token >= _MEDIA


def media_ids(content: bytes, n_cells: int, n_positions: int) -> tuple[int, ...]:
    """Return the ids of the cells of media. content: what identifies them, and how they were cut.

    Raises ValueError for more cells than ids can tell.
    """
    if not 1 < n_cells <= MOST_CELLS or not 0 < n_positions <= MOST_CELLS:
        raise ValueError(f"{n_cells} cells at {n_positions} positions cannot be told by ids")
    digest = hashlib.shake_128(content).digest(4 * n_cells)
    hashes = [int.from_bytes(digest[at : at + 4], "little") & _HASH for at in range(0, len(digest), 4)]
    first, rest = _MEDIA | _FIRST | hashes[0], [_MEDIA | one for one in hashes[2:]]
    return (first, _MEDIA | n_cells << _BITS | n_positions, *rest)


def key_of(ids: Sequence[int]) -> tuple[int, ...]:
    """Return what identifies a run, given its ids or more than those."""
    return tuple(ids[:_KEY])


def media_runs(tokens: Sequence[int]) -> Iterator[MediaRun]:
    """Yield the runs of media in a list of tokens. A run that is cut off at the end counts as whole."""
    at, end = 0, len(tokens)
    if not end or max(tokens) < _MEDIA:
        return
    while at < end:
        if tokens[at] < _MEDIA or at + 1 >= end:
            at += 1
            continue
        sizes = tokens[at + 1]
        run = MediaRun(at, sizes >> _BITS & MOST_CELLS, sizes & MOST_CELLS)
        yield run
        at = max(run.stop, at + 1)


class Places:
    """Where the tokens of a sequence are: positions, which with M-RoPE are fewer than cells."""

    def __init__(self, runs: Sequence[MediaRun] = ()) -> None:
        self.runs = list(runs)

    def position(self, index: int) -> int:
        """Return the position of the token at an index, which is not inside of a run."""
        return index - sum(run.n_cells - run.n_positions for run in self.runs if run.stop <= index)

    def length(self, last_position: int) -> int:
        """Return how many tokens there are, given the last position that llama.cpp tells.

        That of an M-RoPE image is where it begins.
        """
        skipped = sum(run.n_cells - run.n_positions for run in self.runs)
        return max(last_position + 1 + skipped, self.runs[-1].stop) if self.runs else last_position + 1

    def is_inside(self, index: int) -> bool:
        """Say whether an index is inside of a run, where nothing can be cut."""
        return any(run.start < index < run.stop for run in self.runs)

    def up_to(self, length: int) -> Places:
        """Return the places of the first `length` tokens."""
        return Places([run for run in self.runs if run.stop <= length])
