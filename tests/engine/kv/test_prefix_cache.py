"""The prefix cache over the scripted backend, whose cells can be counted."""

import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgechat.engine.backends.base import BatchPart, CacheFull
from edgechat.engine.kv.prefix_cache import PrefixCache, Rent, common_prefix
from tests.engine.cells import check_cache
from tests.properties import examples
from tests.scripted.backend import ScriptedBackend

MakeCache = Callable[..., PrefixCache]
KINDS = {"dense": {"shifts": True}, "windowed": {"window": 12, "rewinds": 5}, "hybrid": {"cuts": False}}


@pytest.fixture
def make(scripted):
    return lambda **script: PrefixCache(ScriptedBackend(scripted(**script)))


def compute(cache, slot, tokens):
    cache._backend.decode([BatchPart(slot.id, slot.length, tokens, 0)])
    cache.extend(slot, tokens)


def run(cache, tokens, **how):
    """Seat a sequence, compute what is missing, and let it go."""
    slot, n = cache.seat(tokens, **how)
    compute(cache, slot, tokens[n:])
    cache.release(slot)
    check_cache(cache)
    return slot, n


LONG = list(range(60, 160))


def test_what_goes_on_takes_the_slot_over(make):
    cache = make()
    first, n = run(cache, LONG)
    assert n == 0
    assert run(cache, [*LONG, 1, 2]) == (first, 100)
    assert (cache.stats.hits, cache.stats.misses, cache.stats.reused_tokens) == (1, 1, 100)
    assert run(cache, [*LONG, 1, 2, 3]) == (first, 102)
    assert (cache.stats.hits, cache.stats.misses, cache.stats.reused_tokens) == (2, 1, 202)


def test_what_branches_off_shares_cells_and_leaves_the_other_as_it_was(make):
    cache = make()
    first, _ = run(cache, [*LONG, 1, 2, 3])
    second, n = run(cache, [*LONG, 7, 8])
    assert (second is not first, n) == (True, 100)
    assert cache.cells_used == 105
    assert first.tokens == [*LONG, 1, 2, 3]


def test_the_same_again_computes_one_token(make):
    cache = make()
    run(cache, LONG)
    assert run(cache, LONG)[1] == 99
    assert cache.cells_used == 101


def test_who_needs_no_logits_computes_nothing_again(make):
    cache = make()
    first, _ = run(cache, LONG)
    assert run(cache, LONG, whole=True) == (first, 100)


def test_what_is_replaced_is_cut_in_its_place(make):
    cache = make()
    first, _ = run(cache, [*LONG, 1, 2, 3])
    assert run(cache, [*LONG, 7], whole=True, spent=first) == (first, 100)
    assert cache.cells_used == 101
    assert not cache.stats.evictions


def test_the_spent_slot_is_emptied_before_others_and_is_no_loss(make):
    """Whether something else is read into it, or what another slot has."""
    cache = make(n_seq_max=2)
    old, _ = run(cache, [*LONG, 1, 2, 3])
    spent, _ = run(cache, range(50))
    assert run(cache, [5, 6], spent=spent) == (spent, 0)
    assert run(cache, [*LONG, 9], spent=spent) == (spent, 100)
    assert old.tokens == [*LONG, 1, 2, 3]
    assert not cache.stats.evictions


def test_what_another_slot_ends_with_is_copied_for_the_spent_one_unless_that_runs(make):
    cache = make(n_seq_max=2)
    spent, _ = run(cache, range(50))
    source, _ = run(cache, LONG)
    assert run(cache, [*LONG, 1], spent=spent) == (spent, 100)
    assert source.tokens == LONG
    spent.busy = True
    assert run(cache, [*LONG, 2], spent=spent) == (source, 100)


def test_of_equals_one_that_does_not_run_is_better(make):
    cache = make()
    running, _ = cache.seat(LONG)
    compute(cache, running, LONG)
    other, _ = run(cache, [*LONG, 1])
    assert cache.best([*LONG, 7], 200) == (other, 100)


def test_where_nothing_can_be_copied_the_slot_itself_goes_on(make, monkeypatch):
    cache = make(n_seq_max=2)
    spent, _ = run(cache, range(50))
    source, _ = run(cache, LONG)
    monkeypatch.setattr(cache._backend, "can_copy", lambda source, length: False)
    assert run(cache, [*LONG, 1], spent=spent) == (source, 100)
    assert spent.length == 50


