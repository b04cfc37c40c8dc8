"""Tokens chosen where the logits are: the ones that the host would choose, and the engine none the wiser."""

import itertools

import mlx.core as mx
import numpy as np
import pytest

from edgechat.base.errors import DecodeFailed
from edgechat.engine.backends.base import BatchPart
from edgechat.engine.backends.mlx.backend import BROKEN, MlxBackend, draw
from edgechat.engine.engine import EngineCore
from edgechat.engine.prompt.template import ChatTemplate
from edgechat.engine.sampling import Sampler
from edgechat.engine.types import ChatRequest, Delta, Failed, Finished, Message, Sampling
from tests.engine.runtimes import plan
from tests.kit.build import Spec
from tests.kit.mlx import mlx_build, mlx_tiny
from tests.kit.shapes import KINDS

pytestmark = pytest.mark.slow

SETTINGS = [
    Sampling(temperature=t, top_k=k, top_p=p, min_p=m)
    for t, k, p, m in itertools.product((0.0, 0.8, 2.0), (0, 1, 40), (1.0, 0.9), (0.0, 0.05))
]
PLAIN = Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, seed=11)


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_it_is_the_token_that_the_host_takes(sampling):
    random = np.random.default_rng(7)
    for n_vocab in (50, 5000):
        for number in (0.0, 0.3, 0.999, *random.random(5)):
            logits = (4 * random.standard_normal(n_vocab)).astype(np.float32)
            sampler = Sampler(sampling)
            sampler._upcoming.append(float(number))
            found = int(draw(mx.array(logits), sampling, float(number)).item())
            assert found == sampler.choose(logits, [])
            assert found in Sampler(sampling).distribution(logits, [])[0]


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("sampling", [SETTINGS[0], PLAIN])
def test_no_token_is_made_of_what_is_no_number(broken, sampling):
    logits = np.full(100, broken, np.float32)
    if np.isnan(broken):
        logits[1:] = 0.0
    assert int(draw(mx.array(logits), sampling, 0.5).item()) == BROKEN


@pytest.fixture(params=["dense", "windowed", "hybrid"])
def engines(request):
    """Engines on the same model: in one the host chooses, in the other the backend."""
    shape = KINDS[request.param]
    folder = mlx_build(Spec(shape=shape.sized(window=40) if shape.window else shape, name="drawing"))
    made = []
    for there in (False, True):
        backend = MlxBackend(plan(folder, n_outputs_max=20))
        backend.drawing = backend if there else None
        made.append(EngineCore(backend, ChatTemplate(backend.chat_template), ngrams=True))
    yield made[0], made[1]
    for engine in made:
        engine.close()


def asked(text, sampling=PLAIN, *, tokens=40, name="one"):
    return ChatRequest(id=name, messages=(Message("user", text),), sampling=sampling, max_tokens=tokens)


def replies(engine, *requests):
    """Return the texts of requests that run at the same time."""
    texts = {one.id: "" for one in requests}
    for one in requests:
        engine.submit(one)
    ahead = set(texts)
    while ahead:
        for event in engine.step():
            assert not isinstance(event, Failed)
            if isinstance(event, Delta):
                texts[event.request_id] += event.text
            elif isinstance(event, Finished):
                ahead.remove(event.request_id)
    return texts


def test_texts_are_the_same(engines):
    host, there = engines
    for sampling in (PLAIN, Sampling(temperature=0.0)):
        for tokens in (1, 2, 40):  # a reply ends with a token that was begun for nothing
            request = asked("Tell me of the sea. " * 4, sampling, tokens=tokens)
            assert replies(there, request) == replies(host, request)


def test_streams_take_turns(engines):
    requests = [asked(f"Number {n} is here.", tokens=20 + n, name=str(n)) for n in range(3)]
    host, there = engines
    assert replies(there, *requests) == replies(host, *requests)


def test_the_next_turn_goes_on_from_what_is_true(engines):
    texts = []
    for engine in engines:
        messages = ()
        for turn in range(3):
            messages += (Message("user", f"Turn {turn}, and more words."),)
            request = ChatRequest(id=str(turn), messages=messages, sampling=PLAIN, max_tokens=25)
            reply = replies(engine, request)[str(turn)]
            messages += (Message("assistant", reply),)
        texts.append(messages)
    assert texts[0] == texts[1]


def test_a_reply_that_is_stopped_leaves_its_cache_true(engines):
    host, there = engines
    request = asked("Who goes there?")
    there.submit(asked("Who goes there?", name="stopped"))
    for _ in range(8):
        there.step()
    there.cancel("stopped")
    assert replies(there, request) == replies(host, request)


def test_penalties_are_left_to_the_host(engines):
    host, there = engines
    request = asked("Once more.", Sampling(temperature=0.8, seed=3, repetition_penalty=1.3))
    assert replies(there, request) == replies(host, request)


def test_a_token_that_was_begun_is_verified_with_drafts(engines):
    """Text that repeats itself: n-grams guess, and what they guess comes after what was computed ahead."""
    host, there = engines
    request = asked("abcabcabc " * 12, Sampling(temperature=0.0), tokens=80)
    assert replies(there, request) == replies(host, request)


def test_damaged_weights_end_the_request_alone(opened):
    backend = opened(MlxBackend(plan(mlx_tiny("dense"))))
    model = backend._model
    model.model.norm.weight = mx.full(model.model.norm.weight.shape, float("nan"))
    with pytest.raises(DecodeFailed, match="NaN or infinite"):
        backend.next_token(BatchPart(0, 0, [70, 71], 1), PLAIN, 0.5)
    assert backend.truncate(0, 0)
