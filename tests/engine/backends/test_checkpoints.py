"""Going back to a checkpoint: what follows is what follows the same tokens computed afresh."""

import random

import numpy as np
import pytest

from edgechat.engine.backends.base import BatchPart, Checkpoint
from edgechat.models.formats.mlx.contents import read_model
from edgechat.native.params import LoadParams
from edgechat.planner.estimate.footprint import footprint_of
from tests.engine import runtimes
from tests.engine.runtimes import batches, feed, is_true, plan, some

pytestmark = [pytest.mark.slow, pytest.mark.pairs]


@pytest.fixture
def backend(kind, open_backend):
    backend = open_backend(kind, n_outputs_max=64, n_rs_seq=8, n_seq_max=4)
    if not backend.checkpoint_bytes:
        assert backend.capabilities.cuts
        pytest.skip("it can be cut, so it needs none")
    return backend


@pytest.mark.quick
@pytest.mark.parametrize(("length", "more"), [(10, 5), (25, 200), (150, 1), (150, 400), (700, 64)])
def test_what_follows_is_true(backend, cold, length, more):
    """Before and behind the end of a window, in one call and many, token by token."""
    tokens, other = some(1, length), some(3, 40)
    feed(backend, 0, 0, tokens)
    checkpoint = backend.checkpoint(0)
    assert (checkpoint.length, checkpoint.n_bytes > 0) == (length, True)
    feed(backend, 0, length, some(2, more))
    assert backend.rewind(0, checkpoint)
    assert is_true(feed(backend, 0, length, other, 20), cold(tokens + other, 20))
    for at in range(40, 45):
        other.append(at)
        assert is_true(feed(backend, 0, length + at, other[-1:]), cold(tokens + other))


def test_its_size_is_what_the_plan_counts(runtime, kind, backend):
    """To the byte but for tables, once the window is full; MLX keeps a chunk beyond it, at the most."""
    header = read_model(runtime.model(kind))
    feed(backend, 0, 0, some(1, 300))
    planned = footprint_of(header.format).checkpoint(header, LoadParams(context=2048, n_batch=64))
    size = backend.checkpoint(0).n_bytes
    assert size <= planned
    assert runtime.name == "mlx" or planned - size < 1500


def test_one_checkpoint_is_gone_back_to_again_and_again(backend, cold):
    """And to earlier ones after later ones, with much and little between."""
    tokens = some(1, 600)
    checkpoints = []
    for start in range(0, 600, 75):
        feed(backend, 0, start, tokens[start : start + 75])
        checkpoints.append(backend.checkpoint(0))
    rng = random.Random(1)
    length = 600
    for step in range(12):
        checkpoint = rng.choice([one for one in checkpoints if one.length <= length])
        assert backend.rewind(0, checkpoint)
        more = some(step, rng.choice([1, 20, 90]))
        assert is_true(feed(backend, 0, checkpoint.length, more), cold(tokens[: checkpoint.length] + more))
        if step % 2:  # the text as it was, so that later checkpoints are of these tokens again
            assert backend.rewind(0, checkpoint)
            feed(backend, 0, checkpoint.length, tokens[checkpoint.length :])
            length = 600
        else:
            length = checkpoint.length


def test_a_copy_is_rewound_and_the_original_goes_on(backend, cold):
    """Copied before and after it was computed further; a rewound one is copied as well."""
    tokens, later = some(1, 300), some(2, 100)
    feed(backend, 0, 0, tokens)
    checkpoint = backend.checkpoint(0)
    feed(backend, 0, 300, later)
    backend.copy(0, 1, 400)
    assert backend.rewind(1, checkpoint)
    one, other = some(3, 60), some(4, 60)
    assert is_true(feed(backend, 0, 400, one), cold(tokens + later + one))
    assert is_true(feed(backend, 1, 300, other), cold(tokens + other))
    assert backend.rewind(1, checkpoint)
    assert backend.can_copy(1, 300)
    backend.copy(1, 2, 300)
    assert is_true(feed(backend, 2, 300, one), cold(tokens + one))
    assert is_true(feed(backend, 1, 300, other), cold(tokens + other))
    assert is_true(feed(backend, 0, 460, one), cold(tokens + later + one + one))


def test_the_original_is_rewound_and_its_copy_goes_on(backend, cold):
    tokens, later = some(1, 200), some(2, 150)
    feed(backend, 0, 0, tokens)
    checkpoint = backend.checkpoint(0)
    feed(backend, 0, 200, later)
    backend.copy(0, 1, 350)
    backend.copy(0, 2, 350)
    assert backend.rewind(0, checkpoint)
    for seq, held in ((1, tokens + later), (0, tokens), (2, tokens + later)):
        more = some(seq, 80)
        assert is_true(feed(backend, seq, len(held), more), cold(held + more))


