"""What an engine builds on: pictures in the KV cache, in batches, cut off, copied and restored."""

import numpy as np
import pytest

from edgechat.native.handles import Aborted
from edgechat.native.multimodal.projector import MediaChunk, TextChunk
from tests.kit.vision import KINDS, PROMPT, noisy, plain
from tests.native.multimodal.seer import NEAR, Place, Seer, apart

pytestmark = pytest.mark.slow

PARTS = PROMPT[0], noisy("cyan"), PROMPT[1]


@pytest.fixture(scope="module", params=KINDS)
def seer(request):
    with Seer(request.param) as seer:
        yield seer


@pytest.fixture
def whole(seer):
    """Read the prompt with the picture, cold; what the others are compared with."""
    return cold(seer)


def cold(seer):
    seer.context.clear()
    return seer.read(seer.chunks(*PARTS), Place())


def test_positions_and_cells(seer, whole):
    """With M-RoPE a picture moves on by its longer side, and llama.cpp's last position is where it began."""
    chunks = seer.chunks(*PARTS)
    seer.context.clear()
    place = Place()
    for chunk in chunks:
        start = place.position
        seer.read([chunk], place)
        last = seer.context.last_position(0)
        if isinstance(chunk, TextChunk):
            assert last == place.position - 1
        elif seer.projector.uses_mrope:
            assert last == start
            assert chunk.n_positions == 4 < chunk.n_tokens == 16
            assert chunk.positions(start)[:, 5].tolist() == [start, start + 1, start + 1, 0]
        else:
            assert last == place.position - 1
            assert chunk.n_positions == chunk.n_tokens == 16
    assert place.position == whole.position
    assert (place.cells > place.position) == seer.projector.uses_mrope


def test_a_picture_in_several_batches(seer, whole):
    """Causal pictures may be cut anywhere, the others not: their tokens would not see those behind them."""
    seer.context.clear()
    place = seer.read(seer.chunks(*PARTS), Place(), batch=5)
    assert (apart(place.row, whole.row) < NEAR) == seer.causal


def test_a_picture_that_is_not_causal_must_fit_a_micro_batch():
    with Seer("windowed", n_batch=64, n_ubatch=8) as seer:
        (chunk,) = (one for one in seer.chunks(plain("red")) if isinstance(one, MediaChunk))
        embeddings = seer.projector.encode(chunk)
        with pytest.raises(ValueError, match="over the limit of 8"):
            seer.see(chunk, embeddings, Place())
    with Seer("windowed", n_batch=64, n_ubatch=16) as seer:
        assert seer.ask(plain("red")) == "red"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "windowed"])
def test_a_causal_picture_may_be_larger_than_a_micro_batch(kind):
    with Seer(kind, n_batch=64, n_ubatch=8) as seer:
        assert seer.ask(plain("red")) == "red"


def test_embeddings_must_be_the_models(seer):
    n = seer.context.n_embd_input
    numbers = 4 if seer.projector.uses_mrope else 1
    for embeddings, positions in (
        (np.zeros((2, n + 1)), np.zeros((numbers, 2))),
        (np.zeros((2, n)), np.zeros((5 - numbers, 2))),
        (np.zeros((2, n)), np.zeros((numbers, 3))),
        (np.zeros((0, n)), np.zeros((numbers, 0))),
        (np.zeros((513, n)), np.zeros((numbers, 513))),
    ):
        with pytest.raises(ValueError, match="positions"):
            seer.context.decode_embeddings(0, embeddings.astype(np.float32), positions.astype(np.int32))


def test_beside_text_of_other_sequences(seer, whole):
    """Between two batches of a picture, and in one batch with the text behind it, others go on."""
    text = [int(token) for token in np.random.default_rng(1).integers(32, 127, 40)]
    seer.context.clear()
    alone = [step(seer, 1, text[at : at + 1], at) for at in range(40)]
    seer.context.clear()
    *before, last = seer.chunks(*PARTS)
    beside = []
    place = Place(seq=0)
    for chunk in before:
        seer.read([chunk], place, batch=4 if seer.causal else 0)
        beside += [step(seer, 1, text[at : at + 1], at) for at in range(len(beside), len(beside) + 3)]
    assert isinstance(last, TextChunk)
    at = len(beside)
    runs = [(1, at, text[at : at + 1], 1), (0, place.position, last.tokens, 1)]
    rows = seer.context.decode(runs)
    assert rows is not None
    assert max(map(apart, beside, alone)) < NEAR
    assert apart(rows[0], alone[at]) < NEAR
    assert apart(rows[1], whole.row) < NEAR


def step(seer, seq, tokens, at):
    rows = seer.context.decode([(seq, at, tokens, 1)])
    assert rows is not None
    return rows[0].copy()


def test_kept_embeddings_need_no_pixels(seer, whole):
    chunks = seer.chunks(*PARTS)
    kept = [seer.projector.encode(chunk) if isinstance(chunk, MediaChunk) else None for chunk in chunks]
    seer.context.clear()
    place = Place()
    for chunk, embeddings in zip(chunks, kept, strict=True):
        if isinstance(chunk, TextChunk):
            seer.read([chunk], place)
        else:
            chunk.close()
            assert embeddings is not None
            seer.see(chunk, embeddings, place)
    assert apart(place.row, whole.row) == 0


def test_cut_behind_the_picture(seer):
    """Text behind a picture is cut off at its position; recurrent states go back by a checkpoint instead."""
    *before, text = seer.chunks(*PARTS)
    seer.context.clear()
    place = seer.read(before, Place())
    checkpoint = seer.context.partial_state(0) if seer.model.has_recurrent_state else None
    position = place.position
    seer.read([text], place)
    first = place.row
    if checkpoint is not None:
        assert seer.context.set_partial_state(0, checkpoint)
    assert seer.context.remove(0, position)
    again = seer.read([text], Place(0, position))
    assert apart(again.row, first) < NEAR


