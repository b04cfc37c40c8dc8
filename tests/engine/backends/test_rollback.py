"""Rollbacks on every backend give the same logits as computing the tokens afresh."""

import random

import pytest

from edgechat.engine.backends.base import BatchPart
from tests.engine import runtimes
from tests.engine.runtimes import Runtime, batches, feed, is_true, plan, some

pytestmark = [pytest.mark.slow, pytest.mark.pairs]

SNAPSHOTS = 8
LLAMA_CPP = Runtime("llama.cpp")
SEEDS = {"llama.cpp": 12, "mlx": 2}
"""MLX takes ten times as long on a processor."""
SEEDS_OF_MOVES = [*range(6), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(6, 30))]


def load(runtime, kind, **changes):
    fields = {"n_outputs_max": 64, "n_rs_seq": SNAPSHOTS, "n_seq_max": 4}
    return runtimes.load(plan(runtime.model(kind), **fields | changes))


@pytest.fixture
def backend(runtime, kind):
    backend = load(runtime, kind)
    if not backend.rolls_back:
        pytest.skip("it takes nothing back, which has a test of its own")
    yield backend
    backend.close()


@pytest.mark.parametrize("length", [10, 150])
@pytest.mark.parametrize("count", [1, 3, SNAPSHOTS])
def test_what_follows_a_rollback_is_true(backend, cold, length, count):
    """150 tokens are more than a window: it is full, and has let cells go."""
    tokens, more = some(1, length), some(2, 20)
    feed(backend, 0, 0, tokens[:-9])
    drafted = feed(backend, 0, length - 9, tokens[-9:], 9)
    assert is_true(drafted, cold(tokens, 9))
    assert backend.rollback(0, count)
    left = tokens[: length - count]
    assert is_true(feed(backend, 0, len(left), more, len(more)), cold(left + more, len(more)))


def test_a_rollback_in_every_call(backend, cold):
    """As a reply goes on for long, across the end of a window."""
    held, rng = some(1, 100), random.Random(1)
    feed(backend, 0, 0, held)
    for step in range(30):
        tokens = some(step, rng.randrange(1, SNAPSHOTS + 2))
        rows = feed(backend, 0, len(held), tokens, len(tokens))
        assert is_true(rows, cold(held + tokens, len(tokens)))
        count = rng.randrange(len(tokens))
        if count:
            assert backend.rollback(0, count)
        held += tokens[: len(tokens) - count]


def test_many_streams_that_roll_back(runtime, kind, backend, cold):
    """Some of them in any order, with drafts of all lengths: llama.cpp moves states around in between."""
    for seed in range(SEEDS[runtime.name]):
        many_streams(random.Random(seed), runtime, kind, cold)


def many_streams(rng, runtime, kind, cold):
    n = rng.randrange(2, 6)
    backend = load(runtime, kind, n_seq_max=n)
    held = [some(rng.randrange(1000), rng.randrange(3, 30)) for _ in range(n)]
    for seq in rng.sample(range(n), n):
        feed(backend, seq, 0, held[seq])
    for _ in range(8):
        parts = [
            BatchPart(seq, len(held[seq]), [rng.randrange(40, 90) for _ in range(length)], length)
            for seq in rng.sample(range(n), rng.randrange(1, n + 1))
            for length in [rng.choice((1, 1, 2, 3, 3, 5, 9))]
        ]
        for batch in batches(backend, parts):
            rows, at = backend.decode(batch).copy(), 0
            for part in batch:
                held[part.seq] += part.tokens
                assert is_true(rows[at : at + part.n_logits], cold(held[part.seq], part.n_logits))
                at += part.n_logits
                count = rng.randrange(len(part.tokens))
                if count:
                    can = not backend.rolls_back_alone or len(batch) == 1
                    assert backend.rollback(part.seq, count) == can
                    del held[part.seq][len(held[part.seq]) - count * can :]
    backend.close()


