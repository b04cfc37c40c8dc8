"""Scores of passages as answers to a question, by a reranking model in a worker of its own.

Unlike vectors, which are compared with that of the question, each passage is read together with the question:
that is more exact, and takes as long as reading a prompt of all of them.
"""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from edgechat import settings
from edgechat.documents.embedding import SearchModel, closed, plan_beside
from edgechat.planner.plan import LoadPlan
from edgechat.planner.ranking.embedders import named_reranker

SECONDS = 5.0
"""For the passages of a question, once the model is loaded: those that come later keep their ranks."""
_TEXTS = 4
"""Of one request, whose scores are kept when time is up during the next."""


class Reranker(SearchModel):
    """A reranking model."""

    async def scores(self, question: str, texts: Sequence[str], seconds: float = SECONDS) -> list[float]:
        """Return the scores of texts as answers to a question, which are higher for better ones.

        Of the first texts only, where the time is up. Of a text that is too long, the beginning counts.
        """
        engine = await self._started()
        scores: list[float] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while len(scores) < len(texts):
                    batch = tuple(texts[len(scores) : len(scores) + _TEXTS])
                    found = await engine.embed(uuid.uuid4().hex, batch, cut=True, query=question)
                    if found is None:
                        raise closed()
                    scores += struct.unpack(f"<{len(batch)}f", b"".join(found.vectors))
        return scores


def reranker_here(staying: Callable[[], Sequence[LoadPlan]] = tuple) -> Reranker | None:
    """Return the reranking model that settings.toml names; None if it names none.

    staying: as for `embedder_here`, which has the same errors.
    """
    config = settings.load()
    if config.reranking_model is None:
        return None
    path = str(named_reranker(config.reranking_model).path)
    return Reranker(partial(plan_beside, path, staying), idle_seconds=60 * config.idle_minutes)
