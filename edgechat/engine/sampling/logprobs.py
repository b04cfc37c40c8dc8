"""How likely the tokens of an answer were: what the model gave them, and others in their place."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from edgechat.engine.backends.base import Logits, Vocabulary
from edgechat.engine.reply.reply import Reply, ReplyPart
from edgechat.engine.sampling.sampler import chances
from edgechat.engine.types import TokenLogprobs

_Placed = tuple[int, TokenLogprobs]
"""How many characters of the answer there were before a token."""


class Logprobs:
    """The chances of one reply's tokens, each told with the text that it begins.

    Nothing of a thought or a call, nor of what is never shown: marks, and what a stop string has cut off.
    """

    def __init__(self, vocabulary: Vocabulary, others: int) -> None:
        """others: how many of the likeliest tokens are told beside each."""
        self._vocabulary = vocabulary
        self._others = others
        self._computed: deque[TokenLogprobs] = deque()
        self._undecided: list[_Placed] = []
        self._held: deque[_Placed] = deque()
        self._n_answer = self._n_calls = 0

    def compute(self, rows: Logits, tokens: Sequence[int]) -> None:
        """Take the tokens that come next, and the logits [n, n_vocab] that each was chosen by."""
        self._computed.clear()  # of a reply that moved its window before them
        for row, token in zip(rows, tokens, strict=False):
            chance, likeliest = chances(row, token, self._others)
            others = tuple((self._text(one), value) for one, value in likeliest)
            self._computed.append(TokenLogprobs(self._text(token), chance, others))

    def _text(self, token: int) -> bytes:
        return self._vocabulary.piece(token) or self._vocabulary.piece(token, special=True)

    def fed(self, reply: Reply) -> None:
        """The reply has taken the next of these tokens."""
        self._undecided.append((self._n_answer, self._computed.popleft()))
        self._n_answer = reply.n_answer
        if reply.in_call:
            return
        if reply.n_calls > self._n_calls:  # these were its tokens
            self._n_calls = reply.n_calls
            while self._held and self._held[-1][0] >= reply.n_shown:  # of the white space before it
                self._held.pop()
        elif reply.where is ReplyPart.ANSWER:
            self._held += self._undecided
        elif reply.where is not ReplyPart.THINKING and reply.holds:
            return  # a mark may begin here, or an answer
        self._undecided.clear()

    def shown_with(self, reply: Reply) -> tuple[TokenLogprobs, ...]:
        """Return the chances of the tokens that begin in what the reply has shown since."""
        found: list[TokenLogprobs] = []
        while self._held and self._held[0][0] < reply.n_shown:
            found.append(self._held.popleft()[1])
        return tuple(found)