def test_others_are_left_alone(backend, cold):
    """Three sequences in the same calls, one of which goes back every few steps."""
    held = {seq: some(seq, 100 + 30 * seq) for seq in range(3)}
    for seq, tokens in held.items():
        feed(backend, seq, 0, tokens)
    begins, checkpoint = list(held[1]), backend.checkpoint(1)
    for step in range(24):
        if step % 5 == 4:
            assert backend.rewind(1, checkpoint)
            held[1] = list(begins)
        parts = []
        for seq in held:
            more = some(step * 3 + seq, 1 + 20 * (seq == step % 3))
            parts.append(BatchPart(seq, len(held[seq]), more, 1))
            held[seq] = held[seq] + more
        for call in batches(backend, parts):
            rows = backend.decode(call).copy()
            if step % 4 == 3 or step % 5 == 4:
                for part, row in zip(call, rows, strict=True):
                    assert is_true(row[None], cold(held[part.seq]))


@pytest.mark.parametrize("count", [1, 5])
def test_a_rollback_before_and_behind_it(backend, cold, count):
    """Drafts are rejected all the time: right before a checkpoint, and before a sequence goes back."""
    tokens, drafted, more = some(1, 150), some(2, 9), some(3, 30)
    feed(backend, 0, 0, tokens)
    feed(backend, 0, 150, drafted, 9)
    assert backend.rollback(0, count)
    held = tokens + drafted[: 9 - count]
    checkpoint = backend.checkpoint(0)
    assert checkpoint.length == len(held)
    feed(backend, 0, len(held), some(4, 100))
    feed(backend, 0, len(held) + 100, some(5, 6), 6)
    assert backend.rollback(0, 3)
    assert backend.rewind(0, checkpoint)
    assert backend.can_copy(0, len(held))
    backend.copy(0, 1, len(held))
    assert is_true(feed(backend, 0, len(held), more, 8), cold(held + more, 8))
    assert backend.rollback(0, 2)
    left = held + more[:-2]
    assert is_true(feed(backend, 0, len(left), [60]), cold([*left, 60]))
    assert is_true(feed(backend, 1, len(held), more), cold(held + more))


def test_of_one_sequence_for_another_with_the_same_tokens(backend, cold):
    tokens = some(1, 250)
    feed(backend, 0, 0, tokens)
    checkpoint = backend.checkpoint(0)
    feed(backend, 0, 250, some(2, 100))
    feed(backend, 1, 0, tokens + some(3, 70))
    assert backend.truncate(0, 0)
    assert backend.rewind(1, checkpoint)
    assert is_true(feed(backend, 1, 250, [60, 61]), cold([*tokens, 60, 61]))


@pytest.mark.parametrize("cache_type", ["q8_0", "q4_0"])
def test_with_a_cache_of_few_bits(runtime, kind, cache_type):
    """Held against the same cache type, at the same places of the calls."""
    made = plan(runtime.wide(kind), cache_type=cache_type, flash_attention=True)
    backend, fresh = runtimes.load(made), runtimes.load(made)
    try:
        if not backend.checkpoint_bytes:
            pytest.skip("it can be cut, so it needs none")
        tokens, more = some(1, 200), some(2, 30)
        feed(backend, 0, 0, tokens)
        checkpoint = backend.checkpoint(0)
        feed(backend, 0, 200, some(3, 150))
        assert backend.rewind(0, checkpoint)
        feed(fresh, 0, 0, tokens)
        assert is_true(feed(backend, 0, 200, more), feed(fresh, 0, 200, more))
    finally:
        backend.close()
        fresh.close()


def test_where_it_cannot_be_true_the_sequence_is_empty(backend, cold):
    feed(backend, 0, 0, some(1, 100))
    checkpoint = backend.checkpoint(0)
    feed(backend, 1, 0, some(1, 100))
    state = backend.save_checkpoint(checkpoint)
    torn = Checkpoint(checkpoint.length, checkpoint.n_bytes, state[: len(state) // 2].copy())
    assert not backend.rewind(1, torn)
    assert is_true(feed(backend, 1, 0, some(2, 50)), cold(some(2, 50)))
    assert is_true(feed(backend, 0, 100, [60]), cold([*some(1, 100), 60]))


def test_a_checkpoint_is_saved_and_comes_back(backend, cold):
    """As bytes, on top of a whole state that was saved too, in another sequence."""
    tokens, more = some(1, 200), some(2, 100)
    feed(backend, 0, 0, tokens)
    taken = backend.checkpoint(0)
    feed(backend, 0, 200, more)
    whole, part = backend.save(0).copy(), backend.save_checkpoint(taken).copy()
    backend.truncate(0, 0)
    assert backend.restore(1, whole, [*tokens, *more])
    kept = Checkpoint(200, part.nbytes, part)
    assert np.array_equal(backend.save_checkpoint(kept), part)
    for end in ([60, 61], [70]):
        assert backend.rewind(1, kept)
        assert is_true(feed(backend, 1, 200, end), cold([*tokens, *end]))
