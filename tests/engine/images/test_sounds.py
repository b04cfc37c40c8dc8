"""Tests for sounds only; others are in test_engine.py."""

from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edgechat.base.images.image import PLACE
from edgechat.engine.backends.base import media_runs
from edgechat.engine.types import ChatRequest, Message, Sampling
from tests.engine.images.seeing import (
    QUESTION,
    ask,
    asking,
    engine_of,
    image_of,
    plan_of,
    sound_of,
    until_idle,
)
from tests.kit.vision import COLOURS, RATE, noisy, tone
from tests.kit.vision.ear import N_TOKENS

pytestmark = pytest.mark.slow

GREEDY = Sampling(temperature=0)


@pytest.fixture
def make(template):
    with ExitStack() as stack:

        def engine(kind, *, sees=False, **changes):
            plan = plan_of(kind, hears=True, sees=sees, **changes)
            return stack.enter_context(closing(engine_of(plan, template)))

        yield engine


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


def test_a_sound_longer_than_the_context(make, tmp_path):
    engine = make("dense", context=512)
    engine.begin(ChatRequest(id="a", messages=(asking(sound_of(tone("red", 110), tmp_path)),)))
    (failed,) = until_idle(engine)
    assert failed.error.kind == "PromptTooLong"


def test_a_damaged_sound_fails_its_request_alone(make, tmp_path):
    engine = make("dense")
    sound = sound_of(tone("red"), tmp_path)
    Path(sound.path).write_bytes(b"RIFF\0\0\0\0WAVE")
    engine.begin(ChatRequest(id="a", messages=(asking(sound),)))
    (failed,) = until_idle(engine)
    assert "is damaged" in failed.error.message
    assert ask(engine, "b", Message("user", QUESTION))[0] == "nothing"


def test_messages_with_media_cross_the_pipe(tmp_path):
    message = asking(sound_of(tone("red"), tmp_path), image_of(noisy("red"), tmp_path))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message) == message
