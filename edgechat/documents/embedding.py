"""Embeddings of passages and queries, computed by a model in a worker, and the index of vectors.

    embedder = embedder_here()
    if embedder is not None:
        vectors = await embedder.passages(texts)
        similarity = vectors @ await embedder.query("how do I …?")

Without an embedding model, search relies on keywords alone.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

from edgechat import settings
from edgechat.base.errors import EngineClosed, ModelFileError
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.models.catalogue import EmbeddingPrefixes
from edgechat.models.local.inventory import LocalModel
from edgechat.models.local.stores import fingerprint_of
from edgechat.planner.plan import LoadPlan
from edgechat.planner.prepare import prepare
from edgechat.planner.ranking.suggestions import EMBEDDING, installed_embedder, prefixes_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Vectors = npt.NDArray[np.float32]


_TEXTS, _CHARACTERS = 256, 1 << 20
"""Maximum number of texts, and of characters, in one request."""
_LONGEST = 1 << 16
"""Maximum number of characters per text sent to the worker, which truncates texts to the model's context."""


class SearchModel:
    """A search model, loaded on first use and unloaded when idle. It belongs to one event loop.

    Calls raise EdgechatError (DoesNotFit, LoadFailed, EngineCrashed, ModelFileError, …), and EngineClosed
    during or after `close`. Cancelling a call stops its computation.
    """

    def __init__(self, plan: Callable[[], LoadPlan], *, idle_seconds: float = 600.0) -> None:
        """plan: plans how to load the model; called in a thread. idle_seconds: 0 disables unloading."""
        self._plan, self._idle_seconds = plan, idle_seconds
        self._engine: EngineSupervisor | None = None
        self._lock = asyncio.Lock()
        self._closed = False

    async def close(self) -> None:
        """Stop the worker. Calls in progress raise EngineClosed."""
        self._closed = True
        if self._engine is not None:
            await self._engine.close()

    async def _started(self) -> EngineSupervisor:
        """Return the engine, with the model loaded."""
        async with self._lock:
            if self._engine is None and not self._closed:
                plan = await asyncio.to_thread(self._plan)
                self._engine = EngineSupervisor(plan, idle_seconds=self._idle_seconds, replan=self._plan)
        if self._engine is None or self._closed:
            raise closed()
        await self._engine.start()
        return self._engine


class Embedder(SearchModel):
    """An embedding model."""

    def __init__(
        self,
        name: str,
        plan: Callable[[], LoadPlan],
        prefixes: EmbeddingPrefixes,
        *,
        idle_seconds: float = 600.0,
    ) -> None:
        """See `SearchModel`."""
        super().__init__(plan, idle_seconds=idle_seconds)
        self.name = name
        """Identifies the model, quantization and content; vectors with different names are not comparable."""
        self._prefixes = prefixes

    async def passages(
        self, texts: Sequence[str], on_progress: Callable[[int], None] = lambda _done: None
    ) -> Vectors:
        """Return the unit vectors (n, d) for texts to be searched.

        Texts longer than the model's context are truncated. on_progress: receives the number of texts
        finished so far.
        """
        return await self._vectors([self._prefixes.passage + text[:_LONGEST] for text in texts], on_progress)

    async def query(self, text: str) -> Vectors:
        """Return the unit vector (d,) for a query."""
        vectors = await self._vectors([self._prefixes.query + text[:_LONGEST]], lambda _done: None)
        return vectors.reshape(-1)

    async def _vectors(self, texts: Sequence[str], on_progress: Callable[[int], None]) -> Vectors:
        import numpy as np

        engine = await self._started()
        assert engine.model is not None
        d = engine.model.embedding
        parts: list[bytes] = []
        for batch in _batches(texts):
            found = await engine.embed(uuid.uuid4().hex, batch, cut=True)
            if found is None:
                raise closed()
            parts += found.vectors
            on_progress(len(parts))
        return np.frombuffer(b"".join(parts), "<f4").reshape(len(texts), d)


