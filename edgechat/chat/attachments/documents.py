"""What is attached to a question from the documents of a chat: how much, and what the model is told of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from edgechat.chat.records import Attachment, Turn
from edgechat.documents.citations import PassageSource, citations_in
from edgechat.planner.plan import LoadPlan

if TYPE_CHECKING:
    from edgechat.documents.library import Given, Room

BYTES_PER_TOKEN = 3.0
"""Of documents; less than most texts have, so that they fit."""
_ANSWER_TOKENS = 1024
_PASSAGES_SECONDS, _WHOLE_SECONDS = 15.0, 60.0
"""Reading may take so long, as far as the speed is predicted; whole documents are read once."""
_MOST_TOKENS = 6000
"""Of passages: more of them confuse rather than help."""


def attached_passage(given: Given) -> Attachment:
    """Return a passage as an attachment."""
    return Attachment(f"[{given.source.number}] {given.name}", given.text, given.source)


def passages_in(turns: Iterable[Turn]) -> dict[int, Attachment]:
    """Return all passages in some turns, by the numbers by which replies cite them."""
    files = (file for turn in turns for file in turn.attachments)
    return {file.source.number: file for file in files if file.source is not None}


def without_passages(files: Iterable[Attachment]) -> list[Attachment]:
    """Return those attachments that the user has chosen."""
    return [file for file in files if file.source is None]


def cited(text: str, passages: Iterable[Attachment]) -> list[Attachment]:
    """Return those of some passages that an answer cites, in the order of the passages."""
    passages = [one for one in passages if one.source is not None]
    numbers = {one.source.number for one in passages if one.source is not None}
    named = {number for citation in citations_in(text, numbers) for number in citation.numbers}
    return [one for one in passages if one.source is not None and one.source.number in named]


def sources_in(turns: Sequence[Turn]) -> list[PassageSource]:
    """Return the places of all passages in some turns."""
    return [source for turn in turns for file in turn.attachments if (source := file.source) is not None]


def room_for(plan: LoadPlan, context: int, turns: Sequence[Turn], question: str, answer: int | None) -> Room:
    """Return how much of the documents can be given with a question.

    context: cells. turns: those before the question. answer: the most tokens of the answer; None: any number.
    """
    usages = [turn.figures.usage for turn in turns if turn.figures is not None and turn.figures.usage]
    used = usages[-1].prompt_tokens + usages[-1].completion_tokens if usages else context // 32
    return room_beside(plan, context, used + int(len(question.encode()) / BYTES_PER_TOKEN), answer)


def room_beside(plan: LoadPlan, context: int, used: int, answer: int | None) -> Room:
    """Return how much of the documents can be given beside so many tokens of a chat; see `room_for`."""
    from edgechat.documents.library import Room  # it brings SQLite

    wanted = min(answer or _ANSWER_TOKENS, context // 4)
    free = max(0, context - used - wanted - 100)
    tps = plan.predicted.prompt_tps if plan.predicted is not None else 0.0
    passages, whole = free // 2, 2 * free // 3
    if tps:
        passages, whole = min(passages, int(tps * _PASSAGES_SECONDS)), min(whole, int(tps * _WHOLE_SECONDS))
    passages = min(free, _MOST_TOKENS, max(passages, 400))  # so many even where that is slow
    return Room(passages=int(passages * BYTES_PER_TOKEN), whole=int(whole * BYTES_PER_TOKEN))
