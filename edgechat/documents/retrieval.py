"""Retrieval of the passages that help answer a question, and their reranking by a model.

Passages are ranked by keywords from the question (BM25) and, if there is an embedding model, by meaning
(vectors). The two rankings are combined by reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009).
"""

from __future__ import annotations

import asyncio
import re
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate

import msgspec

from edgechat import settings
from edgechat.base.errors import EngineError
from edgechat.documents.collection import UNSPACED, Collection, Found
from edgechat.documents.embedding import SearchModel, closed, plan_beside
from edgechat.planner.plan import LoadPlan
from edgechat.planner.ranking.suggestions import named_reranker

CANDIDATES = 100
"""Number of passages to take from each ranking before the rankings are fused."""
_RANK = 60
"""The constant in reciprocal rank fusion, as published."""
_WORD = re.compile(rf"[{UNSPACED}]+|[^\W{UNSPACED}]+")
_MOST_WORDS = 32
_ENDING, _STEM = 3, 5
"""Number of letters that can differ at the end of a word, and number that must match at its start."""
_COMMON = 0.2
"""Words that occur in more than this fraction of passages are ignored, unless all words are that common."""
_MOST_MATCHES = 10_000
"""Maximum number of matching passages to rank, those with the rarest words first. Each takes about 2 µs."""
_FEW = 4
"""Number of words to look up if all words are common."""
_SECTION_LETTERS = 3000


RERANKED = 32
"""Number of passages at the top of the fused ranking that a reranking model reorders."""


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """A passage with its score."""

    collection: str
    found: Found
    score: float


def search(
    collections: Sequence[Collection],
    question: str,
    limit: int,
    *,
    nearest: Sequence[list[int]] = (),
) -> list[Ranked]:
    """Return the best passages for a question, best first.

    nearest: for each collection, the ids of the passages closest in meaning, closest first.
    """
    ranked: list[Ranked] = []
    for number, collection in enumerate(collections):
        lists = [collection.by_words(match, CANDIDATES)] if (match := _match(collection, question)) else []
        lists += [nearest[number][:CANDIDATES]] if number < len(nearest) else []
        scores = joined(lists)
        best = sorted(scores, key=lambda one: -scores[one])[:limit]
        ranked += [
            Ranked(collection=collection.name, found=found, score=scores[found.id])
            for found in collection.passages(best)
        ]
    return sorted(ranked, key=lambda one: -one.score)[:limit]


def joined(lists: Sequence[Sequence[int]]) -> dict[int, float]:
    """Return, for each id in `lists`, the sum of its reciprocal ranks."""
    scores: dict[int, float] = {}
    for ranks in lists:
        for rank, one in enumerate(ranks, 1):
            scores[one] = scores.get(one, 0.0) + 1 / (_RANK + rank)
    return scores


def text_of(found: Found) -> str:
    """Return a passage as the model sees it, with its heading."""
    return f"{found.heading}\n{found.text}" if found.heading else found.text


def _match(collection: Collection, question: str) -> str:
    """Return the FTS5 expression for the distinctive words of a question; '' if there are none."""
    # Not casefold(), which turns "ß" into "ss": the index folds words differently, and keeps "ß".
    words = dict.fromkeys(word.lower() for word in _WORD.findall(question))
    terms = list(dict.fromkeys(term for word in words for term in _terms(word)))[: 2 * _MOST_WORDS]
    most = min(int(_COMMON * collection.n_passages()) + 10, _MOST_MATCHES)
    counts = {term: collection.count_up_to(term, most + 1) for term in terms}
    there = sorted((term for term in terms if counts[term]), key=lambda term: counts[term])
    total = list(accumulate(counts[term] for term in there))
    rare = [term for term, n in zip(there, total, strict=True) if counts[term] <= most and n <= _MOST_MATCHES]
    return " OR ".join(rare or there[:_FEW])


def _terms(word: str) -> Iterator[str]:
    """Yield the FTS5 terms for a word in any language: the word itself, and words that start the same way."""
    if re.match(f"[{UNSPACED}]", word):
        # In these scripts, most words have two characters, but only a dictionary can tell where they begin.
        for start in range(max(1, len(word) - 1)):
            yield f'"{" ".join(word[start : start + 2])}"'
        return
    yield f'"{word}"'
    if len(word) > _STEM:
        yield f'"{word[: max(_STEM, len(word) - _ENDING)]}" *'


def widened(collections: Sequence[Collection], ranked: Sequence[Ranked]) -> list[tuple[str, list[Found]]]:
    """Widen passages to whole sections; return them with the names of their collections, best first.

    Sections that are too long contribute only the passages that were found. Passages from the same section
    are grouped in document order.
    """
    by_name = {one.name: one for one in collections}
    groups: dict[tuple[str, int, int], list[Found]] = {}
    for one in ranked:
        key = one.collection, one.found.file.id, one.found.section
        if key not in groups:
            groups[key] = by_name[one.collection].section(one.found, _SECTION_LETTERS)
        if all(part.id != one.found.id for part in groups[key]):
            groups[key] = sorted([*groups[key], one.found], key=lambda part: part.id)
    return [(name, parts) for (name, _, _), parts in groups.items()]


SECONDS = 5.0
"""Time limit for reranking, once the model is loaded; passages not scored in time keep their ranks."""
_FEWEST = 4
"""Minimum number of passages to score within the time limit; fewer are not worth the wait."""
_QUICK = 0.25
"""If a request takes less than this many seconds, the next one contains twice as many passages."""


class Reranker(SearchModel):
    """A reranking model."""

    async def scores(self, question: str, texts: Sequence[str], seconds: float = SECONDS) -> list[float]:
        """Return a score for each text as an answer to a question; higher is better.

        If time runs out, only the first texts are scored; raises EngineError if there are too few of them.
        Texts longer than the model's context are truncated.
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
                f"It is too slow here: {len(scores)} of {len(texts)} passages scored in {seconds:.0f} s.",
                hint="Choose a smaller one as reranking_model in settings.toml, or remove the setting.",
            )
        return scores


def reranker_here(staying: Callable[[], Sequence[LoadPlan]] = tuple) -> Reranker | None:
    """Return the reranking model named in settings.toml; None if none is named.

    staying: see `embedder_here`, which raises the same errors.
    """
    config = settings.load()
    if config.reranking_model is None:
        return None
    path = str(named_reranker(config.reranking_model).path)
    return Reranker(partial(plan_beside, path, staying), idle_seconds=60 * config.idle_minutes)