def embedder_here(staying: Callable[[], Sequence[LoadPlan]] = tuple) -> Embedder | None:
    """Return the embedding model to use on this machine, or None if there is none. Accesses the disk.

    staying: returns the plans of models that stay loaded, so that memory is left for them. Raises
    SettingsError, and ModelNotFound or ModelFileError for a model named in settings.toml.
    """
    config = settings.load()
    model = installed_embedder(config.embedding_model)
    if model is None:
        return None
    prefixes = prefixes_of(model)
    return Embedder(
        _name(model, prefixes),
        partial(plan_beside, str(model.path), staying),
        prefixes,
        idle_seconds=60 * config.idle_minutes,
    )


def plan_beside(path: str, staying: Callable[[], Sequence[LoadPlan]]) -> LoadPlan:
    """Plan how to load a search model alongside other loaded models. Raises the same errors as `prepare`."""
    return prepare(path, EMBEDDING, may_embed=True, staying=staying())


def _name(model: LocalModel, prefixes: EmbeddingPrefixes) -> str:
    """Return a name such as 'embeddinggemma:Q8_0:d41d8cd98f00b204'.

    The hash covers the model's content, its prefixes and the context size.
    """
    name = model.entry.name if model.entry is not None else model.name.partition(":")[0]
    try:
        content = fingerprint_of(model.path, f"{prefixes.passage}\0{prefixes.query}\0{EMBEDDING.context}")
    except OSError as error:
        raise ModelFileError(f"{model.path} cannot be read: {error.strerror}.") from error
    return f"{name}:{model.quant or ''}:{blake2b(content, digest_size=8).hexdigest()}"


def _batches(texts: Sequence[str]) -> Iterator[tuple[str, ...]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and (len(batch) >= _TEXTS or size + len(text) > _CHARACTERS):
            yield tuple(batch)
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield tuple(batch)


def closed() -> EngineClosed:
    """Return the error for calls made during or after `close`."""
    return EngineClosed("The model that searches documents was unloaded.", hint="Search again.")


_BLOCK = 1 << 14
"""Number of vectors to convert to floats at a time."""


def packed(vectors: Vectors) -> bytes:
    """Pack vectors (n, d) of length 1 (or 0) into n records of d signed bytes.

    The largest component of each vector becomes 127; the scale is known because the length is 1. Records can
    be split and concatenated.
    """
    import numpy as np

    largest = np.abs(vectors).max(axis=1, initial=0.0, keepdims=True)
    return np.rint(vectors * (127 / np.where(largest > 0, largest, 1))).astype(np.int8).tobytes()


class VectorIndex:
    """In-memory nearest-neighbour search over a collection's vectors, using one byte per component."""

    def __init__(self, ids: Sequence[int], data: bytes) -> None:
        """data: the packed vectors of `ids`, concatenated."""
        import numpy as np

        size = len(data) // len(ids) if ids else 0
        self._ids = np.array(ids, np.int64)
        self._rows = np.frombuffer(data, np.int8).reshape(len(ids), size)
        lengths = np.sqrt(np.einsum("nd,nd->n", self._rows, self._rows, dtype=np.int32).astype(np.float32))
        self._lengths = np.where(lengths > 0, lengths, 1)

    def __len__(self) -> int:
        return len(self._ids)

    def nearest(self, vector: Vectors, limit: int) -> list[int]:
        """Return the ids of the vectors nearest to `vector` (d,), nearest first; [] if their sizes differ."""
        import numpy as np

        if not len(self) or vector.shape != self._rows.shape[1:]:
            return []
        blocks = (self._rows[at : at + _BLOCK] for at in range(0, len(self), _BLOCK))
        scores = np.concatenate([block.astype(np.float32) @ vector for block in blocks]) / self._lengths
        limit = min(limit, len(scores))
        best = np.argpartition(-scores, limit - 1)[:limit]
        return [int(self._ids[at]) for at in best[np.argsort(-scores[best], kind="stable")]]