def test_one_token_is_a_hit_and_a_slot_of_one_is_not_empty(make):
    cache = make(n_seq_max=2)
    one, _ = run(cache, [7])
    other, _ = run(cache, LONG)
    cache.clear(other)
    assert run(cache, LONG) == (other, 0)
    assert one.length == 1
    assert cache.stats.evictions == 0
    run(cache, [7, 8])
    assert (cache.stats.hits, cache.stats.reused_tokens) == (1, 1)


def test_what_branches_off_twice_is_split_twice(make):
    for ends in (
        [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 6], [1, 7]],  # each time before the last place
        [[1, 2, 3, 4], [5], [1, 2, 6], [1, 2, 3, 7]],  # and behind it
    ):
        cache = make()
        slots = [run(cache, [*LONG, *end])[0] for end in ends]
        assert [slot.tokens for slot in slots] == [[*LONG, *end] for end in ends]
        assert cache.cells_used == 100 + 4 + 1 + 1 + 1
        found = [cache.best([*LONG, *end, 9], 200)[1] for end in ends]
        assert found == [100 + len(end) for end in ends]


def test_each_set_of_adapters_has_a_tree_of_its_own(make):
    cache = make()
    with_x, with_y = (("x", 1.0),), (("y", 1.0),)
    run(cache, LONG)
    for adapters in (with_x, with_y):
        assert run(cache, LONG, adapters=adapters)[1] == 0
        assert run(cache, [*LONG, 1], adapters=adapters)[1] == 100
    assert cache.best([*LONG, 2], 200, with_x)[1] == cache.best([*LONG, 2], 200)[1] == 100


def test_where_nothing_can_be_cut_the_spent_slot_is_rewound(make):
    cache = make(cuts=False)
    slot, _ = cache.seat([*LONG, 1])
    compute(cache, slot, LONG)
    cache.checkpoint(slot)
    compute(cache, slot, [1, 2, 3])
    cache.release(slot)
    assert run(cache, [*LONG, 9, 9], whole=True, spent=slot) == (slot, 100)
    assert cache.cells_used == 102
    assert not cache.stats.evictions


def test_a_running_one_is_copied_from(make):
    cache = make(n_seq_max=2)
    running, _ = cache.seat([*LONG, 1])
    compute(cache, running, [*LONG, 1])
    other, n = cache.seat([*LONG, 2, 3])
    assert (other is not running, n) == (True, 100)
    assert cache.cells_of_busy() == 101  # what both share counts once
    check_cache(cache)
    assert not cache.has_free_slot
    assert not cache.evict()


def test_the_least_recently_used_goes_first(make):
    cache = make(n_seq_max=3)
    kept = [run(cache, [n, *LONG])[0] for n in range(3)]
    run(cache, [0, *LONG, 5])
    slot, n = run(cache, [9, *LONG])
    assert (slot, n) == (kept[1], 0)
    assert cache.stats.evictions == 1
    assert cache.evict()
    assert cache.stats.evictions == 2
    assert not kept[2].length
    assert kept[0].tokens == [0, *LONG, 5]


@pytest.mark.parametrize("busy", [False, True])
def test_what_cannot_be_cut_goes_back_to_checkpoints(make, busy):
    """The slot stays as it was, also one that runs: a copy of it is rewound."""
    cache = make(cuts=False)
    slot, _ = cache.seat([*LONG, 1, 2])
    for stop in (40, 70, 100):
        compute(cache, slot, LONG[slot.length : stop])
        cache.checkpoint(slot)
    compute(cache, slot, [1, 2])
    assert cache.best([*LONG, 7, 8], 101)[1] == 100
    assert cache.best([*LONG[:99], 7], 100)[1] == 70
    assert cache.best([*LONG[:69], 7], 70)[1] == 40
    assert cache.best([*LONG[:39], 7], 40) == (None, 0)
    if not busy:
        cache.release(slot)
    other, n = run(cache, [*LONG[:80], 7])
    assert (n, other is not slot) == (70, True)
    assert slot.tokens == [*LONG, 1, 2]
    assert cache.cells_used == 102 + 11
    assert [one.length for one in other.checkpoints] == [40, 70]


def test_checkpoints_leave_with_the_tokens_before_them(make):
    cache = make(cuts=False, n_seq_max=1)
    slot, _ = cache.seat(LONG)
    for stop in (50, 100):
        compute(cache, slot, LONG[slot.length : stop])
        cache.checkpoint(slot)
    cache.release(slot)
    run(cache, [*LONG[:70], 7])
    assert [one.length for one in cache.checkpoints] == [50]
    assert cache.evict()
    assert cache.checkpoints == []


