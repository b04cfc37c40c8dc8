"""The sliding window: which messages of a conversation are sent once the context cannot hold them all.

The system prompt and the first turn stay; when the conversation has grown over a high-water mark, the oldest
whole turns after them leave in one go, down to a low-water mark. Between two such moments the same messages
are sent with more behind them, so the prompt's prefix, and with it the cache, stays.

This is stateless: which turns have left is computed from the conversation alone, by going through its
history. So it is the same after a restart, and a turn that has left never comes back.

Only sizes in tokens matter here, never texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from edgechat.engine.types import Role

MOST_TOKENS = 2**40
"""Of one message; a larger size is an error."""
_BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """What is sent of a conversation: its head and its turns, except a run of old ones."""

    head: int
    """Messages before the first turn; they never leave."""
    turns: tuple[range, ...]
    """The messages of each turn."""
    sizes: tuple[int, ...]
    """Tokens of each turn."""
    first: int
    """The turn that leaves first: 1 where the first is pinned, else 0."""
    dropped: int
    """Number of turns that have left, from `first` on."""
    current: int
    """The turn of the last user message: neither it nor what follows can leave."""
    tokens: int
    """Of all that is sent."""

    @property
    def kept(self) -> list[int]:
        """The messages that are sent, in order."""
        stop = self.first + self.dropped
        turns = self.turns[: self.first] + self.turns[stop:]
        return [*range(self.head), *(at for turn in turns for at in turn)]

    def narrower(self, by: int = 1) -> ContextWindow | None:
        """Leave out one turn more, and further ones until it is `by` tokens less; None if none can leave."""
        start = self.first + self.dropped
        if start >= self.current:
            return None
        stop, gone = start + 1, self.sizes[start]
        while stop < self.current and gone < by:
            gone += self.sizes[stop]
            stop += 1
        return replace(self, dropped=stop - self.first, tokens=self.tokens - gone)


def whole(n_messages: int) -> ContextWindow:
    """Return a window from which nothing leaves."""
    return ContextWindow(head=n_messages, turns=(), sizes=(), first=0, dropped=0, current=0, tokens=0)


def window_of(messages: Sequence[tuple[Role, int]], cells: int, *, fixed: int = 0) -> ContextWindow:
    """Return what of `messages` (role and tokens of each) is sent where the context holds `cells` tokens.

    fixed: tokens of a prompt that belong to no message.

    Turns leave when a reply has made it more than 3/4 of the cells, or a question more than 7/8, until it is
    no more than half. The caller checks whether that suffices: if the current turn and what is pinned are too
    long themselves, `tokens` is over 7/8 and nothing more can leave. The first turn is pinned if it and the
    head take no more than a quarter. Raises ValueError for invalid sizes.
    """
    if cells < 1 or not all(0 <= size <= MOST_TOKENS for size in (fixed, *(size for _, size in messages))):
        raise ValueError("the cells of a context are 1 or more, and sizes are numbers of tokens")
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
    """Return the messages of each turn: one of the user with the replies, calls and results that follow it.

    Whatever the order of the messages is, each belongs to one turn, or to the head, which is the system
    messages that come first. A reply without a question, as a greeting is, belongs to the first turn; a
    system message later on begins the turn of the question that follows it, and leaves with that.
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
    """Return an estimate of the tokens of a text, without a vocabulary."""
    return -(-n_bytes // _BYTES_PER_TOKEN)


def _high(role: Role, cells: int) -> int:
    # More for a question than for a reply: what was prewarmed after the reply is lost if a question cuts.
    return cells * 7 // 8 if role in ("user", "tool") else cells * 3 // 4
