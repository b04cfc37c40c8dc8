"""What an image shows decides the answer: cold, cached, cut off, restored, beside streams of text."""

import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edgechat.base.errors import DecodeFailed
from edgechat.engine.backends.base import EncodingStopped
from edgechat.engine.backends.media import media_runs
from edgechat.engine.kv.state_store import KVStateStore
from edgechat.engine.types import ChatRequest, Delta, Failed, Message, Sampling
from tests.engine.images.seeing import (
    ALL_KINDS,
    MANY,
    QUESTION,
    answer_of,
    ask,
    asking,
    engine_of,
    image_of,
    plan_of,
    until_idle,
)
from tests.kit.vision import COLOURS, KINDS, PROMPT, noisy, plain
from tests.native.multimodal.seer import Place, Seer

pytestmark = pytest.mark.slow


def first_and_soak(kinds):
    """Return the kinds, all but the first for the soak: what is tested lies above them, and takes long."""
    first, *others = kinds
    return [first, *(pytest.param(kind, marks=pytest.mark.soak) for kind in others)]


GREEDY = Sampling(temperature=0)


@pytest.fixture
def make(template):
    made = []

    def engine(kind, states=None, **changes):
        plan = plan_of(kind, **changes)
        made.append(engine_of(plan, template, states=states, ngrams=plan.ngrams))
        return made[-1]

    yield engine
    for one in made:
        one.close()


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_each_colour_is_seen(kind, make, tmp_path):
    engine = make(kind)
    for colour in COLOURS:
        assert ask(engine, colour, asking(image_of(noisy(colour), tmp_path)))[0] == colour
    assert ask(engine, "none", Message("user", QUESTION))[0] == "nothing"


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_the_second_question_computes_only_itself(kind, make, tmp_path):
    engine = make(kind)
    image = image_of(noisy("red"), tmp_path)
    said = [asking(image)]
    text, _ = ask(engine, "a", *said)
    said += [Message("assistant", text), Message("user", QUESTION)]
    again, end = ask(engine, "b", *said)
    assert again == "red"
    n_new = end.usage.prompt_tokens - end.usage.cached_tokens
    assert n_new <= len(QUESTION) + 60
    assert end.usage.cached_tokens > 16
    # In a chat of its own, after another image.
    assert ask(engine, "c", asking(image_of(plain("blue"), tmp_path)))[0] == "blue"
    text, end = ask(engine, "d", asking(image))
    assert text == "red"
    assert end.usage.cached_tokens > 16


@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_are_those_of_libmtmd_driven_bare(kind, make, tmp_path):
    engine, picture = make(kind), noisy("cyan")
    engine.begin(
        ChatRequest(id="a", messages=(asking(image_of(picture, tmp_path)),), logprobs=3, max_tokens=1)
    )
    (first,) = (event for event in until_idle(engine) if isinstance(event, Delta) and event.chances)
    with Seer(kind) as seer:
        row = seer.read(seer.chunks(PROMPT[0], picture, PROMPT[1]), Place()).row
    expected = sorted(row - np.logaddexp.reduce(row), reverse=True)[:3]
    assert [logprob for _, logprob in first.chances[0].others] == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("kind", [kind for kind in ALL_KINDS if kind.endswith("dense")])
def test_large_images_are_cut_into_tiles(kind, make, tmp_path):
    engine = make(kind)
    image = image_of(noisy("green", 128, 128), tmp_path)
    assert ask(engine, "a", asking(image))[0] == "green"
    prompt = engine.prompts.of(ChatRequest(id="b", messages=(asking(image),)), 2048)
    assert len(list(media_runs(prompt.tokens))) > 2


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_images_of_several_requests_at_once(kind, make, tmp_path):
    """Beside streams of text, in the slots of one cache, more of them than slots."""
    engine = make(kind)
    for colour in COLOURS:
        image = image_of(noisy(colour, seed=1), tmp_path)
        request = ChatRequest(id=colour, messages=(asking(image),), sampling=GREEDY, max_tokens=8)
        engine.begin(request)
    for name in ("x", "y"):
        engine.begin(
            ChatRequest(id=name, messages=(Message("user", QUESTION),), sampling=GREEDY, max_tokens=8)
        )
    events = until_idle(engine)
    for colour in COLOURS:
        assert answer_of(colour, events)[0] == colour
    assert answer_of("x", events)[0] == answer_of("y", events)[0] == "nothing"