@pytest.mark.parametrize("n_seq_max", [1, 2])
def test_a_rewind_that_fails_leaves_an_empty_slot(make, n_seq_max):
    """Both in its place and as a copy."""
    cache = make(cuts=False, n_seq_max=n_seq_max, rewinds=2)
    slot, _ = cache.seat(LONG)
    compute(cache, slot, LONG[:50])
    cache.checkpoint(slot)
    compute(cache, slot, LONG[50:])
    cache.release(slot)
    assert [run(cache, [*LONG[:60], last])[1] for last in (7, 8)] == [50, 0]


def test_the_budget_of_checkpoints_is_kept(make):
    """Those of the least recently used slot go first; within a slot, those that spare least."""
    cache = make(cuts=False, n_checkpoints=4)
    old, _ = cache.seat(LONG)
    for stop in (30, 100):
        compute(cache, old, LONG[old.length : stop])
        cache.checkpoint(old)
    cache.release(old)
    slot, _ = cache.seat([1, *LONG])
    for stop in (40, 42, 72, 82, 87):
        compute(cache, slot, [1, *LONG][slot.length : stop])
        cache.checkpoint(slot)
        check_cache(cache)
    assert not old.checkpoints
    assert [one.length for one in slot.checkpoints] == [40, 72, 82, 87]


def test_without_memory_for_checkpoints_there_are_none(make):
    cache = make(cuts=False, n_checkpoints=0)
    slot, _ = run(cache, LONG)
    cache.checkpoint(slot)
    assert not cache.checkpoints
    assert run(cache, [*LONG[:99], 1])[1] == 0


def test_of_cells_that_two_slots_share_the_later_use_counts(make):
    """Checkpoints of a conversation that goes on stay, though an older one begins with them."""
    cache = make(cuts=False, n_checkpoints=4)
    old, _ = cache.seat(LONG)
    compute(cache, old, LONG[:50])
    cache.checkpoint(old)
    compute(cache, old, LONG[50:])
    cache.checkpoint(old)
    cache.release(old)
    slot, n = cache.seat([*LONG[:50], *range(30)], spent=None)
    assert (slot is not old, n) == (True, 50)
    for stop in (10, 20, 29):  # the last is one token before the end
        compute(cache, slot, range(slot.length - 50, stop))
        cache.checkpoint(slot)
    assert [one.length for one in old.checkpoints] == [50]
    compute(cache, slot, [29])
    cache.checkpoint(slot)
    cache.release(slot)
    check_cache(cache)
    assert [one.length for one in slot.checkpoints] == [50, 70, 79, 80]


def test_what_a_chat_has_left_is_forgotten_once_nothing_runs_on_it(make):
    cache = make(n_seq_max=3)
    slots = [cache.seat([n, *LONG])[0] for n in range(3)]
    for slot, chat in zip(slots, ("one", "one", "two"), strict=True):
        compute(cache, slot, [5, *LONG])
        slot.chat = chat
    cache.release(slots[0])
    cache.release(slots[2])
    cache.forget("one")
    assert [slot.length for slot in slots] == [0, 101, 101]
    assert [slot.chat for slot in slots] == [None, "one", "two"]
    cache.release(slots[1])
    assert [slot.length for slot in slots] == [0, 0, 101]
    run(cache, LONG)
    assert sum(slot.length > 0 for slot in slots) == 2, "it is forgotten once"


def parts():
    """Return tokens that stay in front, that leave, and that follow."""
    rng = random.Random(1)
    return ([rng.randrange(256) for _ in range(size)] for size in (20, 30, 80))


def test_a_shift_takes_what_still_matches_and_leaves_a_token_to_compute(make):
    cache = make(shifts=True)
    pinned, gone, rest = parts()
    slot, _ = run(cache, [*pinned, *gone, *rest])
    assert cache.shift([*pinned, *rest[:40], *[999] * 60], least=1) == (slot, 20)
    assert slot.tokens == [*pinned, *rest[:40]]
    cache.release(slot)
    slot, _ = run(cache, [*pinned, *gone, *rest])
    assert cache.shift([*pinned, *rest], least=80) is None
    assert cache.shift([*pinned, *rest], least=79) == (slot, 20)
    assert slot.tokens == [*pinned, *rest[:-1]]


