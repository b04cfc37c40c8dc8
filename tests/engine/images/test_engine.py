"""Images and sounds determine the answer: cold, cached, truncated, restored, beside streams."""

import time
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edgechat.base.errors import DecodeFailed
from edgechat.engine.backends.base import EncodingStopped, media_runs
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
    sound_of,
    until_idle,
)
from tests.kit.vision import COLOURS, KINDS, PROMPT, noisy, plain, tone
from tests.kit.vision.ear import N_TOKENS
from tests.native.multimodal.seer import Place, Seer

pytestmark = pytest.mark.slow

GREEDY = Sampling(temperature=0)


def media(images, sounds=(), *, soak=False):
    """Run the test for kinds of models that see and that hear, all but the first in the soak if so told.

    What is tested there lies above them, and takes long.
    """
    kinds = [(kind, False) for kind in images] + [(kind, True) for kind in sounds]
    return pytest.mark.parametrize(
        ("kind", "hears"),
        [
            pytest.param(
                kind,
                hears,
                id=f"{kind}, heard" if hears else kind,
                marks=[pytest.mark.soak] * (soak and kind != kinds[0][0]),
            )
            for kind, hears in kinds
        ],
    )


@pytest.fixture
def make(template):
    with ExitStack() as stack:

        def engine(kind, states=None, **changes):
            plan = plan_of(kind, **changes)
            return stack.enter_context(closing(engine_of(plan, template, states=states, ngrams=plan.ngrams)))

        yield engine


@pytest.fixture
def shown(tmp_path):
    """Return a function that makes an image or a sound of a colour."""

    def make(colour, *, hears=False, seed=0):
        if hears:
            return sound_of(tone(colour, seed=seed), tmp_path)
        return image_of(noisy(colour, seed=seed), tmp_path)

    return make


@media(ALL_KINDS, KINDS)
def test_each_colour_is_seen_and_each_tone_heard(kind, hears, make, shown):
    engine = make(kind, hears=hears, sees=not hears)
    encoder = engine.backend.media_encoder
    assert (encoder.sees, encoder.hears) == (not hears, hears)
    for colour in COLOURS if kind == "dense" or not hears else ("black", "green", "magenta"):
        assert ask(engine, colour, asking(shown(colour, hears=hears)))[0] == colour
    assert ask(engine, "none", Message("user", QUESTION))[0] == "nothing"


@media(ALL_KINDS, KINDS)
def test_the_second_question_computes_only_itself(kind, hears, make, shown):
    engine, least = make(kind, hears=hears, sees=not hears), N_TOKENS if hears else 16
    said = [asking(shown("red", hears=hears))]
    text, _ = ask(engine, "a", *said)
    said += [Message("assistant", text), Message("user", QUESTION)]
    again, end = ask(engine, "b", *said)
    assert again == "red"
    assert end.usage.prompt_tokens - end.usage.cached_tokens <= len(QUESTION) + 60
    assert end.usage.cached_tokens > least
    # In a chat of its own, after another one.
    assert ask(engine, "c", asking(shown("blue", hears=hears)))[0] == "blue"
    text, end = ask(engine, "d", said[0])
    assert text == "red"
    assert end.usage.cached_tokens > least


@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_are_those_of_libmtmd_driven_bare(kind, make, shown):
    engine = make(kind)
    engine.begin(ChatRequest(id="a", messages=(asking(shown("cyan")),), logprobs=3, max_tokens=1))
    (first,) = (event for event in until_idle(engine) if isinstance(event, Delta) and event.chances)
    with Seer(kind) as seer:
        row = seer.read(seer.chunks(PROMPT[0], noisy("cyan"), PROMPT[1]), Place()).row
    expected = sorted(row - np.logaddexp.reduce(row), reverse=True)[:3]
    assert [logprob for _, logprob in first.chances[0].others] == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("kind", [kind for kind in ALL_KINDS if kind.endswith("dense")])
def test_large_images_are_cut_into_tiles(kind, make, tmp_path):
    engine = make(kind)
    image = image_of(noisy("green", 128, 128), tmp_path)
    assert ask(engine, "a", asking(image))[0] == "green"
    prompt = engine.prompts.of(ChatRequest(id="b", messages=(asking(image),)), 2048)
    assert len(list(media_runs(prompt.tokens))) > 2


@media(ALL_KINDS, ["dense"])
def test_several_requests_at_once(kind, hears, make, shown):
    """Beside streams of text, in the slots of one cache, more of them than slots."""
    engine = make(kind, hears=hears, sees=not hears, context=4096 if hears else 2048)
    asked = {colour: asking(shown(colour, hears=hears, seed=1)) for colour in COLOURS}
    asked |= dict.fromkeys("xy", Message("user", QUESTION))
    for name, message in asked.items():
        engine.begin(ChatRequest(id=name, messages=(message,), sampling=GREEDY, max_tokens=8))
    events = until_idle(engine)
    assert [answer_of(name, events)[0] for name in asked] == [*COLOURS, "nothing", "nothing"]


@pytest.mark.parametrize("kind", MANY)
def test_an_image_in_each_turn_and_an_edit(kind, make, shown):
    engine = make(kind)
    said = []
    for number, colour in enumerate(("red", "blue", "yellow")):
        said.append(asking(shown(colour, seed=number)))
        text, _ = ask(engine, f"t{number}", *said)
        assert text == colour
        said.append(Message("assistant", text))
    edited = [*said[:2], asking(shown("white"))]
    assert ask(engine, "edit", *edited)[0] == "white"
    assert ask(engine, "again", *said, asking(shown("green")))[0] == "green"