@pytest.mark.parametrize("kind", MANY)
def test_an_image_in_each_turn_and_an_edit(kind, make, tmp_path):
    engine = make(kind)
    said = []
    for number, colour in enumerate(("red", "blue", "yellow")):
        said.append(asking(image_of(noisy(colour, seed=number), tmp_path)))
        text, _ = ask(engine, f"t{number}", *said)
        assert text == colour
        said.append(Message("assistant", text))
    edited = [*said[:2], asking(image_of(noisy("white"), tmp_path))]
    assert ask(engine, "edit", *edited)[0] == "white"
    assert ask(engine, "again", *said, asking(image_of(noisy("green"), tmp_path)))[0] == "green"


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_chat_with_an_image_goes_on_after_a_restart(kind, make, tmp_path, monkeypatch):
    monkeypatch.setattr("edgechat.engine.scheduling.chat_cache.LEAVE_SECONDS", 0.0)
    monkeypatch.setattr("edgechat.engine.scheduling.chat_cache.worth_saving", lambda *_, **__: True)
    image = image_of(noisy("magenta"), tmp_path)
    said = [asking(image)]
    engine = make(kind, states=KVStateStore(10**8, b"x"))
    text, _ = ask(engine, "a", *said, chat="c0ffee00")
    engine.persist(None)
    until_idle(engine)
    engine.close()
    said += [Message("assistant", text), Message("user", QUESTION)]
    engine = make(kind, states=KVStateStore(10**8, b"x"))
    text, end = ask(engine, "b", *said, chat="c0ffee00")
    assert text == "magenta"
    assert end.usage.prompt_tokens - end.usage.cached_tokens <= len(QUESTION) + 60
    assert not engine.encoding._made


@pytest.mark.parametrize("kind", first_and_soak(MANY))
def test_old_images_leave_with_their_turns(kind, make, tmp_path):
    engine = make(kind, context=256)
    said = []
    for number, colour in enumerate([*COLOURS] * 2):
        said.append(asking(image_of(noisy(colour, seed=number), tmp_path)))
        text, end = ask(engine, f"t{number}", *said)
        assert text == colour
        said.append(Message("assistant", text))
    assert end.usage.dropped_turns > 4


class SlowEyes:
    """A projector that takes its time, in steps of a hundredth of a second."""

    def __init__(self, encoder, steps):
        self._encoder, self._steps = encoder, steps
        self.ended = []

    def __getattr__(self, name):
        return getattr(self._encoder, name)

    def encode(self, media, *, between):
        for _ in range(self._steps):
            time.sleep(0.01)
            if not between():
                self.ended.append("stopped")
                raise EncodingStopped
        self.ended.append("done")
        return self._encoder.encode(media, between=between)


def slowly(engine, steps):
    assert engine.backend.media_encoder is not None
    eyes = SlowEyes(engine.backend.media_encoder, steps)
    engine.encoding._encoder = eyes
    return eyes


def test_a_stream_goes_on_while_an_image_is_encoded(make, tmp_path):
    engine = make("dense")
    eyes = slowly(engine, 100)
    story = Message("user", "Tell me a story.")
    bias = tuple((token, -1e6) for token in range(engine.backend.vocabulary.size) if ends(engine, token))
    free = Sampling(temperature=0, bias=bias)
    engine.begin(ChatRequest(id="stream", messages=(story,), sampling=free, max_tokens=1500))
    events = []
    while not any(isinstance(event, Delta) for event in events):
        events += engine.step()
    engine.begin(
        ChatRequest(
            id="a", messages=(asking(image_of(noisy("red"), tmp_path)),), sampling=GREEDY, max_tokens=8
        )
    )
    n_meanwhile = 0
    while not eyes.ended:
        stepped = engine.step()
        n_meanwhile += sum(isinstance(event, Delta) and event.request_id == "stream" for event in stepped)
        events += stepped
    assert n_meanwhile >= 20
    engine.cancel("stream")
    assert answer_of("a", events + until_idle(engine))[0] == "red"


