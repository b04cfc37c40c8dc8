"""Speculative decoding: the drafters, their acceptance rates, and the speedup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.content import Content

from edgechat.base.text import one_line
from edgechat.engine.kv.snapshot import DraftingState, Snapshot
from edgechat.engine.types import Finished, ModelInfo, SpeculationStats
from edgechat.tui.engine_room.section import LABEL, NO_MODEL, Section, row, table, wrapped

_NAMES = {"model": "the model", "mtp": "own layers", "ngram": "n-grams"}


class DraftsSection(Section):
    """What speculative decoding does, or why it does nothing."""

    TITLE: ClassVar[str] = "Drafts"
    MEANING: ClassVar[str] = (
        "Guesses at the next tokens, which the model checks in one step: the text stays the same, and comes "
        "faster. Drafts are paused when they have cost more time than the allowance."
    )

    def __init__(self) -> None:
        super().__init__()
        self._info: ModelInfo | None = None
        self._drafting: DraftingState | None = None
        self._last: SpeculationStats | None = None

    def show_model(self, info: ModelInfo | None) -> None:
        """Show the drafters of a model."""
        self._info, self._last = info, None
        self.changed()

    def show(self, snapshot: Snapshot | None) -> None:
        """Show the estimates of the controller."""
        drafting = snapshot.drafting if snapshot else None
        if drafting != self._drafting:
            self._drafting = drafting
            self.changed()

    def take(self, reply: Finished) -> None:
        """Show what drafts did for a reply."""
        self._last = reply.speculation
        self.changed()

    def aside(self) -> str:
        drafting = self._drafting
        return f"{drafting.speedup:.2f}x now" if drafting and drafting.sources else ""

    def body(self, width: int) -> list[Content]:
        drafting = self._drafting
        if drafting is None or not drafting.sources:
            return self._no_drafts(width)
        drafters = ", ".join(self._info.drafters) if self._info and self._info.drafters else "yes"
        lines = [row("drafter", one_line(drafters, max(8, width - LABEL)))]
        rows = [
            (_NAMES[source.source], (_percent(source.acceptance), f"{source.speedup:.2f}x"))
            for source in drafting.sources
        ]
        lines += table(("accepted", "speedup"), rows, width)
        lines += self._last_reply()
        if any(drafting.lengths):
            lines.append(row("drafting", _join_lengths(drafting.lengths)))
        sizes, costs = [f"{n}" for n, _ in drafting.costs], [f"{ratio:.1f}x" for _, ratio in drafting.costs]
        lines += table(sizes, [("step time", costs)], width, "tokens")
        if drafting.why_off:
            return [*lines, *wrapped(drafting.why_off, width, ".warning")]
        return [*lines, row("allowance", f"{max(drafting.purse, 0):.1f} tokens")]

    def _no_drafts(self, width: int) -> list[Content]:
        if self._info is None:
            return wrapped(NO_MODEL, width, ".faint")
        why_off = self._drafting.why_off if self._drafting else ""
        return wrapped(one_line(self._info.no_draft or why_off or "No drafts for this model.", 400), width)

    def _last_reply(self) -> list[Content]:
        last = self._last
        if last is None:
            return [row("last reply", "no drafts")]
        share = last.accepted_tokens / max(1, last.drafted_tokens)
        accepted = f"{last.accepted_tokens:,} of {last.drafted_tokens:,} accepted"
        return [
            row("last reply", f"{last.speedup:.2f}x as fast"),
            row("", accepted, (f" ({share:.0%})", ".faint")),
            row("", f"{last.mean_length:.1f} tokens per draft"),
        ]


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def _join_lengths(lengths: Sequence[int]) -> str:
    """Return the lengths of the drafts of all streams as text."""
    numbers = ", ".join(map(str, lengths[:8]))
    return f"{numbers} tokens" if len(lengths) > 1 or lengths[0] != 1 else "1 token"
