"""Drafts: who guesses the next tokens, how often that is right, and whether it pays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.content import Content

from edgechat.base.text import one_line
from edgechat.engine.snapshot import DraftingState, Snapshot
from edgechat.engine.types import Finished, ModelInfo, SpeculationStats
from edgechat.tui.engine_room.section import LABEL, NO_MODEL, Section, faint, row, said, table

_NAMES = {"model": "the model", "ngram": "n-grams"}


class DraftsSection(Section):
    """What speculation does; or why it does nothing."""

    TITLE: ClassVar[str] = "Drafts"
    MEANING: ClassVar[str] = "Proposed tokens, verified together in one step: the same text, only faster."

    def __init__(self) -> None:
        super().__init__()
        self._info: ModelInfo | None = None
        self._drafting: DraftingState | None = None
        self._last: SpeculationStats | None = None

    def show_model(self, info: ModelInfo | None) -> None:
        """Show who drafts for a model."""
        self._info, self._last = info, None
        self.changed()

    def show(self, snapshot: Snapshot | None) -> None:
        """Show what the controller thinks now."""
        drafting = snapshot.drafting if snapshot else None
        if drafting != self._drafting:
            self._drafting = drafting
            self.changed()

    def take(self, reply: Finished) -> None:
        """Take what drafts did for a reply."""
        self._last = reply.speculation
        self.changed()

    def aside(self) -> str:
        """See `Section`."""
        drafting = self._drafting
        return f"{drafting.speedup:.2f}x now" if drafting and drafting.sources else ""

    def body(self, width: int) -> list[Content]:
        """See `Section`."""
        drafting = self._drafting
        if drafting is None or not drafting.sources:
            return self._nobody(width)
        who = ", ".join(self._info.drafters) if self._info and self._info.drafters else "yes"
        lines = [row("drafter", one_line(who, max(8, width - LABEL)))]
        rows = [
            (_NAMES[one.source], (_percent(one.acceptance), f"{one.speedup:.2f}x"))
            for one in drafting.sources
        ]
        lines += table(("accepted", "speedup"), rows, width)
        lines += self._last_reply()
        if any(drafting.lengths):
            lines.append(row("this step", f"{_listed(drafting.lengths)} drafted"))
        steps = [(f"{n}", f"{ratio:.1f}x") for n, ratio in drafting.costs]
        lines += table([n for n, _ in steps], [("takes", [ratio for _, ratio in steps])], width, "step of")
        if drafting.why_off:
            return [*lines, *said(drafting.why_off, width, ".warning")]
        return [
            *lines,
            row("may lose", f"{max(drafting.purse, 0):.1f} tokens", (" before a pause", ".faint")),
        ]

    def _nobody(self, width: int) -> list[Content]:
        if self._info is None:
            return faint(NO_MODEL, width)
        why = self._info.no_draft
        why = why or (self._drafting.why_off if self._drafting else "") or "This model has no drafter."
        return said(one_line(why, 400), width)

    def _last_reply(self) -> list[Content]:
        last = self._last
        if last is None:
            return [row("last reply", "without drafts")]
        share = last.accepted_tokens / max(1, last.drafted_tokens)
        stood = f"{last.accepted_tokens:,} of {last.drafted_tokens:,} accepted"
        return [
            row("last reply", f"{last.speedup:.2f} times as fast"),
            row("", stood, (f" ({share:.0%})", ".faint")),
            row("", f"{last.mean_length:.1f} tokens per draft"),
        ]


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def _listed(lengths: Sequence[int]) -> str:
    """Return the lengths of the drafts of all streams in words."""
    told = ", ".join(str(n) for n in lengths[:8])
    return f"{told} tokens" if len(lengths) > 1 or lengths[0] != 1 else "1 token"