def test_the_original_rolls_back_after_it_was_copied(backend, cold):
    shared, one, other = some(1, 200), some(2, 6), some(3, 20)
    feed(backend, 0, 0, shared)
    backend.copy(0, 1, 200)
    feed(backend, 0, 200, one, 6)
    assert backend.rollback(0, 4)
    assert is_true(feed(backend, 1, 200, other), cold(shared + other, 1))
    assert is_true(feed(backend, 0, 202, other), cold(shared + one[:2] + other, 1))


def test_the_copy_rolls_back_and_the_original_too(backend, cold):
    shared, one, other = some(1, 200), some(2, 6), some(3, 20)
    feed(backend, 0, 0, shared)
    backend.copy(0, 1, 200)
    feed(backend, 1, 200, one, 6)
    assert backend.rollback(1, 5)
    feed(backend, 0, 200, other, 6)
    assert backend.rollback(0, 2)
    assert is_true(feed(backend, 1, 201, other), cold(shared + one[:1] + other, 1))
    assert is_true(feed(backend, 0, 218, one), cold(shared + other[:18] + one, 1))


def test_a_recurrent_state_of_llama_cpp_is_not_copied_before_it_has_gone_on(runtime, kind, backend, cold):
    """It would copy it as it was, or abort."""
    tokens, more = some(1, 60), some(2, 10)
    feed(backend, 0, 0, tokens, 5)
    assert backend.can_copy(0, 60)
    assert backend.rollback(0, 3)
    assert backend.can_copy(0, 57) == ((runtime.name, kind) != ("llama.cpp", "hybrid"))
    feed(backend, 0, 57, more)
    assert backend.can_copy(0, 67)
    backend.copy(0, 1, 67)
    assert is_true(feed(backend, 1, 67, more), cold(tokens[:57] + more + more, 1))


def test_a_sequence_that_was_rolled_back_is_saved_as_it_is(backend, cold):
    tokens, more = some(1, 60), some(2, 10)
    feed(backend, 0, 0, tokens, 5)
    assert backend.rollback(0, 3)
    state = backend.save(0)
    feed(backend, 2, 0, some(3, 30))
    assert backend.restore(1, state, tokens[:57])
    expected = cold(tokens[:57] + more, 1)
    assert is_true(feed(backend, 1, 57, more), expected)
    assert is_true(feed(backend, 0, 57, more), expected)


def test_a_sequence_is_emptied_after_a_rollback_and_used_again(backend, cold):
    feed(backend, 0, 0, some(1, 60), 5)
    assert backend.rollback(0, 3)
    assert backend.truncate(0, 0)
    tokens = some(2, 40)
    assert is_true(feed(backend, 0, 0, tokens, 5), cold(tokens, 5))
    assert backend.can_copy(0, 40)
    assert backend.rollback(0, 4)
    assert is_true(feed(backend, 0, 36, some(3, 5)), cold(tokens[:36] + some(3, 5), 1))


def test_others_are_computed_while_one_waits_to_go_on(backend, cold):
    held = [some(seq, 40) for seq in range(4)]
    for seq in range(4):
        feed(backend, seq, 0, held[seq], 5)
    feed(backend, 1, 40, some(8, 6), 6)
    assert backend.rollback(1, 4)
    held[1] += some(8, 6)[:2]
    for seqs in ((0, 2), (3, 0), (2,)):
        for batch in batches(backend, [BatchPart(seq, len(held[seq]), [50, 60], 1) for seq in seqs]):
            backend.decode(batch)
        for seq in seqs:
            held[seq] += [50, 60]
    for seq in range(4):
        assert is_true(feed(backend, seq, len(held[seq]), [70]), cold([*held[seq], 70], 1))


