"""What drafts a token of several streams in every round: a small model, or the model's own layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edgechat.base.errors import SchemaError
from edgechat.engine.backends.base import Vocabulary
from edgechat.engine.backends.logits import Logits
from edgechat.engine.sampling import top_ids
from edgechat.engine.scheduling.draft import Draft
from edgechat.engine.scheduling.draft_sources import Source
from edgechat.engine.scheduling.sequence import Sequence as Stream
from edgechat.engine.speculative.acceptance import class_of_probability

_TOP_TOKENS = 10  # tokens over which a drafter's confidence is computed


@dataclass(slots=True)
class DraftRequest:
    """A draft to be made in rounds."""

    stream: Stream
    draft: Draft
    most: int
    is_worth_adding: Callable[[Sequence[int]], bool]
    """Whether a token is worth verifying behind others, by the classes of all of them."""
    is_worth_drafting: Callable[[Sequence[int]], bool]
    """Whether to draft another token behind tokens of these classes."""


class RoundDrafter(ABC):
    """A drafter that computes the logits of one token of each draft at a time."""

    source: Source

    def __init__(self, vocabulary: Vocabulary, n_vocab: int) -> None:
        """n_vocab: tokens that the target knows; the drafter's vocabulary may have some more, or fewer."""
        self._vocabulary = vocabulary
        self._n_vocab = min(n_vocab, vocabulary.size)

    @abstractmethod
    def _fitting_batch(self, requests: Sequence[DraftRequest]) -> list[DraftRequest]:
        """Return the requests that can be drafted for, in one call together."""

    @abstractmethod
    def _compute(self, growing: Sequence[DraftRequest]) -> Logits | None:
        """Return a row of logits for the next token of each draft; None where there is no room."""

    @abstractmethod
    def forget(self, stream: Stream) -> None:
        """Forget a stream that has ended or has other tokens now."""

    def draft(self, requests: Sequence[DraftRequest]) -> int:
        """Draft for several streams at once, a token of each in every round. Returns the rounds.

        Each draft grows up to its limit, or until `is_worth_drafting` says no. Raises DecodeFailed.
        """
        growing = self._fitting_batch(requests)
        rounds = 0
        while growing:
            rows = self._compute(growing)
            if rows is None:
                break
            rounds += 1
            growing = [
                request
                for request, row in zip(growing, rows, strict=True)
                if self._draft_token(request, row[: self._n_vocab]) and self._continues(request)
            ]
        return rounds

    def _continues(self, request: DraftRequest) -> bool:
        """Say whether a draft grows: nothing follows what ends a reply."""
        tokens = request.draft.tokens
        ends = self._vocabulary.is_end(tokens[-1])
        return len(tokens) < request.most and not ends and request.is_worth_drafting(request.draft.confidence)

    def _draft_token(self, request: DraftRequest, row: Logits) -> bool:
        """Add the next token to a draft, chosen from its logits as the target chooses from its own.

        False where it is not worth it. That is decided by how sure the draft is, before a token is drawn: to
        leave out some that were drawn would make the others likelier.
        """
        sampler, draft = request.stream.sampler, request.draft
        window = max(sampler.sampling.penalty_window, 0)
        recent = [*request.stream.tokens[-window:], *draft.tokens] if window else []
        try:
            reply = [*request.stream.constrained_reply, *draft.tokens]
            distribution = sampler.distribution(row, recent, reply)
        except SchemaError:  # the target will raise it too, or knows better
            return False
        confidence = class_of_probability(
            float(distribution[1].max()) if len(distribution[0]) > 1 else _confidence(row)
        )
        if not request.is_worth_adding([*draft.confidence, confidence]):
            return False
        if sampler.is_deterministic:
            token = sampler.predict(distribution, len(draft.tokens))
        else:
            token = sampler.draw(distribution)
            draft.distributions = [*(draft.distributions or []), distribution]
        draft.tokens.append(token)
        draft.confidence.append(confidence)
        return True


def _confidence(row: Logits) -> float:
    """Return the probability of the likeliest token, among the ten likeliest."""
    highest = row[top_ids(row, _TOP_TOKENS)].astype(np.float64)
    return float(1 / np.exp(highest - highest[0]).sum())
