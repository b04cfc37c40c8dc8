"""Sliding window: decides which messages are sent once the context cannot hold them all.

The system prompt and the first turn are always sent. When the conversation exceeds a high-water mark, the
oldest turns after these are dropped together, down to a low-water mark. In between, messages are only
appended, so the prompt's prefix and the cache stay valid.

The window is stateless: which turns to drop is computed from the conversation's history alone. So it is the
same after a restart, and a dropped turn never comes back.

Only token counts matter here, not text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from edgechat.engine.types import Role

MOST_TOKENS = 2**40
"""Maximum number of tokens in one message. Higher counts are an error."""
_BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """The part of a conversation that is sent: its head and its turns, except for a run of old turns."""

    head: int
    """How many messages come before the first turn. They are never dropped."""
    turns: tuple[range, ...]
    """The indices of the messages in each turn."""
    sizes: tuple[int, ...]
    """The token count of each turn."""
    first: int
    """Index of the first turn that may be dropped: 1 if the first turn is pinned, otherwise 0."""
    dropped: int
    """How many turns are dropped, starting at `first`."""
    current: int
    """Index of the last turn with a user message. Neither this turn nor later ones can be dropped."""
    tokens: int
    """How many tokens are sent."""

    @property
    def kept(self) -> list[int]:
        """Indices of the messages that are sent."""
        stop = self.first + self.dropped
        turns = self.turns[: self.first] + self.turns[stop:]
        return [*range(self.head), *(at for turn in turns for at in turn)]

    def narrower(self, by: int = 1) -> ContextWindow | None:
        """Return a window that drops at least one more turn, to save `by` tokens, or None if impossible."""
        start = self.first + self.dropped
        if start >= self.current:
            return None
        stop, gone = start + 1, self.sizes[start]
        while stop < self.current and gone < by:
            gone += self.sizes[stop]
            stop += 1
        return replace(self, dropped=stop - self.first, tokens=self.tokens - gone)


def whole(n_messages: int) -> ContextWindow:
    """Return a window that drops nothing."""
    return ContextWindow(head=n_messages, turns=(), sizes=(), first=0, dropped=0, current=0, tokens=0)


def window_of(messages: Sequence[tuple[Role, int]], cells: int, *, fixed: int = 0) -> ContextWindow:
    """Return the window for `messages` (the role and token count of each) in a context of `cells` tokens.

    fixed: tokens in the prompt that belong to no message.

    When a reply takes the conversation over 3/4 of the cells, or a question over 7/8, turns are dropped until
    at most half of the cells are used. The caller checks whether that is enough: if the current turn and
    pinned messages are themselves too long, `tokens` exceeds 7/8 and nothing more can be dropped. The first
    turn is pinned if it and the head take at most a quarter of the cells. Raises ValueError for invalid
    sizes.
    """
    if cells < 1 or not all(0 <= size <= MOST_TOKENS for size in (fixed, *(size for _, size in messages))):
        raise ValueError("a context must have at least 1 cell, and sizes must be valid token counts")
    turns = turns_of([role for role, _ in messages])
    head = turns[0].start if turns else len(messages)
    tokens = fixed + sum(size for _, size in messages[:head])
    sizes: list[int] = []
    first = dropped = current = 0
    for number, turn in enumerate(turns):
        if number == 1:
            first = int(tokens <= cells // 4)
        sizes.append(0)
        for role, size in messages[turn.start : turn.stop]:
            tokens += size
            sizes[-1] += size
            current = number if role == "user" else current
            if role != "system" and tokens > _high(role, cells):
                while tokens > cells // 2 and first + dropped < current:
                    tokens -= sizes[first + dropped]
                    dropped += 1
    return ContextWindow(head, turns, tuple(sizes), first, dropped, current, tokens)


def turns_of(roles: Sequence[Role]) -> tuple[range, ...]:
    """Return the message indices for each turn: a user message and the replies, calls and results after it.

    Whatever the order of the messages, each belongs to one turn, or to the head, which is made up of the
    system messages at the start. A reply without a question, such as a greeting, belongs to the first turn. A
    later system message belongs to the turn of the question that follows it.
    """
    starts: list[int] = []
    asked = False
    for at, role in enumerate(roles):
        if role == "system" and not starts:
            continue
        if not starts or (asked and role not in ("assistant", "tool")):
            starts.append(at)
            asked = False
        asked = asked or role == "user"
    return tuple(range(start, stop) for start, stop in pairwise([*starts, len(roles)]))


def guessed_tokens(n_bytes: int) -> int:
    """Estimate the number of tokens in `n_bytes` of text, without a vocabulary."""
    return -(-n_bytes // _BYTES_PER_TOKEN)


def _high(role: Role, cells: int) -> int:
    # Questions have more room than replies: if a question moves the window, the prewarmed cache is useless.
    return cells * 7 // 8 if role in ("user", "tool") else cells * 3 // 4