@pytest.mark.parametrize("seed", SEEDS_OF_MOVES)
def test_llama_cpp_does_not_lose_a_state_that_waits_where_others_are_moved(seed):
    rng = random.Random(seed)
    n = rng.randrange(3, 6)
    backend, cold = load(LLAMA_CPP, "hybrid", n_seq_max=n), load(LLAMA_CPP, "hybrid", n_seq_max=1)
    held = [some(10 * seed + seq, rng.randrange(3, 30)) for seq in range(n)]
    for seq in rng.sample(range(n), n):
        feed(backend, seq, 0, held[seq])

    def go_on(seqs):
        token = rng.randrange(40, 90)
        backend.decode([BatchPart(seq, len(held[seq]), [token], 1) for seq in seqs])
        for seq in seqs:
            held[seq].append(token)

    go_on(rng.sample(range(n), 3))
    first, *others = rng.sample(range(n), n)
    feed(backend, first, len(held[first]), some(seed, 5), 5)
    assert backend.rollback(first, 2)
    held[first] += some(seed, 5)[:3]
    for _ in range(3):
        go_on(rng.sample(others, 2))
    for seq in range(n):
        more = some(3, 4)
        cold.truncate(0, 0)
        expected = feed(cold, 0, 0, held[seq] + more, 4)
        assert is_true(feed(backend, seq, len(held[seq]), more, 4), expected)
    backend.close()
    cold.close()


def test_a_recurrent_state_of_llama_cpp_rolls_back_once_and_no_further_than_its_snapshots(opened):
    backend = opened(load(LLAMA_CPP, "hybrid"))
    feed(backend, 0, 0, some(1, 30), 12)
    assert not backend.rollback(0, SNAPSHOTS + 1)
    feed(backend, 0, 30, some(2, 4), 4)
    assert not backend.rollback(0, 4), "what was there before the call has no snapshot"
    feed(backend, 0, 34, some(2, 4), 4)
    assert backend.rollback(0, 2)
    assert not backend.rollback(0, 1)
    feed(backend, 0, 36, some(3, 5), 5)
    feed(backend, 1, 0, some(4, 5), 5)
    assert not backend.rollback(0, 2), "it may have been moved since"


def test_beside_a_chunk_of_a_prompt_no_snapshot_of_llama_cpp_is_relied_on(opened):
    backend = opened(load(LLAMA_CPP, "hybrid"))
    feed(backend, 0, 0, some(1, 30))
    backend.decode([BatchPart(1, 0, some(2, 40), 0), BatchPart(0, 30, [50, 51, 52], 3)])
    assert not backend.rollback(0, 2)


def test_without_snapshots_a_recurrent_state_does_not_roll_back(runtime, kind, cold, opened):
    """Only for llama.cpp. The tokens to roll back are still there."""
    backend = opened(load(runtime, kind, n_rs_seq=0))
    never = (runtime.name, kind) == ("llama.cpp", "hybrid")
    assert (backend.rolls_back == 0) == never
    tokens = some(1, 30)
    feed(backend, 0, 0, tokens, 5)
    rolled = backend.rollback(0, 2)
    assert rolled != never
    left = tokens[:28] if rolled else tokens
    assert is_true(feed(backend, 0, len(left), [60]), cold([*left, 60]))


def test_every_kind_takes_tokens_back(runtime, kind, opened):
    backend = opened(load(runtime, kind))
    assert backend.rolls_back > 0
    assert backend.capabilities.recomputes == ((runtime.name, kind) == ("mlx", "hybrid"))
    assert backend.rolls_back_alone == ((runtime.name, kind) == ("llama.cpp", "hybrid"))


def test_as_many_are_taken_back_as_it_says(backend, cold):
    """And no token that an earlier call has computed, unless it is there as before."""
    count = min(backend.rolls_back, 63)
    tokens = some(1, 120)
    feed(backend, 0, 0, tokens, count + 1)
    assert backend.rollback(0, count)
    assert is_true(feed(backend, 0, 120 - count, some(2, 8), 8), cold(tokens[: 120 - count] + some(2, 8), 8))