def test_what_follows_a_gap_is_looked_for_behind_it(make):
    cache = make(shifts=True)
    _, gone, rest = parts()
    pinned = [*rest[:32], 7]
    slot, _ = run(cache, [*pinned, *gone, *rest])
    assert cache.shift([*pinned, *rest, 1], least=80) == (slot, 33)
    assert slot.tokens == [*pinned, *rest]


def test_a_shift_may_take_out_a_single_token(make):
    cache = make(shifts=True)
    pinned, _, rest = parts()
    slot, _ = run(cache, [*pinned, 7, *rest])
    assert cache.shift([*pinned, *rest], least=79) == (slot, 20)


def test_no_shift_where_it_runs_or_too_little_follows(make):
    cache = make(shifts=True)
    pinned, gone, rest = parts()
    slot, _ = cache.seat([*pinned, *gone, *rest])
    compute(cache, slot, [*pinned, *gone, *rest])
    assert cache.shift([*pinned, *rest, 1], least=1) is None
    cache.release(slot)
    assert cache.shift([*pinned, *rest[:31]], least=1) is None
    assert cache.shift([*pinned, *rest[:32]], least=1) == (slot, 20)


def test_a_shift_takes_out_the_middle_and_is_never_found_again(make):
    cache = make(shifts=True)
    pinned, gone, rest = parts()
    slot, _ = run(cache, [*pinned, *gone, *rest])
    wanted = [*pinned, *rest, 1, 2]
    assert cache.shift(wanted, least=81) is None
    assert cache.shift(wanted, least=80) == (slot, 20)
    assert slot.tokens == [*pinned, *rest]
    compute(cache, slot, [1, 2])
    check_cache(cache)
    _, n = cache.best(wanted, 200)
    assert n == 20 or n == 0
    cache.release(slot)
    check_cache(cache)
    assert cache.cells_used == 0, "nobody may go on from approximate cells"


def test_a_shift_leaves_alone_what_another_slot_shares(make):
    cache = make(shifts=True)
    pinned, gone, rest = parts()
    run(cache, [*pinned, *gone, *rest, 5])
    run(cache, [*pinned, *gone, *rest, 6])
    assert cache.shift([*pinned, *rest, 1], least=1) is None
    check_cache(cache)


def test_a_restored_state_is_found(make):
    cache = make()
    slot, _ = run(cache, LONG)
    state = cache._backend.save(slot.id)
    other = make(context=100)
    assert other.restore(LONG, state)
    check_cache(other)
    assert other.best([*LONG, 1], 100)[1] == 100
    assert other.best([*LONG, 1], 100)[0].last_used > 0
    full = make(context=99)
    assert not full.restore(LONG, state)
    check_cache(full)


@pytest.mark.parametrize(("n_checkpoints", "kept"), [(1, [60]), (0, [])])
def test_a_restored_state_may_come_with_a_checkpoint(make, n_checkpoints, kept):
    cache = make(cuts=False)
    slot, _ = cache.seat(LONG)
    compute(cache, slot, LONG[:60])
    taken = cache._backend.checkpoint(slot.id)
    compute(cache, slot, LONG[60:])
    other = make(cuts=False, n_checkpoints=n_checkpoints)
    assert other.restore(LONG, cache._backend.save(slot.id), taken)
    assert [one.length for one in other.checkpoints] == kept
    assert other.best([*LONG[:70], 1], 70)[1] == (60 if kept else 0)


def test_no_state_is_restored_where_all_slots_run(make):
    cache = make(n_seq_max=1)
    slot, _ = cache.seat(LONG)
    compute(cache, slot, LONG)
    assert not cache.restore(LONG, cache._backend.save(slot.id))


def test_the_common_prefix():
    assert common_prefix([1, 2, 3], [1, 2, 4]) == 2
    assert common_prefix([], [1]) == 0
    assert common_prefix([1], [1, 2]) == 1


OPERATION = st.tuples(
    st.sampled_from(
        ["run", "run", "grow", "end", "end", "replace", "keep", "keep", "evict", "shift", "restore", "drop"]
    ),
    st.integers(0, 2**16),
)


