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
from edgechat.base.errors import EngineError
from edgechat.documents.embedding import SearchModel, closed, plan_beside
from edgechat.planner.plan import LoadPlan
from edgechat.planner.ranking.embedders import named_reranker

SECONDS = 5.0
"""For the passages of a question, once the model is loaded: those that come later keep their ranks."""
_FEWEST = 4
"""Passages in that time; fewer are not worth waiting for."""
_QUICK = 0.25
"""Seconds of a request, after which the next one may have twice as many passages."""


class Reranker(SearchModel):
    """A reranking model."""

    async def scores(self, question: str, texts: Sequence[str], seconds: float = SECONDS) -> list[float]:
        """Return the scores of texts as answers to a question, which are higher for better ones.

        Of the first texts only, where the time is up; raises EngineError where these are few. Of a text that
        is too long, the beginning counts.
        """
        engine = await self._started()
        scores: list[float] = []
        n, loop = 1, asyncio.get_running_loop()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while len(scores) < len(texts):
                    batch = tuple(texts[len(scores) : len(scores) + n])
                    began = loop.time()
                    found = await engine.embed(uuid.uuid4().hex, batch, cut=True, query=question)
                    if found is None:
                        raise closed()
                    scores += struct.unpack(f"<{len(batch)}f", b"".join(found.vectors))
                    n *= 2 if loop.time() - began < _QUICK else 1
        if len(scores) < min(_FEWEST, len(texts)):
            raise EngineError(
                f"It is too slow here: it scored {len(scores)} of {len(texts)} passages in {seconds:.0f} s.",
                hint="Name a smaller one as reranking_model in settings.toml, or none.",
            )
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
