"""Embeddings equal llama.cpp's, whatever else is requested, and impossible requests fail with a reason."""

import asyncio
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_cpp import Llama

from edgechat.base.errors import (
    EngineCrashed,
    ModelFileError,
    NotEmbeddable,
    PromptTooLong,
    RequestRefused,
    WrongKind,
)
from edgechat.engine.backends.llama_cpp import LlamaCppEmbedder
from edgechat.engine.types import ChatRequest, Embed, Embedded, Failed, Finished, Message
from edgechat.engine.worker.embeddings import EmbeddingEngine
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.models.formats.gguf import read_model
from edgechat.planner.fallback import step_down
from edgechat.planner.prepare import prepare
from tests.engine.worker.test_supervisor import workers
from tests.kit import EMBEDDERS, Spec, build, tiny
from tests.planner.headers import dry_run

pytestmark = pytest.mark.slow

TEXTS = ("hello", "a longer text, with more to say", "ü 世界", "x" * 300, "hello")
Vectors = npt.NDArray[np.float32]


def plan_of(path):
    return prepare(str(path), may_embed=True)


@pytest.fixture(params=EMBEDDERS, scope="module")
def path(request):
    return tiny(request.param)


@pytest.fixture(scope="module")
def plan(path):
    return plan_of(path)


@pytest.fixture
async def engine(plan):
    engine = EngineSupervisor(plan)
    yield engine
    await engine.close()


def vectors_of(found):
    assert isinstance(found, Embedded)
    return np.array([np.frombuffer(one, "<f4") for one in found.vectors])


async def test_vectors_are_those_of_llama_cpp(engine, path):
    other = Llama(str(path), embedding=True, n_ctx=512, n_batch=512, n_ubatch=512, verbose=False)
    expected = np.array([other.embed(text, normalize=True) for text in TEXTS])
    other.close()
    found = await engine.embed("r", TEXTS)
    assert vectors_of(found) == pytest.approx(expected, abs=2e-3)  # a batch of one rounds differently
    assert np.linalg.norm(vectors_of(found), axis=1) == pytest.approx(1, abs=1e-5)
    assert engine.model.embedding == 64
    assert engine.model.differences == ()
    assert isinstance(found, Embedded)
    around = 1 + (engine.model.architecture == "bert")
    assert found.tokens == sum(len(text.encode()) + around for text in TEXTS)
    # Texts that are not alike are not near each other, or the comparison above would say little.
    assert abs(vectors_of(found)[0] @ vectors_of(found)[1]) < 0.999


async def test_many_at_once_get_what_each_gets_alone(engine):
    asked = [tuple(f"text {n} of {m} " * (1 + n) for n in range(7)) for m in range(6)]
    together = await asyncio.gather(*(engine.embed(str(n), texts) for n, texts in enumerate(asked)))
    alone = [await engine.embed("r", texts) for texts in asked]
    for one, other in zip(together, alone, strict=True):
        assert vectors_of(one) == pytest.approx(vectors_of(other), abs=2e-3)


async def test_tokens_are_taken_as_they_are(engine):
    tokens = tuple(b"hello")
    bert = engine.plan.context == 512
    text = await engine.embed("r", ("hello",))
    given = await engine.embed("r", ((258, *tokens, 257) if bert else (*tokens, 257),))
    assert vectors_of(given) == pytest.approx(vectors_of(text), abs=1e-6)
    with pytest.raises(NotEmbeddable, match="are 0 to 258"):
        await engine.embed("r", ((1, 259),))
    with pytest.raises(NotEmbeddable, match="empty"):
        await engine.embed("r", ((),))


async def test_a_text_that_is_too_long_names_both_numbers(engine):
    longest = engine.plan.context
    with pytest.raises(PromptTooLong, match=rf"{longest + 1} tokens.* {longest}\.") as error:
        await engine.embed("r", ("fine", tuple([7] * (longest + 1))))
    assert error.value.hint
    whole = await engine.embed("r", (tuple([7] * longest), "fine"))
    assert vectors_of(whole)[1] == pytest.approx(vectors_of(await engine.embed("r", ("fine",)))[0], abs=2e-3)


