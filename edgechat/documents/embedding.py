"""Embeddings of passages and of queries, by a model in its own worker; and how vectors are stored.

    embedder = embedder_here()
    if embedder is not None:
        vectors = await embedder.passages(texts)
        nearness = vectors @ await embedder.query("how do I …?")

Nothing else of the search needs them: without an embedding model, words alone are compared.
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
"""Of one request, which has one answer."""
_LONGEST = 1 << 16
"""Characters of a text that are sent to the worker, which cuts it to the model's context."""


class SearchModel:
    """A model for searching. Loaded by the first text, unloaded when idle; belongs to one event loop.

    Errors are EdgechatErrors: DoesNotFit, LoadFailed, EngineCrashed, ModelFileError, …; EngineClosed where
    `close` ended or precedes a call. Cancelling a call stops its computation.
    """

    def __init__(self, plan: Callable[[], LoadPlan], *, idle_seconds: float = 600.0) -> None:
        """plan: plans a load, called in a thread before it. idle_seconds: 0 never unloads."""
        self._plan, self._idle_seconds = plan, idle_seconds
        self._engine: EngineSupervisor | None = None
        self._lock = asyncio.Lock()
        self._closed = False

    async def close(self) -> None:
        """End the worker, and with it every call."""
        self._closed = True
        if self._engine is not None:
            await self._engine.close()

    async def _started(self) -> EngineSupervisor:
        """Return the engine, loaded."""
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
        """Of the model, its quantization and its content: vectors of two names cannot be compared."""
        self._prefixes = prefixes

    async def passages(
        self, texts: Sequence[str], on_progress: Callable[[int], None] = lambda _done: None
    ) -> Vectors:
        """Return the vectors of texts that are searched (n, d), of length 1.

        Of a text longer than the model's context, the beginning counts. on_progress: told how many are done.
        """
        return await self._vectors([self._prefixes.passage + text[:_LONGEST] for text in texts], on_progress)

    async def query(self, text: str) -> Vectors:
        """Return the vector of what is searched for (d,), of length 1."""
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
    """Return the embedding model that is to be used on this machine; None if there is none.

    staying: plans of models that are loaded at the time, for whose memory it must leave room. Reads the disk.
    Raises SettingsError, and ModelNotFound or ModelFileError for a model that settings.toml names.
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
    """Return how a model for searching is loaded beside others. Raises as `prepare` does."""
    return prepare(path, EMBEDDING, may_embed=True, staying=staying())


def _name(model: LocalModel, prefixes: EmbeddingPrefixes) -> str:
    """Return 'embeddinggemma:Q8_0:d41d8cd98f00b204'. The end follows from content, prefix and context."""
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
    """Return the error for what comes after the end of a model."""
    return EngineClosed("The model that searches documents was unloaded.", hint="Search again.")


_BLOCK = 1 << 14
"""Vectors that are made floats at a time."""


def packed(vectors: Vectors) -> bytes:
    """Return vectors (n, d) of length 1 (or 0) as n records of d signed bytes.

    The largest number of each becomes 127; what that is a multiple of follows from the length, which is 1.
    Records may be cut apart and put together.
    """
    import numpy as np

    largest = np.abs(vectors).max(axis=1, initial=0.0, keepdims=True)
    return np.rint(vectors * (127 / np.where(largest > 0, largest, 1))).astype(np.int8).tobytes()


def unpacked(data: bytes, n: int, d: int) -> Vectors:
    """Return the vectors (n, d). Raises ValueError if the data has another size."""
    import numpy as np

    vectors = np.frombuffer(data, np.int8).reshape(n, d).astype(np.float32)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    lengths[lengths == 0] = 1
    vectors /= lengths
    return vectors


class VectorIndex:
    """The vectors of a collection in memory, a byte a number, by which those nearest to another are found."""

    def __init__(self, ids: Sequence[int], data: bytes) -> None:
        """data: the packed vectors of `ids`, one after the other."""
        import numpy as np

        size = len(data) // len(ids) if ids else 0
        self._ids = np.array(ids, np.int64)
        self._rows = np.frombuffer(data, np.int8).reshape(len(ids), size)
        lengths = np.sqrt(np.einsum("nd,nd->n", self._rows, self._rows, dtype=np.int32).astype(np.float32))
        self._lengths = np.where(lengths > 0, lengths, 1)

    def __len__(self) -> int:
        return len(self._ids)

    def nearest(self, vector: Vectors, limit: int) -> list[int]:
        """Return the ids of the vectors nearest to one (d,), the nearest first; none if lengths differ."""
        import numpy as np

        if not len(self) or vector.shape != self._rows.shape[1:]:
            return []
        blocks = (self._rows[at : at + _BLOCK] for at in range(0, len(self), _BLOCK))
        scores = np.concatenate([block.astype(np.float32) @ vector for block in blocks]) / self._lengths
        limit = min(limit, len(scores))
        best = np.argpartition(-scores, limit - 1)[:limit]
        return [int(self._ids[at]) for at in best[np.argsort(-scores[best], kind="stable")]]
