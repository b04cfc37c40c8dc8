"""Layers that read the target's hidden states (MTP, EAGLE-3) as a drafter."""

from __future__ import annotations

import time
from collections.abc import Sequence

from edgechat.engine.backends.base import Backend, BatchPart, CacheFull, DraftHead
from edgechat.engine.backends.logits import Logits
from edgechat.engine.scheduling.draft_sources import Source
from edgechat.engine.scheduling.sequence import Sequence as Stream
from edgechat.engine.speculative.round_drafter import DraftRequest, RoundDrafter


class HeadDrafter(RoundDrafter):
    """A head of the target, which knows what the target has computed."""

    def __init__(self, backend: Backend, head: DraftHead) -> None:
        super().__init__(backend.vocabulary, backend.vocabulary.size)
        self.source: Source = head.kind
        self.longest = head.longest
        """Tokens of a draft."""
        self._backend = backend
        self._head = head

    def warm_up(self, token: Sequence[int]) -> float:
        """Draft a token several times and return the shortest time. Raises DecodeFailed or CacheFull."""
        seconds: list[float] = []
        for _ in range(4):
            self._backend.decode([BatchPart(0, 0, token, 1)])
            began = time.perf_counter()
            self._head.begin([(0, token[0])])
            seconds.append(time.perf_counter() - began)
            self._backend.truncate(0, 0)
        return min(seconds)

    def is_ready(self, stream: Stream) -> bool:
        """Say whether it can draft what follows a stream, all but the last token of which is computed."""
        return stream.slot is not None and self._head.can_draft(stream.slot.id, len(stream.tokens) - 1)

    def _fitting_batch(self, requests: Sequence[DraftRequest]) -> list[DraftRequest]:
        return [request for request in requests if self.is_ready(request.stream)]

    def _compute(self, growing: Sequence[DraftRequest]) -> Logits | None:
        is_first = not growing[0].draft.tokens
        tokens = [
            (request.stream.slot.id, (request.draft.tokens or request.stream.tokens)[-1])
            for request in growing
            if request.stream.slot is not None
        ]
        try:
            return self._head.begin(tokens) if is_first else self._head.extend(tokens)
        except CacheFull:
            return None

    def forget(self, stream: Stream) -> None:
        """Forget nothing: what it has read belongs to the target's cache."""