async def test_a_text_that_is_too_long_is_cut_on_request(engine):
    longest = engine.plan.context
    room = longest - 1 - (longest == 512)  # for what the model puts around a text
    cut = await engine.embed("r", ("x" * 40 * longest, "fine", tuple([7] * (longest + 1))), cut=True)
    whole = await engine.embed("r", ("x" * room, "fine", tuple([7] * longest)))
    assert vectors_of(cut) == pytest.approx(vectors_of(whole), abs=2e-3)


async def test_a_long_text_in_parts_is_the_text_at_once():
    path = tiny("qwen3-embedding")
    text = tuple(np.random.default_rng(1).integers(32, 127, 1700).tolist())
    other = Llama(str(path), embedding=True, n_ctx=2048, n_batch=2048, n_ubatch=2048, verbose=False)
    expected = other.embed(bytes(text).decode(), normalize=True)
    other.close()
    engine = EngineSupervisor(plan_of(path))
    found = await engine.embed("r", ((*text, 257),))
    await engine.close()
    assert vectors_of(found)[0] == pytest.approx(np.array(expected), abs=2e-3)


async def test_a_killed_worker_is_told_and_replaced(engine):
    await engine.start()
    workers()[0].suspend()
    asking = asyncio.create_task(engine.embed("r", TEXTS))
    await asyncio.sleep(0.1)
    workers()[0].kill()
    with pytest.raises(EngineCrashed, match="while computing"):
        await asking
    assert engine.has_crashed
    assert len(vectors_of(await engine.embed("r", TEXTS))) == len(TEXTS)
    assert not engine.has_crashed
    workers()[0].suspend()
    asking = asyncio.create_task(engine.embed("again", TEXTS))
    await asyncio.sleep(0.1)
    workers()[0].kill()
    with pytest.raises(EngineCrashed):
        await asking
    with pytest.raises(RequestRefused, match="2 times"):
        await engine.embed("and again", TEXTS)


async def test_who_stops_waiting_frees_the_engine(engine):
    await engine.start()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(engine.embed("r", tuple("x" * 400 for _ in range(1000))), 0.1)
    assert len(vectors_of(await engine.embed("next", ("hi",)))) == 1
    snapshot = await engine.inspect()
    assert snapshot.work.running == 0
    assert sum(snapshot.work.batches) > 1
    assert snapshot.cache.cells == 0


async def test_the_wrong_kind_is_refused_without_a_load(plan, scripted):
    engine = EngineSupervisor(plan)
    with pytest.raises(WrongKind, match="cannot chat"):
        async for _ in engine.stream(ChatRequest(id="r", messages=(Message("user", "hi"),))):
            pass
    chat = EngineSupervisor(scripted())
    with pytest.raises(WrongKind, match="cannot produce embeddings"):
        await chat.embed("r", ("hi",))
    assert workers() == []


async def test_unload_gives_the_memory_back_and_the_next_request_loads_again(engine):
    first = vectors_of(await engine.embed("r", ("hi",)))
    await engine.unload()
    assert workers() == []
    assert not engine.has_crashed
    assert vectors_of(await engine.embed("r", ("hi",))) == pytest.approx(first, abs=1e-6)


