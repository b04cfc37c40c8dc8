"""The turns of a chat as a tree: tries at a reply and wordings of a question lie side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

import msgspec

from edgechat.chat.messages import grouped
from edgechat.chat.records import Role, Turn
from edgechat.engine.kv.window import turns_of
from edgechat.engine.types import Usage


class Tree:
    """Every turn that is known of a chat, in the order of writing."""

    def __init__(self, turns: Iterable[Turn] = ()) -> None:
        self._turns: dict[str, Turn] = {}
        self._places: dict[str, int] = {}
        """The order of writing, by id."""
        self._after: dict[tuple[str | None, Role], list[str]] = {}
        """What stands side by side, by parent and role, in the order of writing."""
        self._fill(turns)

    def __contains__(self, turn_id: str) -> bool:
        return turn_id in self._turns

    def __getitem__(self, turn_id: str) -> Turn:
        return self._turns[turn_id]

    @property
    def turns(self) -> list[Turn]:
        """All of them."""
        return list(self._turns.values())

    def put(self, turn: Turn) -> None:
        """Add a turn that was written last, or write what became of it."""
        if turn.id not in self._turns:
            self._places[turn.id] = 1 + next(reversed(self._places.values()), 0)
            self._after.setdefault((turn.parent_id, turn.role), []).append(turn.id)
        self._turns[turn.id] = turn

    def put_system(self, system: Turn | None) -> None:
        """Let all lines begin with this system prompt, or with none."""
        old = next((turn for turn in self.turns if turn.role == "system" and turn.parent_id is None), None)
        roots = {old.id if old else None, None}
        parent_id = system.id if system else None
        turns = [
            msgspec.structs.replace(turn, parent_id=parent_id) if turn.parent_id in roots else turn
            for turn in self.turns
            if old is None or turn.id != old.id
        ]
        self._fill(([system] if system else []) + turns)

    def remove(self, turn_id: str) -> None:
        """Forget a turn and all that follows from it."""
        gone = {turn.id for turn in self._under(turn_id)}
        self._fill([turn for turn in self.turns if turn.id not in gone])

    def line(self, turn_id: str | None) -> list[Turn]:
        """Return the line through a turn to what was written last behind it.

        The line that was written last of all where it is None, or not there.
        """
        turn = self._last(turn_id)
        found: list[Turn] = []
        while turn is not None:
            found.append(turn)
            turn = self._turns.get(turn.parent_id) if turn.parent_id else None
        return found[::-1]

    def siblings(self, turn_id: str) -> list[Turn]:
        """Return a turn and what stands in its place in other lines, in the order of writing.

        A try at a reply of which no word came is left out, but where it is the turn itself. Empty for a turn
        that is not there.
        """
        turn = self._turns.get(turn_id)
        if turn is None:
            return []
        side_by_side = map(self._turns.__getitem__, self._after[turn.parent_id, turn.role])
        return [one for one in side_by_side if one is turn or has_words(one)]

    def is_answered(self, turn_id: str) -> bool:
        """Say whether there is a reply to a turn that is worth keeping."""
        return any(has_words(self._turns[name]) for name in self._after.get((turn_id, "assistant"), ()))

    def has_others(self, turn_id: str) -> bool:
        """Say whether anything was said that does not follow from a turn."""
        under = {turn.id for turn in self._under(turn_id)}
        return any(turn.role != "system" and turn.id not in under for turn in self._turns.values())

    def _last(self, turn_id: str | None) -> Turn | None:
        if turn_id is None or turn_id not in self._turns:
            return next(reversed(self._turns.values()), None)
        return max(self._under(turn_id), key=lambda turn: self._places[turn.id])

    def _under(self, turn_id: str) -> list[Turn]:
        """Return a turn and all that follows from it, in no order."""
        found: list[Turn] = []
        ids = [turn_id] if turn_id in self._turns else []
        while ids:
            found.append(self._turns[ids.pop()])
            for role in get_args(Role):
                ids += self._after.get((found[-1].id, role), ())
        return found

    def _fill(self, turns: Iterable[Turn]) -> None:
        for index in (self._turns, self._places, self._after):
            index.clear()
        for turn in turns:
            self.put(turn)


def has_words(turn: Turn) -> bool:
    """Say whether anything came of a turn."""
    return bool(turn.content or turn.thinking or turn.attachments)


def left_out(turns: Sequence[Turn]) -> list[Turn]:
    """Return those of a line's turns that the last reply which came to its end was written without.

    How many exchanges left is the engine's own figure. Whether the first one stayed is worked out from what
    its reply counted, as `engine.window` does from each message: it could err where that is a quarter of
    the context to within a few tokens.
    """
    at = next((at for at in reversed(range(len(turns))) if _usage(turns[at]) is not None), None)
    if at is None or not _dropped(turns[at]):
        return []
    groups = grouped(turns[:at])
    exchanges = [
        [turn for group in groups[one.start : one.stop] for turn in group]
        for one in turns_of([group[0].role for group in groups])
    ]
    first = int(bool(exchanges) and _is_pinned(exchanges[0], turns[at]))
    return [turn for exchange in exchanges[first : first + _dropped(turns[at])] for turn in exchange]


def _is_pinned(exchange: Sequence[Turn], reply: Turn) -> bool:
    context = reply.figures.context if reply.figures else 0
    for turn in reversed(exchange):
        usage = _usage(turn)
        if turn.figures is not None and usage is not None:
            tokens = usage.prompt_tokens + usage.completion_tokens - turn.figures.thinking_tokens
            return tokens <= context // 4
    letters = sum(len(turn.content) + sum(len(one.text) for one in turn.attachments) for turn in exchange)
    return letters // 4 <= context // 4


def _usage(turn: Turn) -> Usage | None:
    return turn.figures.usage if turn.figures is not None else None


def _dropped(turn: Turn) -> int:
    usage = _usage(turn)
    return usage.dropped_turns if usage is not None else 0
