"""What a sound is decides the answer, on the path of images: cold, cached, restored, beside a stream."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from edgechat.base.images.image import PLACE
from edgechat.engine.backends.media import media_runs
from edgechat.engine.kv.state_store import KVStateStore
from edgechat.engine.types import ChatRequest, Delta, Message, Sampling
from tests.engine.images.seeing import (
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
from tests.engine.images.test_engine import ends, slowly
from tests.kit.vision import COLOURS, KINDS, RATE, noisy, tone
from tests.kit.vision.ear import N_TOKENS

pytestmark = pytest.mark.slow

GREEDY = Sampling(temperature=0)


@pytest.fixture
def make(template):
    made = []

    def engine(kind, states=None, *, sees=False, **changes):
        plan = plan_of(kind, hears=True, sees=sees, **changes)
        made.append(engine_of(plan, template, states=states, ngrams=plan.ngrams))
        return made[-1]

    yield engine
    for one in made:
        one.close()


@pytest.mark.parametrize("kind", KINDS)
def test_each_tone_is_heard(kind, make, tmp_path):
    engine = make(kind)
    assert (engine.backend.media_encoder.sees, engine.backend.media_encoder.hears) == (False, True)
    for colour in COLOURS if kind == "dense" else ("black", "green", "magenta"):
        assert ask(engine, colour, asking(sound_of(tone(colour), tmp_path)))[0] == colour
    assert ask(engine, "none", Message("user", QUESTION))[0] == "nothing"


@pytest.mark.parametrize("kind", KINDS)
def test_the_second_question_computes_only_itself(kind, make, tmp_path):
    engine = make(kind)
    sound = sound_of(tone("red"), tmp_path)
    said = [asking(sound)]
    text, _ = ask(engine, "a", *said)
    said += [Message("assistant", text), Message("user", QUESTION)]
    again, end = ask(engine, "b", *said)
    assert again == "red"
    assert end.usage.cached_tokens > N_TOKENS
    assert end.usage.prompt_tokens - end.usage.cached_tokens <= len(QUESTION) + 60
    # In a chat of its own, after another sound.
    assert ask(engine, "c", asking(sound_of(tone("blue"), tmp_path)))[0] == "blue"
    text, end = ask(engine, "d", asking(sound))
    assert text == "red"
    assert end.usage.cached_tokens > N_TOKENS


@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_with_a_sound_goes_on_after_a_restart(kind, make, tmp_path, monkeypatch):
    monkeypatch.setattr("edgechat.engine.scheduling.chat_cache.LEAVE_SECONDS", 0.0)
    monkeypatch.setattr("edgechat.engine.scheduling.chat_cache.worth_saving", lambda *_, **__: True)
    said = [asking(sound_of(tone("green"), tmp_path))]
    first = make(kind, states=KVStateStore(10**8, b"x"))
    text, _ = ask(first, "a", *said, chat="c0ffee00")
    first.persist(None)
    until_idle(first)
    first.close()
    said += [Message("assistant", text), Message("user", QUESTION)]
    second = make(kind, states=KVStateStore(10**8, b"x"))
    again, end = ask(second, "b", *said, chat="c0ffee00")
    assert again == "green"
    assert end.usage.cached_tokens > N_TOKENS
    assert not second.encoding._made


def test_sounds_beside_each_other_and_streams_of_text(make, tmp_path):
    engine = make("dense", context=4096)
    for colour in COLOURS:
        heard = asking(sound_of(tone(colour, seed=1), tmp_path))
        engine.begin(ChatRequest(id=colour, messages=(heard,), sampling=GREEDY, max_tokens=8))
    plain = Message("user", QUESTION)
    engine.begin(ChatRequest(id="x", messages=(plain,), sampling=GREEDY, max_tokens=8))
    events = until_idle(engine)
    assert [answer_of(colour, events)[0] for colour in (*COLOURS, "x")] == [*COLOURS, "nothing"]


def test_a_stream_goes_on_while_a_sound_is_encoded(make, tmp_path):
    engine = make("dense")
    ears = slowly(engine, 100)
    n = engine.backend.vocabulary.size
    free = Sampling(temperature=0, bias=tuple((token, -1e6) for token in range(n) if ends(engine, token)))
    events = []
    heard = asking(sound_of(tone("cyan"), tmp_path))
    engine.begin(ChatRequest(id="a", messages=(heard,), sampling=GREEDY, max_tokens=8))
    while not engine.encoding.is_running:
        events += engine.step()
    story = Message("user", "Tell me a story.")
    engine.begin(ChatRequest(id="stream", messages=(story,), sampling=free, max_tokens=1500))
    n_meanwhile = 0
    while not ears.ended:
        stepped = engine.step()
        n_meanwhile += sum(isinstance(event, Delta) and event.request_id == "stream" for event in stepped)
        events += stepped
    assert n_meanwhile >= 20
    engine.cancel("stream")
    assert answer_of("a", events + until_idle(engine))[0] == "cyan"


@pytest.mark.parametrize("kind", ["windowed", "mrope"])
def test_what_comes_last_is_what_is_asked_about(kind, make, tmp_path):
    """Images and sounds of one message, in the order in which they stand there."""
    engine = make(kind, sees=True, context=4096)
    image, sound = image_of(noisy("red"), tmp_path), sound_of(tone("blue"), tmp_path)
    text = f"This: {PLACE}{'. ' * 100}And that: {PLACE}?"
    assert ask(engine, "a", Message("user", text, media=(image, sound)))[0] == "blue"
    assert ask(engine, "b", Message("user", text, media=(sound, image)))[0] == "red"


def test_a_sound_of_several_minutes_is_cut(make, tmp_path):
    engine = make("dense", context=4096)
    waves = [tone(colour, 30) for colour in ("red", "green", "white")]
    long = asking(sound_of(np.concatenate([*waves, tone("yellow", 5)]), tmp_path))
    prompt = engine.prompts.of(ChatRequest(id="p", messages=(long,)), 4096)
    assert [run.n_cells for run in media_runs(prompt.tokens)] == [N_TOKENS] * 4
    assert ask(engine, "a", long)[0] == "yellow"


@pytest.mark.parametrize("seconds", [1 / RATE, 0.3, 29.7, 30, 30.01])
def test_sounds_of_any_length(seconds, make, tmp_path):
    answer, end = ask(make("dense"), "a", asking(sound_of(tone("white", seconds), tmp_path)))
    assert answer in COLOURS
    assert end.usage.prompt_tokens // N_TOKENS == (1 if seconds < 29.9 else 2)


def test_old_sounds_leave_with_their_turns(make, tmp_path):
    engine = make("dense", context=512)
    said = []
    for number, colour in enumerate(COLOURS):
        said.append(asking(sound_of(tone(colour, seed=number), tmp_path)))
        text, end = ask(engine, f"t{number}", *said)
        assert text == colour
        said.append(Message("assistant", text))
    assert end.usage.dropped_turns > 3


def test_a_sound_longer_than_the_context(make, tmp_path):
    engine = make("dense", context=512)
    engine.begin(ChatRequest(id="a", messages=(asking(sound_of(tone("red", 110), tmp_path)),)))
    (failed,) = until_idle(engine)
    assert failed.error.kind == "PromptTooLong"


def test_samples_that_were_released_are_read_again(make, tmp_path, monkeypatch):
    monkeypatch.setattr("edgechat.engine.prompt.media_tokens._CUT", 1)
    engine = make("dense")
    sound = sound_of(tone("blue"), tmp_path)
    assert ask(engine, "a", asking(sound))[0] == "blue"
    for number in range(2):
        ask(engine, f"n{number}", asking(sound_of(tone("red", seed=number), tmp_path)))
    engine.encoding._made.clear()
    while engine.scheduler.cache.evict():
        pass
    text, end = ask(engine, "b", asking(sound))
    assert (text, end.usage.cached_tokens) == ("blue", 0)


@pytest.mark.parametrize(("hears", "what"), [(False, "hear sounds"), (True, "see images")])
def test_a_model_refuses_what_it_does_not_take(hears, what, template, tmp_path):
    engine = engine_of(plan_of("dense", hears=hears, sees=not hears), template)
    shown = image_of(noisy("red"), tmp_path) if hears else sound_of(tone("red"), tmp_path)
    engine.begin(ChatRequest(id="a", messages=(asking(shown),)))
    (failed,) = until_idle(engine)
    assert failed.error.message == f"This model cannot {what}."
    engine.close()


def test_a_damaged_sound_fails_its_request_alone(make, tmp_path):
    engine = make("dense")
    sound = sound_of(tone("red"), tmp_path)
    Path(sound.path).write_bytes(b"RIFF\0\0\0\0WAVE")
    engine.begin(ChatRequest(id="a", messages=(asking(sound),)))
    (failed,) = until_idle(engine)
    assert "contains no samples" in failed.error.message
    assert ask(engine, "b", Message("user", QUESTION))[0] == "nothing"


def test_messages_with_media_cross_the_pipe(tmp_path):
    message = asking(sound_of(tone("red"), tmp_path), image_of(noisy("red"), tmp_path))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message) == message