@pytest.mark.slow
@settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    operations=st.lists(OPERATION, max_size=60),
    kind=st.sampled_from(list(KINDS)),
    n_seq_max=st.integers(1, 5),
)
def test_any_use_keeps_the_account(make, operations, kind, n_seq_max):
    cache = make(n_seq_max=n_seq_max, context=400, **KINDS[kind])
    saved = None
    for what, seed in operations:
        rng = random.Random(seed)
        # Few letters, so that much is shared; the runs are long enough for a shift to find them.
        tokens = [
            token for _ in range(rng.randrange(1, 5)) for token in [rng.randrange(3)] * rng.randrange(1, 40)
        ]
        busy = [slot for slot in cache.slots if slot.busy]
        free = [slot for slot in cache.slots if not slot.busy]
        slot = rng.choice(busy) if busy else None
        if what in ("run", "replace") and free:
            spent = rng.choice(free) if what == "replace" else None
            chosen, n = cache.seat(tokens, whole=spent is not None, spent=spent)
            assert chosen.tokens == tokens[:n]
            add(cache, chosen, tokens[n:])
        elif what == "grow" and slot:
            add(cache, slot, tokens)
        elif what == "end" and slot:
            cache.release(slot)
        elif what == "keep" and slot:
            cache.checkpoint(slot)
        elif what == "evict":
            cache.evict()
        elif what == "drop" and slot:
            cache.clear(slot)
        elif what == "shift" and kind == "dense":
            found = cache.shift(tokens, least=1)
            assert found is None or found[0].tokens == tokens[: found[0].length]
        elif what == "restore":
            held = [one for one in cache.slots if one.length and not one.approximate]
            if held:
                saved = held[0].tokens, cache._backend.save(held[0].id)
            if saved is not None:
                cache.restore(*saved)
        check_cache(cache)


def add(cache, slot, tokens):
    while tokens:
        try:
            compute(cache, slot, tokens)
            return
        except CacheFull:
            if not cache.evict():
                return


RENT = Rent(decode=0.02, prefill=0.01, token=1.0)


def idle_cells(cache):
    return sorted(slot.length for slot in cache.slots if slot.length and not slot.busy)


def test_who_has_cost_others_as_much_as_to_be_computed_again_leaves(make):
    """A cell that costs a hundredth of a token's time for each token read is worth a hundred of them."""
    cache = make()
    cache.rent = RENT
    run(cache, LONG)
    cache.charge(0, 90)
    assert idle_cells(cache) == [100]
    cache.charge(2, 0)
    assert idle_cells(cache) == [100]
    cache.charge(2, 0)
    assert (idle_cells(cache), cache.stats.evictions) == ([], 1)
    check_cache(cache)


def test_attention_that_skips_what_is_masked_charges_nobody(make):
    cache = make()
    run(cache, LONG)
    cache.charge(1000, 100_000)
    cache.make_way(1000, 100_000)
    assert idle_cells(cache) == [100]


def test_who_is_used_again_begins_anew(make):
    cache = make()
    cache.rent = RENT
    run(cache, LONG)
    cache.charge(0, 90)
    run(cache, [*LONG, 1])
    cache.charge(0, 90)
    assert idle_cells(cache) == [101]


def test_whose_state_is_on_disk_makes_way_before_a_prompt_is_computed(make):
    cache = make()
    cache.rent = RENT
    slot, _ = run(cache, LONG)
    slot.saved = 100
    other, _ = run(cache, range(300, 340))
    cache.make_way(0, 20)
    assert idle_cells(cache) == [40]
    assert other.length == 40
    slot, _ = run(cache, LONG)
    slot.saved = 100
    run(cache, [*LONG[:60], *range(200, 260)], whole=True, spent=slot)
    cache.make_way(0, 20)
    assert idle_cells(cache) == [40, 120], "60 of its tokens are on disk no more"


def test_what_a_running_prompt_shares_costs_it_nothing_and_stays(make):
    cache = make()
    cache.rent = RENT
    run(cache, [*LONG, *range(400, 410)])
    slot, n = cache.seat([*LONG, 7])
    assert n == 100
    cache.charge(0, 90)  # ten cells alone pay, and would have to be computed again
    assert idle_cells(cache) == [110]
    cache.charge(0, 20)
    assert (idle_cells(cache), slot.length) == ([], 100)
    check_cache(cache)


def test_where_nothing_is_ever_found_again_it_is_worth_less(make):
    cache = make()
    cache.rent = RENT
    cache.charge(0, 18_000)
    run(cache, LONG)
    cache.charge(0, 9)
    assert idle_cells(cache) == [100]
    cache.charge(0, 2)
    assert idle_cells(cache) == []