def test_cut_before_the_picture(seer, whole):
    """A picture goes as a whole: with M-RoPE all its cells have one position, its first."""
    first, *rest = seer.chunks(*PARTS)
    seer.context.clear()
    place = seer.read([first], Place())
    checkpoint = seer.context.partial_state(0) if seer.model.has_recurrent_state else None
    position = place.position
    seer.read(seer.chunks(noisy("red"), PROMPT[1]), place)
    if checkpoint is not None:
        assert seer.context.set_partial_state(0, checkpoint)
    assert seer.context.remove(0, position)
    assert seer.context.last_position(0) == position - 1
    again = seer.read(rest, Place(0, position))
    assert apart(again.row, whole.row) < NEAR


def test_a_cut_inside_an_mrope_picture_leaves_it():
    """llama.cpp says yes, and removes nothing: such a cut must not be asked for."""
    with Seer("mrope") as seer:
        whole = cold(seer)
        *before, text = seer.chunks(*PARTS)
        seer.context.clear()
        place = seer.read(before, Place())
        start = seer.context.last_position(0)
        assert seer.context.remove(0, start + 1)
        assert seer.context.last_position(0) == start
        assert apart(seer.read([text], place).row, whole.row) == 0


@pytest.mark.parametrize("kind", ["mrope", "hybrid"])
def test_text_behind_a_picture_at_llama_cpps_next_position(kind):
    """It is accepted and wrong with M-RoPE: the text would be beside the picture's rows, not behind them."""
    with Seer(kind) as seer:
        whole = cold(seer)
        *before, text = seer.chunks(*PARTS)
        seer.context.clear()
        seer.read(before, Place())
        wrong = seer.read([text], Place(0, seer.context.last_position(0) + 1))
        assert apart(wrong.row, whole.row) > NEAR


def test_a_copy_has_the_picture(seer, whole):
    *before, text = seer.chunks(*PARTS)
    seer.context.clear()
    place = seer.read(before, Place())
    seer.context.copy(0, 2, -1)
    copied = seer.read([text], Place(2, place.position))
    assert apart(copied.row, whole.row) < NEAR


def test_a_state_has_the_picture(seer, whole):
    """Saved and restored into another sequence of an empty cache, rows and columns included."""
    *before, text = seer.chunks(*PARTS)
    seer.context.clear()
    place = seer.read(before, Place())
    state = seer.context.state(0)
    seer.context.clear()
    assert seer.context.set_state(3, state)
    assert seer.context.last_position(3) == (place.position - 1 if not seer.projector.uses_mrope else 7)
    restored = seer.read([text], Place(3, place.position))
    assert apart(restored.row, whole.row) < NEAR


def test_a_state_in_another_context(seer, whole):
    """As after a restart of the worker."""
    *before, text = seer.chunks(*PARTS)
    seer.context.clear()
    place = seer.read(before, Place())
    state = seer.context.state(0)
    (kind,) = (name for name in KINDS if name in str(seer.projector.name))
    with Seer(kind) as other:
        assert other.context.set_state(0, state)
        restored = other.read([text], Place(0, place.position))
        assert apart(restored.row, whole.row) < NEAR


def test_shifting_is_for_models_without_rows_and_columns(seer):
    """With M-RoPE llama.cpp ends the process where positions are shifted; it says that it cannot."""
    assert seer.context.can_shift == (not seer.projector.uses_mrope and not seer.model.window)


def test_an_aborted_picture_leaves_no_part_of_its_micro_batch(seer, whole):
    """What it leaves can be cut off where the picture began; a recurrent state is of no more use."""
    first, *between, text = seer.chunks(*PARTS)
    seer.context.clear()
    place = seer.read([first], Place())
    start = place.position
    chunk = next(one for one in between if isinstance(one, MediaChunk))
    embeddings = seer.projector.encode(chunk)
    positions = chunk.positions(start)
    seer.context.abort()
    with pytest.raises(Aborted):
        seer.context.decode_embeddings(0, embeddings, positions, causal=chunk.causal, abortable=True)
    seer.context.clear_abort()
    if seer.model.has_recurrent_state:
        return
    assert seer.context.last_position(0) == start - 1
    assert apart(seer.read([*between, text], place).row, whole.row) < NEAR


def test_drafts_behind_a_picture_are_rolled_back():
    """By snapshots of the recurrent state, in the sequence that decoded them."""
    with Seer("hybrid", n_rs_seq=4) as seer:
        place = cold(seer)
        never_drafted = step(seer, 0, [67], place.position)
        place = cold(seer)
        assert seer.context.decode([(0, place.position, [66, 68, 68], 1)]) is not None
        assert seer.context.remove(0, place.position + 1)
        rolled = step(seer, 0, [67], place.position + 1)
        place = cold(seer)
        assert seer.context.decode([(0, place.position, [66], 1)]) is not None
        assert apart(rolled, step(seer, 0, [67], place.position + 1)) < NEAR
        assert apart(rolled, never_drafted) > NEAR


def test_a_picture_behind_the_window():
    """Layers that see everything still have it; text and pictures go on behind it."""
    with Seer("windowed") as seer:
        long = "word " * 60
        seer.context.clear()
        place = seer.read(seer.chunks(PROMPT[0], plain("green"), long + PROMPT[1]), Place())
        assert place.position > 2 * seer.model.window
        assert seer.write(place) == " green"
        seer.read(seer.chunks(PROMPT[0], plain("yellow"), PROMPT[1]), place)
        assert seer.write(place) == " yellow"
