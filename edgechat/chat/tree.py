"""The tree of a chat's turns, in which versions of a reply or a question are siblings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

import msgspec

from edgechat.chat.messages import grouped, n_letters
from edgechat.chat.records import Role, Turn
from edgechat.engine.prompt.window import turns_of
from edgechat.engine.types import Usage


class Tree:
    """The turns on all branches of a chat, in the order they were written."""

    def __init__(self, turns: Iterable[Turn] = ()) -> None:
        self._turns: dict[str, Turn] = {}
        self._positions: dict[str, int] = {}
        """The positions of turns in the order they were written, keyed by turn id."""
        self._children: dict[tuple[str | None, Role], list[str]] = {}
        """The ids of siblings, keyed by parent and role, in the order they were written."""
        self._fill(turns)

    def __contains__(self, turn_id: str | None) -> bool:
        return turn_id in self._turns

    def __getitem__(self, turn_id: str) -> Turn:
        return self._turns[turn_id]

    @property
    def turns(self) -> list[Turn]:
        """All turns."""
        return list(self._turns.values())

    def put(self, turn: Turn) -> None:
        """Add a new turn, or replace an existing one with its new state."""
        if turn.id not in self._turns:
            self._positions[turn.id] = 1 + next(reversed(self._positions.values()), 0)
            self._children.setdefault((turn.parent_id, turn.role), []).append(turn.id)
        self._turns[turn.id] = turn

    def put_system(self, system: Turn | None) -> None:
        """Replace the system prompt on all branches; None removes it."""
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
        """Remove a turn and its descendants."""
        removed = {turn.id for turn in self._subtree(turn_id)}
        self._fill([turn for turn in self.turns if turn.id not in removed])

    def line(self, turn_id: str | None) -> list[Turn]:
        """Return the branch from the root through a turn to its latest descendant.

        If there is no such turn, return the branch that ends with the latest turn overall.
        """
        turn = next(reversed(self._turns.values()), None)
        if turn_id in self:
            turn = max(self._subtree(turn_id), key=lambda turn: self._positions[turn.id])
        turns: list[Turn] = []
        while turn is not None:
            turns.append(turn)
            turn = self._turns.get(turn.parent_id) if turn.parent_id else None
        return turns[::-1]

    def siblings(self, turn_id: str) -> list[Turn]:
        """Return all versions of a turn, in the order they were written; [] for an unknown turn.

        Empty versions are omitted, except the turn itself.
        """
        turn = self._turns.get(turn_id)
        if turn is None:
            return []
        siblings = [self._turns[name] for name in self._children[turn.parent_id, turn.role]]
        return [sibling for sibling in siblings if sibling is turn or sibling.has_words]

    def is_answered(self, turn_id: str) -> bool:
        """Return whether a turn has a reply with text."""
        return any(self._turns[name].has_words for name in self._children.get((turn_id, "assistant"), ()))

    def has_others(self, turn_id: str) -> bool:
        """Return whether any turns besides the system prompt are outside a turn's subtree."""
        subtree = {turn.id for turn in self._subtree(turn_id)}
        return any(turn.role != "system" and turn.id not in subtree for turn in self._turns.values())

    def _subtree(self, turn_id: str | None) -> list[Turn]:
        turns = [self._turns[turn_id]] if turn_id in self._turns else []
        for turn in turns:  # the list grows during iteration
            for role in get_args(Role):
                turns += [self._turns[name] for name in self._children.get((turn.id, role), ())]
        return turns

    def _fill(self, turns: Iterable[Turn]) -> None:
        for index in (self._turns, self._positions, self._children):
            index.clear()
        for turn in turns:
            self.put(turn)


def left_out(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns of a branch that were left out of the prompt for its last complete reply.

    The engine reports how many exchanges were dropped. Whether the first exchange was kept is derived from
    the token counts for its reply, whereas `engine.prompt.window` counts the exchange's messages. The result
    may be wrong if the count is within a few tokens of a quarter of the context.
    """
    replies = [(at, usage) for at, turn in enumerate(turns) if (usage := _usage(turn)) is not None]
    if not replies or not replies[-1][1].dropped_turns:
        return []
    at, usage = replies[-1]
    groups = grouped(turns[:at])
    exchanges = [
        [turn for group in groups[span.start : span.stop] for turn in group]
        for span in turns_of([group[0].role for group in groups])
    ]
    first = int(bool(exchanges) and _is_pinned(exchanges[0], turns[at]))
    return [turn for exchange in exchanges[first : first + usage.dropped_turns] for turn in exchange]


def _is_pinned(exchange: Sequence[Turn], reply: Turn) -> bool:
    context = reply.figures.context if reply.figures else 0
    for turn in reversed(exchange):
        usage = _usage(turn)
        if turn.figures is not None and usage is not None:
            tokens = usage.prompt_tokens + usage.completion_tokens - turn.figures.thinking_tokens
            return tokens <= context // 4
    letters = sum(map(n_letters, exchange))
    return letters // 4 <= context // 4


def _usage(turn: Turn) -> Usage | None:
    return turn.figures.usage if turn.figures is not None else None
