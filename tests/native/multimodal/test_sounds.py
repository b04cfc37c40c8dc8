"""Sounds through libmtmd: what they are decides the answer, and our loop computes what libmtmd's own does."""

import numpy as np
import pytest

from edgechat.base.errors import BadRequest
from edgechat.native.multimodal.probe import has_map, probe
from edgechat.native.multimodal.projector import Cancelled, MediaChunk, Waveform
from tests.kit.vision import KINDS, PROMPT, RATE, hearing, noisy, tone
from tests.kit.vision.ear import N_TOKENS
from tests.native.multimodal.seer import NEAR, Place, Seer, apart
from tests.native.multimodal.test_projector import bare

pytestmark = pytest.mark.slow

PARTS = PROMPT[0], tone("cyan"), PROMPT[1]


@pytest.fixture(scope="module", params=KINDS)
def hearer(request):
    with Seer(request.param, hears=True) as seer:
        yield seer


@pytest.fixture(scope="module")
def dense():
    with Seer("dense", hears=True) as seer:
        yield seer


def sounds(seer, *waves):
    return [chunk for chunk in seer.chunks(*waves) if isinstance(chunk, MediaChunk)]


def test_what_a_sound_is_decides_the_answer(hearer):
    assert [hearer.ask(tone(colour)) for colour in ("black", "red", "magenta")] == ["black", "red", "magenta"]
    assert hearer.ask() == "nothing"


def test_the_same_as_libmtmds_own_loop(hearer):
    hearer.context.clear()
    ours = hearer.read(hearer.chunks(*PARTS), Place())
    hearer.context.clear()
    position, row = bare(hearer, tone("cyan"))
    assert position == ours.position == ours.cells
    assert apart(ours.row, row) == 0


def test_a_sound_may_be_cut_anywhere(hearer):
    """Its tokens see only those before them, also where those of a picture see each other."""
    hearer.context.clear()
    whole = hearer.read(hearer.chunks(*PARTS), Place())
    hearer.context.clear()
    assert apart(hearer.read(hearer.chunks(*PARTS), Place(), batch=7).row, whole.row) < 10 * NEAR


def test_positions_follow_each_other(hearer):
    (chunk,) = sounds(hearer, tone("red"))
    assert (chunk.what, chunk.n_tokens, chunk.n_positions) == ("sound", N_TOKENS, N_TOKENS)
    positions = chunk.positions(9)
    assert positions.shape == (4 if hearer.projector.uses_mrope else 1, N_TOKENS)
    assert (positions == np.arange(9, 9 + N_TOKENS)).all()


def test_ids_are_those_of_the_samples(dense):
    one, again, long, rest = sounds(dense, tone("red"), tone("red"), np.tile(tone("red"), 31))
    assert one.id == again.id != long.id == rest.id
    assert [chunk.part for chunk in (one, again, long, rest)] == [0, 0, 0, 1]


def test_an_encoding_can_be_left_and_cancelled(dense):
    (chunk,) = sounds(dense, tone("green", seed=3))
    calls = []
    embeddings = dense.projector.encode(chunk, between=lambda: not calls.append(1), every=0)
    assert len(calls) > 20
    assert np.array_equal(embeddings, dense.projector.encode(chunk))
    with pytest.raises(Cancelled):
        dense.projector.encode(chunk, between=lambda: False, every=0)


def test_what_it_does_not_take(dense):
    with pytest.raises(BadRequest, match="does not accept pictures"):
        dense.chunks(noisy("red"))
    with Seer("dense") as deaf, pytest.raises(BadRequest, match="does not accept sounds"):
        deaf.chunks(tone("red"))


@pytest.mark.parametrize("pcm", [b"", b"abc"])
def test_what_no_sound_can_be(pcm):
    with pytest.raises(ValueError, match="are not samples"):
        Waveform(pcm, RATE)


def test_the_probe_tells_of_it():
    for kind, sees in (("dense", False), ("mrope", True)):
        facts = probe(hearing(kind, sees=sees).projector)
        assert (facts.sees, facts.hears) == (sees, True)
        if has_map():
            portable = probe(hearing(kind, sees=sees).projector, portable=True)
            assert portable.memory["CPU"] == pytest.approx(facts.memory["CPU"], abs=2**16)
