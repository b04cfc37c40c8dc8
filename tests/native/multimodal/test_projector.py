"""Pictures through libmtmd: what is seen decides the answer, on every kind of model."""

import ctypes
from contextlib import closing

import llama_cpp.llama_cpp as llama
import llama_cpp.mtmd_cpp as lib
import numpy as np
import pytest

from edgechat.base.errors import BadRequest, LoadFailed
from edgechat.base.images.image import MAX_SIDE
from edgechat.native.handles import Model
from edgechat.native.multimodal.projector import Bitmap, Cancelled, MediaChunk, Projector
from edgechat.native.params import LoadParams
from tests.kit import QWEN3, Spec, build, tiny
from tests.kit.vision import COLOURS, KINDS, PROMPT, noisy, plain, seeing
from tests.native.multimodal.seer import NEAR, Place, Seer, apart, bitmap

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=KINDS)
def seer(request):
    with Seer(request.param) as seer:
        yield seer


def media(seer, *pictures):
    return [chunk for chunk in seer.chunks(*pictures) if isinstance(chunk, MediaChunk)]


def test_what_a_picture_shows_decides_the_answer(seer):
    assert [seer.ask(plain(colour)) for colour in COLOURS] == list(COLOURS)
    assert [seer.ask(noisy(colour, 100, 100)) for colour in COLOURS] == list(COLOURS)
    assert seer.ask() == "nothing"


@pytest.mark.parametrize("colours", [("red", "blue"), ("blue", "red"), ("black", "white")])
def test_the_picture_of_the_last_question_is_meant(seer, colours):
    seer.context.clear()
    place = Place()
    for colour in colours:
        seer.read(seer.chunks(PROMPT[0], plain(colour), PROMPT[1]), place)
        assert seer.write(place) == f" {colour}"


def test_logits_tell_pictures_of_one_colour_apart(seer):
    seer.context.clear()
    pictures = [noisy("green", seed=seed) for seed in range(2)]
    rows = [seer.read(seer.chunks(one, PROMPT[1]), Place(seq)).row for seq, one in enumerate(pictures)]
    assert 2 * NEAR < apart(*rows) < 20


def test_the_same_as_libmtmds_own_loop(seer):
    parts = PROMPT[0], noisy("cyan"), PROMPT[1]
    seer.context.clear()
    ours = seer.read(seer.chunks(*parts), Place())
    seer.context.clear()
    position, row = bare(seer, noisy("cyan"))
    assert position == ours.position
    assert apart(ours.row, row) == 0


def bare(seer, picture):
    """Let libmtmd do everything: return the next position, and the last row."""
    text = (PROMPT[0] + "<__media__>" + PROMPT[1]).encode()
    native = lib.mtmd_input_text(text, len(text), True, True)
    chunks, next_position = lib.mtmd_input_chunks_init(), ctypes.c_int32()
    projector, context = seer.projector.pointer, seer.context.pointer
    with bitmap(picture) as one:
        bitmaps = (ctypes.c_void_p * 1)(one.pointer)
        assert lib.mtmd_tokenize(projector, chunks, ctypes.byref(native), bitmaps, 1) == 0
    place = ctypes.byref(next_position)
    assert lib.mtmd_helper_eval_chunks(projector, context, chunks, 0, 0, 512, True, place) == 0
    lib.mtmd_input_chunks_free(chunks)
    row = np.ctypeslib.as_array(llama.llama_get_logits_ith(context, -1), (seer.vocabulary.size,))
    return next_position.value, row.copy()


def test_embeddings_are_the_same_each_time(seer):
    one, other = (media(seer, noisy("red"))[-1] for _ in range(2))
    first, again, third = seer.projector.encode(one), seer.projector.encode(one), seer.projector.encode(other)
    assert np.array_equal(first, again)
    assert np.array_equal(first, third)
    assert first.shape == (one.n_tokens, seer.context.n_embd_input)
    assert not np.array_equal(first, seer.projector.encode(media(seer, noisy("red", seed=1))[-1]))


def test_ids_are_those_of_the_pixels(seer):
    """Two pictures beside each other, the same one twice: each chunk is told from others of its picture."""
    chunks = media(seer, plain("red"), plain("red"), plain("red", 64, 32))
    keys = [(chunk.id, chunk.part) for chunk in chunks]
    half = keys.index(keys[0], 1)
    assert keys[:half] == keys[half : 2 * half]
    assert len(set(keys)) == len(keys) - half
    assert len({chunk.id for chunk in chunks}) == 2


def test_counting_needs_no_pixels(seer):
    with closing(Bitmap(100, 80, None)) as blank:
        counted = seer.projector.tokenize(blank)
    seen = media(seer, plain("red", 100, 80))
    sizes = [(one.n_tokens, one.n_positions) for one in counted if isinstance(one, MediaChunk)]
    assert sizes == [(one.n_tokens, one.n_positions) for one in seen]


