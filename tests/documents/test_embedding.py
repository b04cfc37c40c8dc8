"""Vectors of passages and queries: prefixed, cut, cancelled, unloaded; and which model makes them."""

import asyncio
from contextlib import closing
from functools import partial

import numpy as np
import pytest

from edgechat import settings
from edgechat.base import paths
from edgechat.base.errors import EngineClosed, ModelFileError, ModelNotFound
from edgechat.documents import registry
from edgechat.documents.embedding import Embedder, embedder_here, packed
from edgechat.documents.library import DocumentLibrary, Room
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.models.catalogue import EmbeddingPrefixes
from edgechat.planner.prepare import prepare
from edgechat.planner.ranking.suggestions import EMBEDDING
from tests import homes
from tests.documents.test_vectors import agreement, unpacked
from tests.engine.worker.test_supervisor import workers
from tests.kit import EMBEDDERS, tiny

pytestmark = pytest.mark.slow

PREFIXES = EmbeddingPrefixes(query="query: ", passage="passage: ")
TEXTS = ("hello", "a longer text, with more to say", "ü 世界", "", "x" * 3000)


@pytest.fixture(params=EMBEDDERS)
def path(request):
    return tiny(request.param)


def embedder_of(path, idle_seconds=600.0):
    plan = partial(prepare, str(path), EMBEDDING, may_embed=True)
    return Embedder("tiny", plan, PREFIXES, idle_seconds=idle_seconds)


@pytest.fixture
async def embedder(path):
    embedder = embedder_of(path)
    yield embedder
    await embedder.close()


def at_home(kind, name):
    return homes.place(tiny(kind), paths.data_dir() / "models" / name)


async def test_texts_are_prefixed_and_cut(embedder, path):
    vectors, query = await embedder.passages(TEXTS), await embedder.query("hello")
    assert (vectors.shape, vectors.dtype, query.shape) == ((5, 64), np.float32, (64,))
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    engine = EngineSupervisor(prepare(str(path), EMBEDDING, may_embed=True))
    room = 512 - 1 - (path.name.startswith("tiny-bert"))  # for what the model puts around a text
    texts = [*("passage: " + text for text in TEXTS[:-1]), ("passage: " + "x" * 600)[:room], "query: hello"]
    expected = await engine.embed("r", tuple(texts))
    await engine.close()
    assert expected is not None
    for vector, other in zip([*vectors, query], expected.vectors, strict=True):
        assert vector == pytest.approx(np.frombuffer(other, "<f4"), abs=2e-3)
    assert abs(vectors[0] @ query) < 0.9999


async def test_many_texts_go_in_several_requests(embedder):
    done = []
    texts = [f"text {n} " * (1 + n % 7) for n in range(300)]
    vectors = await embedder.passages(texts, done.append)
    assert done == [256, 300]
    assert vectors[299] == pytest.approx((await embedder.passages(texts[299:]))[0], abs=2e-3)
    assert (await embedder.passages([])).shape == (0, 64)


async def test_stored_vectors_rank_as_before(embedder):
    words = ("the", "cat", "sat", "on", "a", "mat", "while", "seven", "green", "parrots", "ate", "lunch")
    generator = np.random.default_rng(3)
    texts = [" ".join(generator.choice(words, 12)) for _ in range(400)]
    vectors = await embedder.passages(texts)
    queries = np.array([await embedder.query(text) for text in texts[:20]])
    error, kept = agreement(vectors, queries, unpacked(packed(vectors), *vectors.shape))
    assert error < 0.003
    assert kept > 0.95


async def test_who_stops_waiting_frees_the_model(embedder):
    await embedder.query("load")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(embedder.passages(["x" * 400] * 5000), 0.1)
    assert (await asyncio.wait_for(embedder.query("hi"), 5)).shape == (64,)


async def test_an_idle_model_is_unloaded_and_loaded_again():
    embedder = embedder_of(tiny("bert"), idle_seconds=0.2)
    first = await embedder.query("hi")
    while workers():
        await asyncio.sleep(0.05)
    assert await embedder.query("hi") == pytest.approx(first, abs=1e-6)
    await embedder.close()
    assert workers() == []


async def test_close_ends_a_call_and_precedes_others():
    embedder = embedder_of(tiny("bert"))
    await embedder.query("load")
    running = asyncio.create_task(embedder.passages(["x" * 400] * 5000))
    await asyncio.sleep(0.1)
    await embedder.close()
    for call in (running, embedder.query("more")):
        with pytest.raises(EngineClosed):
            await call


async def test_the_embedder_of_this_machine():
    assert embedder_here() is None
    at_home("dense", "chat.gguf")
    assert embedder_here() is None
    at_home("bert", "nomic-embed-text-v1.5.Q8_0.gguf")
    embedder = embedder_here()
    assert embedder is not None
    assert (await embedder.query("hi")).shape == (64,)
    await embedder.close()
    model, quant, content = embedder.name.split(":")
    assert (model, quant, len(content)) == ("nomic-embed-text-v1.5", "Q8_0", 16)


def test_a_name_means_one_content():
    path = at_home("bert", "one.gguf")
    before = embedder_here()
    moved = path.rename(path.with_name("nomic-embed-text.gguf"))
    prefixed = embedder_here()
    moved.write_bytes(tiny("bert", weights="F16").read_bytes())
    changed = embedder_here()
    assert before
    assert prefixed
    assert changed
    contents = [one.name.rpartition(":")[2] for one in (before, prefixed, changed)]
    assert len(set(contents)) == 3
    again = embedder_here()
    assert again
    assert again.name == changed.name


def test_settings_name_the_model():
    at_home("bert", "nomic-embed-text-v1.5.Q8_0.gguf")
    at_home("qwen3-embedding", "mine.gguf")
    settings.change(("embedding_model",), "mine")
    embedder = embedder_here()
    assert embedder is not None
    assert embedder.name.startswith("mine:")
    settings.change(("embedding_model",), "gone")
    with pytest.raises(ModelNotFound, match="gone"):
        embedder_here()


def test_a_chat_model_is_refused():
    settings.change(("embedding_model",), str(at_home("dense", "chat.gguf")))
    with pytest.raises(ModelFileError, match="cannot be used for embedding"):
        embedder_here()


async def test_passages_that_were_embedded_before_it_was_stopped_stay_so(tmp_path):
    at_home("bert", "nomic-embed-text-v1.5.Q8_0.gguf")
    folder = tmp_path / "parts"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number}.md").write_text(f"The part {number} is heavy. {'So. ' * 100}")
    with closing(registry.create("parts")) as collection:
        collection.add_root(str(folder))
    seen = []

    def stop(progress):
        seen.append(progress)
        if len(seen) == 2:
            embedding.cancel()

    library = DocumentLibrary(embedder_here)
    try:
        await library.refresh(["parts"])
        await library.embed_searched(stop)  # nothing was searched
        await library.find(["parts"], "heavy", Room(passages=3000, whole=0))
        embedding = asyncio.create_task(library.embed_searched(stop))
        with pytest.raises(asyncio.CancelledError):
            await embedding
        assert [(one.done, one.total) for one in seen] == [(16, 60), (32, 60)]
        await library.embed_searched(seen.append)
        assert (seen[-1].done, seen[-1].total) == (28, 28)
    finally:
        await library.close()
    with closing(registry.open_collection("parts")) as collection:
        assert collection.counts().embedded == 60