def ends(engine, token):
    return engine.backend.vocabulary.is_end(token)


def test_an_encoding_ends_with_its_request(make, tmp_path):
    engine = make("dense")
    eyes = slowly(engine, 1000)
    image = image_of(noisy("red"), tmp_path)
    engine.begin(ChatRequest(id="a", messages=(asking(image),)))
    while not engine.encoding.is_running:
        engine.step()
    engine.cancel("a")
    until_idle(engine)
    while engine.encoding.is_running:
        time.sleep(0.001)
    assert eyes.ended == ["stopped"]
    slowly(engine, 1)
    assert ask(engine, "b", asking(image))[0] == "red"


def test_an_image_that_cannot_be_encoded_fails_its_request_alone(make, tmp_path, monkeypatch):
    engine = make("dense")
    image = image_of(noisy("red"), tmp_path)
    eyes = slowly(engine, 0)
    monkeypatch.setattr(eyes, "encode", lambda *_, **__: (_ for _ in ()).throw(DecodeFailed("It is broken.")))
    engine.begin(ChatRequest(id="a", messages=(asking(image),)))
    engine.begin(ChatRequest(id="b", messages=(Message("user", QUESTION),), sampling=GREEDY, max_tokens=8))
    events = until_idle(engine)
    (failed,) = (event for event in events if isinstance(event, Failed))
    assert (failed.request_id, failed.error.message) == ("a", "It is broken.")
    slowly(engine, 0)
    assert ask(engine, "c", asking(image))[0] == "red"


def test_a_model_that_cannot_see_says_so(make, tmp_path):
    engine = make("dense", projector=None)
    engine.begin(ChatRequest(id="a", messages=(asking(image_of(plain("red"), tmp_path)),)))
    (failed,) = until_idle(engine)
    assert "cannot see images" in failed.error.message


@pytest.mark.parametrize("kind", first_and_soak(kind for kind in MANY if kind != "mlx-hybrid"))
def test_pixels_that_were_released_are_read_again(kind, make, tmp_path):
    engine = make(kind)
    image = image_of(noisy("blue"), tmp_path)
    assert ask(engine, "a", asking(image))[0] == "blue"
    for number in range(20):
        ask(engine, f"n{number}", asking(image_of(noisy("red", seed=number), tmp_path)))
    engine.encoding._made.clear()
    while engine.scheduler.cache.evict():
        pass
    text, end = ask(engine, "b", asking(image))
    assert (text, end.usage.cached_tokens) == ("blue", 0)


def test_a_damaged_projector_does_not_keep_a_model_from_loading(make, tmp_path):
    plan = plan_of("dense")
    assert plan.projector is not None
    damaged = tmp_path / "mmproj.gguf"
    damaged.write_bytes(Path(plan.projector.path).read_bytes()[:2000])
    engine = make("dense", projector=msgspec.structs.replace(plan.projector, path=str(damaged)))
    assert ask(engine, "a", Message("user", QUESTION))[0] == "nothing"
    engine.begin(ChatRequest(id="b", messages=(asking(image_of(plain("red"), tmp_path)),)))
    (failed,) = until_idle(engine)
    assert "mmproj.gguf" in failed.error.message


@pytest.mark.parametrize("kind", MANY)
def test_drafts_of_n_grams_leave_images_alone(kind, make, tmp_path):
    engine = make(kind, ngrams=True, n_rs_seq=8)
    said = []
    for number, colour in enumerate(("red", "red", "red", "blue")):
        said.append(asking(image_of(noisy(colour, seed=number), tmp_path)))
        text, _ = ask(engine, f"t{number}", *said)
        assert text == colour
        said.append(Message("assistant", text))