def test_other_sequences_are_computed_in_between(seer):
    """An encoder that is left after every operation gives the same, and so do those that had their turn."""
    (*_, chunk) = media(seer, noisy("blue"))
    whole = seer.projector.encode(chunk)
    text = [int(token) for token in np.random.default_rng(0).integers(32, 127, 500)]
    seer.context.clear()
    alone = [seer.context.decode([(1, at, text[at : at + 1], 1)])[0].copy() for at in range(200)]
    seer.context.clear()
    rows = []

    def between():
        found = seer.context.decode([(1, len(rows), text[len(rows) : len(rows) + 1], 1)])
        assert found is not None
        rows.append(found[0].copy())
        return True

    assert np.array_equal(seer.projector.encode(chunk, between=between, every=0.0), whole)
    assert len(rows) > 50
    assert np.array_equal(rows, alone[: len(rows)])


def test_an_encoding_is_cancelled(seer):
    (*_, chunk) = media(seer, noisy("blue"))
    whole = seer.projector.encode(chunk)
    left = iter([True, True, False])
    with pytest.raises(Cancelled):
        seer.projector.encode(chunk, between=lambda: next(left), every=0.0)
    assert list(left) == []
    assert np.array_equal(seer.projector.encode(chunk), whole)


def test_what_goes_wrong_in_between_ends_it(seer):
    (*_, chunk) = media(seer, noisy("blue"))
    with pytest.raises(ZeroDivisionError):
        seer.projector.encode(chunk, between=lambda: bool(1 // 0), every=0.0)


def test_it_is_left_no_sooner_than_asked(seer):
    (*_, chunk) = media(seer, noisy("blue"))
    calls = []
    seer.projector.encode(chunk, between=lambda: not calls.append(True), every=3600.0)
    assert not calls


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 100), (3, 7), (1000, 10)])
def test_small_and_narrow_pictures(seer, width, height):
    for chunk in media(seer, plain("red", width, height)):
        assert len(seer.projector.encode(chunk)) == chunk.n_tokens


@pytest.mark.parametrize(("width", "height"), [(1, 10_000), (10_000, 1), (MAX_SIDE, 4)])
def test_pictures_of_which_nothing_is_left(width, height):
    """Where both sides are scaled down alike; elsewhere they are stretched."""
    with Seer("dense") as seer:
        with pytest.raises(BadRequest, match="cannot process this picture") as caught:
            media(seer, plain("red", width, height))
        assert "Crop it" in (caught.value.hint or "")
    with Seer("mrope") as seer:
        assert media(seer, plain("red", width, height))


@pytest.mark.parametrize(("width", "height"), [(0, 1), (1, 0), (-1, 1), (MAX_SIDE + 1, 1), (10_000, 10_000)])
def test_pictures_that_are_none(width, height):
    with pytest.raises(BadRequest, match="pixels"):
        Bitmap(width, height, None)


def test_pixels_must_be_as_many_as_the_picture_has():
    with pytest.raises(ValueError, match="RGB"):
        Bitmap(2, 2, b"\0" * 11)


def test_what_is_closed_is_not_used(seer):
    one = Bitmap(64, 64, bytes(64 * 64 * 3))
    one.close()
    one.close()
    with pytest.raises(ValueError, match="closed"):
        seer.projector.tokenize(one)
    chunk = media(seer, plain("red"))[-1]
    embeddings = seer.projector.encode(chunk)
    chunk.close()
    with pytest.raises(ValueError, match="released"):
        seer.projector.encode(chunk)
    seer.context.clear()
    seer.see(chunk, embeddings, Place())  # its positions stay


def test_the_limit_of_a_picture():
    eyes, load = seeing("mrope"), LoadParams(context=512)
    with closing(Model(eyes.model, load)) as model:
        projector, blank = Projector(eyes.projector, model, max_tokens=16), Bitmap(96, 96, None)
        with closing(projector), closing(blank):
            chunks = projector.tokenize(blank)
        (found,) = (chunk.n_tokens for chunk in chunks if isinstance(chunk, MediaChunk))
        assert found == 16


@pytest.mark.parametrize("kind", KINDS)
def test_another_models_projector(kind):
    """Its embeddings have another size."""
    wide = build(Spec(shape=QWEN3.sized(n_embd=128)))
    model = Model(wide, LoadParams(context=512))
    with closing(model), pytest.raises(LoadFailed, match="mismatch") as caught:
        Projector(seeing(kind).projector, model)
    assert "projector" in (caught.value.hint or "")


def test_a_model_without_the_tokens_around_pictures():
    model = Model(tiny("qwen3"), LoadParams(context=512))
    with closing(model), pytest.raises(LoadFailed, match="no tokens for pictures"):
        Projector(seeing("dense").projector, model)


def test_what_is_no_projector():
    with closing(Model(tiny(), LoadParams(context=512))) as model:
        with pytest.raises(LoadFailed, match="cannot load"):
            Projector(tiny(), model)
        with pytest.raises(LoadFailed, match="no device"):
            Projector(seeing("dense").projector, model, device="CUDA7")