class Numbers:
    """An embedder whose vector of a text is (its tokens, its first token)."""

    longest, n_batch, n_seq_max, dimensions = 100, 30, 3, 2
    size = 1000
    reranks, rerank_template = False, None

    def __init__(self):
        self.vocabulary = self
        self.calls = []
        self.n_characters = 0

    def whole(self, text):
        self.n_characters += len(text)
        return [ord(one) for one in text]

    def embed(self, texts):
        assert 0 < len(texts) <= self.n_seq_max
        assert len(texts) == 1 or sum(map(len, texts)) <= self.n_batch
        self.calls.append([one[0] for one in texts])
        return np.array([(len(one), one[0]) for one in texts], np.float32)

    def close(self):
        pass


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 130), st.integers(0, 1100)), min_size=1, max_size=6), max_size=6
    ),
    st.sets(st.integers(0, 5)),
)
def test_every_request_ends_once_with_its_own(asked, cancelled):
    engine = EmbeddingEngine(Numbers())
    ended = {}
    events = []
    for name, texts in enumerate(asked):
        events += engine.submit(Embed(str(name), tuple((first,) * n for n, first in texts)))
    steps = 0
    while not engine.is_idle:
        events += engine.step()
        if steps == 1:
            events += [event for name in cancelled for event in engine.cancel(str(name))]
        steps += 1
        assert steps < 100
    for event in events:
        assert isinstance(event, Embedded | Failed | Finished)
        assert event.request_id is not None
        assert event.request_id not in ended
        ended[event.request_id] = event
    assert set(ended) == {str(name) for name in range(len(asked))}
    for name, texts in enumerate(asked):
        event = ended[str(name)]
        sound = all(0 < n <= 100 and first < 1000 for n, first in texts)
        if isinstance(event, Embedded):
            assert sound
            assert vectors_of(event).tolist() == [[n, first] for n, first in texts]
            assert event.tokens == sum(n for n, _ in texts)
        elif isinstance(event, Failed):
            assert not sound
        else:
            assert name in cancelled


def test_requests_take_turns():
    numbers = Numbers()
    engine = EmbeddingEngine(numbers)
    engine.submit(Embed("many", tuple((1,) * 10 for _ in range(30))))
    engine.submit(Embed("few", ((2,) * 10,)))
    ends = [event for _ in range(3) for event in engine.step()]
    assert [event.request_id for event in ends if isinstance(event, Embedded)] == ["few"]


def test_a_text_that_cannot_fit_is_not_looked_at_to_its_end():
    """Others wait for whoever looks."""
    numbers = Numbers()
    engine = EmbeddingEngine(numbers)
    for n in (4, 12, 20):
        engine.submit(Embed("long", ("some words " * 2**n,)))
        (event,) = engine.step()
        assert event.error.kind == "PromptTooLong"
        assert "the model's limit is 100" in event.error.message
    assert numbers.n_characters < 50_000


def test_a_plan_holds_what_the_longest_text_takes(path, plan):
    header = read_model(path)
    assert plan.embeddings
    assert plan.buffers, "llama.cpp's own word"
    assert not plan.ngrams
    assert plan.no_draft == ""
    assert plan.context == header.context_length
    assert (plan.n_ubatch == plan.context) == header.is_encoder
    (found,) = dry_run(header, [plan])
    rows = 4 * (header.vocab_size + header.embedding_length) * plan.n_batch
    assert found.output == rows <= plan.memory[0].compute_bytes
    assert (found.cache == 0) == header.is_encoder
    down = step_down(plan, header)
    if plan.context == 512:
        assert down is None
    else:
        assert down is not None
        assert (down[0].context, down[0].n_batch) == (2048, 512)


def test_an_encoder_that_does_not_say_how_gets_the_mean(opened):
    spec = Spec(shape=EMBEDDERS["bert"], name="unsaid")
    said = opened(LlamaCppEmbedder(plan_of(build(spec))))
    unsaid = build(Spec(shape=EMBEDDERS["bert"], name="unsaid", overrides={"bert.pooling_type": None}))
    other = opened(LlamaCppEmbedder(plan_of(unsaid)))
    assert said.embed([[1, 2, 3]]) == pytest.approx(other.embed([[1, 2, 3]]))


def test_chat_refuses_an_embedding_model_before_it_loads(path):
    with pytest.raises(ModelFileError, match="cannot chat"):
        prepare(str(path))


def test_a_header_is_only_believed_where_it_makes_sense(path):
    header = read_model(path)
    assert header.makes_embeddings
    assert not read_model(tiny("dense")).makes_embeddings
    odd = replace(header, metadata=header.metadata | {f"{header.architecture}.pooling_type": "last"})
    with pytest.raises(ModelFileError):
        _ = odd.pooling