@media(ALL_KINDS, KINDS)
def test_a_chat_goes_on_after_a_restart(kind, hears, make, shown, monkeypatch):
    monkeypatch.setattr("edgechat.engine.scheduling.chat_cache.LEAVE_SECONDS", 0.0)
    monkeypatch.setattr("edgechat.engine.scheduling.chat_cache.worth_saving", lambda *_, **__: True)
    said = [asking(shown("magenta", hears=hears))]
    engine = make(kind, states=KVStateStore(10**8, b"x"), hears=hears, sees=not hears)
    text, _ = ask(engine, "a", *said, chat="c0ffee00")
    engine.persist(None)
    until_idle(engine)
    engine.close()
    said += [Message("assistant", text), Message("user", QUESTION)]
    engine = make(kind, states=KVStateStore(10**8, b"x"), hears=hears, sees=not hears)
    text, end = ask(engine, "b", *said, chat="c0ffee00")
    assert text == "magenta"
    assert end.usage.cached_tokens > (N_TOKENS if hears else 16)
    assert end.usage.prompt_tokens - end.usage.cached_tokens <= len(QUESTION) + 60
    assert not engine.encoding._made


@media(MANY, ["dense"], soak=True)
def test_what_is_old_leaves_with_its_turns(kind, hears, make, shown):
    engine, colours = make(kind, hears=hears, sees=not hears, context=512 if hears else 256), [*COLOURS]
    said = []
    for number, colour in enumerate(colours if hears else colours * 2):
        said.append(asking(shown(colour, hears=hears, seed=number)))
        text, end = ask(engine, f"t{number}", *said)
        assert text == colour
        said.append(Message("assistant", text))
    assert end.usage.dropped_turns > (3 if hears else 4)


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


@pytest.mark.parametrize("hears", [False, True])
def test_a_stream_goes_on_while_media_are_encoded(hears, make, shown):
    """It is there before an image, and begins after a sound."""
    engine = make("dense", hears=hears, sees=not hears)
    eyes = slowly(engine, 100)
    vocabulary = engine.backend.vocabulary
    ends = [token for token in range(vocabulary.size) if vocabulary.is_end(token)]
    free = Sampling(temperature=0, bias=tuple((token, -1e6) for token in ends))
    story = (Message("user", "Tell me a story."),)
    stream = ChatRequest(id="stream", messages=story, sampling=free, max_tokens=1500)
    red = asking(shown("red", hears=hears))
    answered = ChatRequest(id="a", messages=(red,), sampling=GREEDY, max_tokens=8)
    events = []
    engine.begin(answered if hears else stream)
    while not (engine.encoding.is_running or any(isinstance(event, Delta) for event in events)):
        events += engine.step()
    engine.begin(stream if hears else answered)
    n_meanwhile = 0
    while not eyes.ended:
        stepped = engine.step()
        n_meanwhile += sum(isinstance(event, Delta) and event.request_id == "stream" for event in stepped)
        events += stepped
    assert n_meanwhile >= 20
    engine.cancel("stream")
    assert answer_of("a", events + until_idle(engine))[0] == "red"


def test_an_encoding_ends_with_its_request(make, shown):
    engine = make("dense")
    eyes = slowly(engine, 1000)
    image = shown("red")
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


def test_an_image_that_cannot_be_encoded_fails_its_request_alone(make, shown, monkeypatch):
    engine = make("dense")
    image = shown("red")
    eyes = slowly(engine, 0)
    monkeypatch.setattr(eyes, "encode", lambda *_, **__: (_ for _ in ()).throw(DecodeFailed("It is broken.")))
    engine.begin(ChatRequest(id="a", messages=(asking(image),)))
    engine.begin(ChatRequest(id="b", messages=(Message("user", QUESTION),), sampling=GREEDY, max_tokens=8))
    events = until_idle(engine)
    (failed,) = (event for event in events if isinstance(event, Failed))
    assert (failed.request_id, failed.error.message) == ("a", "It is broken.")
    slowly(engine, 0)
    assert ask(engine, "c", asking(image))[0] == "red"


@pytest.mark.parametrize(
    ("changes", "hears", "what"),
    [
        ({"projector": None}, False, "images"),
        ({}, True, "audio"),
        ({"hears": True, "sees": False}, False, "images"),
    ],
)
def test_a_model_refuses_what_it_does_not_take(changes, hears, what, make, shown):
    engine = make("dense", **changes)
    engine.begin(ChatRequest(id="a", messages=(asking(shown("red", hears=hears)),)))
    (failed,) = until_idle(engine)
    assert failed.error.message == f"This model does not support {what}."


@media([kind for kind in MANY if kind != "mlx-hybrid"], ["dense"], soak=True)
def test_what_was_released_is_read_again(kind, hears, make, shown, monkeypatch):
    if hears:  # of sounds, which take long to read, less is kept here
        monkeypatch.setattr("edgechat.engine.prompt.media_tokens._CUT", 1)
    engine = make(kind, hears=hears, sees=not hears)
    blue = asking(shown("blue", hears=hears))
    assert ask(engine, "a", blue)[0] == "blue"
    for number in range(2 if hears else 20):
        ask(engine, f"n{number}", asking(shown("red", hears=hears, seed=number)))
    engine.encoding._made.clear()
    while engine.scheduler.cache.evict():
        pass
    text, end = ask(engine, "b", blue)
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
def test_drafts_of_n_grams_leave_images_alone(kind, make, shown):
    engine = make(kind, ngrams=True, n_rs_seq=8)
    said = []
    for number, colour in enumerate(("red", "red", "red", "blue")):
        said.append(asking(shown(colour, seed=number)))
        text, _ = ask(engine, f"t{number}", *said)
        assert text == colour
        said.append(Message("assistant", text))
