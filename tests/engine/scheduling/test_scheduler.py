"""The scheduler over the scripted backend, call by call."""

import pytest

from edgechat.base.errors import DecodeFailed
from edgechat.engine.backends.base import BatchPart, Interruption, MediaRun, media_ids
from edgechat.engine.sampling import Sampler
from edgechat.engine.scheduling.scheduler import TURN, Scheduler, checkpoints_of
from edgechat.engine.scheduling.sequence import Draft, Sequence
from edgechat.engine.types import ChatRequest, Sampling
from tests.engine.cells import check_cache
from tests.scripted.backend import ScriptedBackend


class Reply(Sequence):
    generates = True


def asking(name, tokens, *, kind=Reply, chat=None, priority="interactive", **more):
    request = ChatRequest(id=name, chat=chat, priority=priority)
    tokens = list(tokens)
    return kind(request, tokens, len(tokens), Sampler(Sampling()), 0.0, **more)


def prewarming(name, tokens, **more):
    return asking(name, tokens, kind=Sequence, priority="background", **more)


def text(n, of=0):
    """Return n tokens, other ones for another text."""
    return [(of * 50 + at) % 250 for at in range(n)]


@pytest.fixture
def make(scripted):
    def make(*sequences, **script):
        scheduler = Scheduler(ScriptedBackend(scripted(**script)))
        for one in sequences:
            scheduler.add(one)
        return scheduler

    return make


def sizes(planned):
    return [(seq.id, len(part.tokens)) for seq, part in planned]


def call(scheduler):
    """Plan a call and compute it; each reply that has its prompt says a token. Return the sizes."""
    planned = scheduler.plan()
    scheduler._backend.decode([part for _, part in planned])
    for seq, part in planned:
        assert part.tokens == seq.tokens[part.start : part.start + len(part.tokens)]
        assert part.n_logits == (seq.generates and part.start + len(part.tokens) == len(seq.tokens))
    scheduler.computed(planned)
    check_cache(scheduler.cache)
    for seq, _ in planned:
        if not seq.n_pending:
            if seq.generates:
                seq.tokens.append(9)
            else:
                scheduler.remove(seq, keep_cache=True)
    return sizes(planned)


def calls(scheduler, n):
    return [call(scheduler) for _ in range(n)]


def ids(sequences):
    return [one.id for one in sequences]


def test_each_waits_behind_those_of_its_priority(make):
    names = ("late", "a", "later", "b")
    scheduler = make(*((prewarming if "late" in name else asking)(name, text(5)) for name in names))
    assert ids(scheduler.waiting) == ids(scheduler.sequences) == ["a", "b", "late", "later"]
    assert scheduler.find("b") is scheduler.waiting[1]
    assert scheduler.find("late") is scheduler.find("c") is None
    assert not scheduler.is_idle
    scheduler.plan()
    assert not scheduler.is_idle
    assert ids(scheduler.sequences) == ["a", "b", "late", "later"]
    for one in scheduler.sequences:
        scheduler.remove(one, keep_cache=False)
    assert scheduler.is_idle
    assert scheduler.plan() == []


def test_streams_come_first_and_prompts_share_the_rest(make):
    scheduler = make(asking("a", text(3)), n_batch=12)
    assert call(scheduler) == [("a", 3)]
    scheduler.add(asking("long", text(40, of=1)))
    scheduler.add(asking("short", text(5, of=2)))
    assert call(scheduler) == [("a", 1), ("short", 5), ("long", 6)]
    assert call(scheduler) == [("a", 1), ("short", 1), ("long", 10)]


@pytest.mark.parametrize(
    ("prompts", "n_batch", "expected"),
    [
        ([100], 512, [("0", 16)]),
        ([100], 5, [("0", 5)]),
        ([100, 10], 512, [("1", 8), ("0", 8)]),
        ([100, 3], 512, [("1", 3), ("0", 13)]),
        ([3, 100], 512, [("0", 3), ("1", 13)]),
        ([20, 100], 512, [("0", 16)]),
        ([5, 5, 100, 100], 512, [("0", 5), ("1", 5), ("2", 6)]),
        ([100, 3], 1, [("1", 1)]),
        ([6, 100, 2], 8, [("2", 2), ("0", 6)]),
    ],
)
def test_the_shortest_prompt_gets_half_if_it_is_not_the_first(make, prompts, n_batch, expected):
    scheduler = make(*(asking(str(at), text(n, of=at)) for at, n in enumerate(prompts)), n_batch=n_batch)
    assert call(scheduler) == expected


def test_streams_have_chunks_beside_them_that_cost_no_more_than_they_bear(make):
    scheduler = make(asking("a", text(3)), n_batch=4096)
    call(scheduler)
    for n_prompt in (16, 64, 256, 1024):
        scheduler.cost.observe(1, 0, 0.01)
        scheduler.cost.observe(0, n_prompt, 0.01 + n_prompt / 1000)
    scheduler.add(asking("b", text(4000, of=1)))
    beside, alone = (scheduler.cost.prompt_tokens(n) for n in (1, 0))
    assert beside != alone
    assert sizes(scheduler.plan()) == [("a", 1), ("b", beside)]
    scheduler.cost.observe(1, 256, 0.6)
    assert sizes(scheduler.plan()) == [("a", 1)], "it catches up"
    for _ in range(2):
        scheduler.cost.observe(1, 0, 0.01)
    assert len(scheduler.plan()) == 2


@pytest.mark.parametrize(
    ("n_prompt", "n_batch", "expected"),
    [(552, 512, [488, 64]), (552, 1024, [552]), (600, 512, [512, 88]), (128 + 63, 512, [191])],
)
def test_no_chunk_of_less_than_a_tile_is_left(make, n_prompt, n_batch, expected):
    scheduler = make(asking("a", text(3)), n_batch=n_batch)
    call(scheduler)
    scheduler.remove(scheduler.find("a"), keep_cache=False)
    for size in (16, 64, 256, 512):
        scheduler.cost.observe(0, size, 0.01 + size / 4096)
    scheduler.add(asking("b", text(n_prompt, of=1)))
    assert [size for ((_, size),) in calls(scheduler, len(expected))] == expected


def test_what_mixes_nothing_takes_streams_and_prompts_in_turn(make):
    scheduler = make(*(asking(name, text(2, of=at)) for at, name in enumerate("ab")), mixes=False)
    for now in (1.0, 2.0):
        planned = scheduler.plan()
        scheduler._backend.decode([part for _, part in planned])
        scheduler.computed(planned)
        ((seq, _),) = planned
        seq.tokens.append(9)
        seq.last_token = now
    scheduler.add(asking("c", text(40, of=3)))
    order = []
    for now in range(3, 9):
        ((seq, part),) = planned = scheduler.plan()
        scheduler._backend.decode([part])
        scheduler.computed(planned)
        order.append(seq.id)
        if not seq.n_pending:
            seq.tokens.append(9)
            seq.last_token = float(now)
    assert order == ["a", "c", "b", "c", "a", "c"], "of the streams the one that has waited for longest"


def test_background_is_computed_while_nothing_else_is(make):
    scheduler = make(prewarming("late", text(40)))
    assert call(scheduler) == [("late", 16)]
    scheduler.add(asking("a", text(20, of=1)))
    assert calls(scheduler, 3) == [[("a", 16)], [("a", 4)], [("a", 1)]]
    scheduler.remove(scheduler.find("a"), keep_cache=True)
    assert call(scheduler)[0][0] == "late"


# Who joins.


@pytest.mark.parametrize(("n", "joins"), [(16, True), (17, False)])
def test_one_joins_where_there_is_room_to_grow(make, n, joins):
    """Of 100 cells, the running sequence needs 20, and each sequence 32 to grow."""
    scheduler = make(asking("a", text(20)), asking("b", text(n, of=1)), context=100)
    scheduler.plan()
    assert ids(scheduler.running) == ["a", *["b"] * joins]


@pytest.mark.parametrize(
    ("n", "adapters", "joins"),
    [(29, (), True), (30, (), False), (18, (("x", 1.0),), True), (19, (("x", 1.0),), False)],
)
def test_what_is_shared_with_who_runs_takes_no_room(make, n, adapters, joins):
    """Of 100 cells, 17 are held, 1 + 32 + 32 more needed, and 11 of the others are held already."""
    scheduler = make(asking("a", text(16)), context=100)
    assert calls(scheduler, 2) == [[("a", 16)], [("a", 1)]]
    scheduler.add(asking("b", [*text(11), *text(n - 11, of=2)], adapters=adapters))
    scheduler.plan()
    assert ids(scheduler.running) == ["a", *["b"] * joins]


@pytest.mark.parametrize(("context", "joins"), [(83, True), (82, False)])
def test_of_what_is_shared_as_a_whole_a_token_is_computed(make, context, joins):
    """17 cells are held, 1 + 32 + 32 wanted beside them, and one of the 12."""
    scheduler = make(asking("a", text(16)), context=context)
    calls(scheduler, 2)
    scheduler.add(asking("b", text(12)))
    scheduler.plan()
    assert ids(scheduler.running) == ["a", *["b"] * joins]


@pytest.mark.parametrize(("n", "joins"), [(65, False), (64, True)])
def test_one_waits_for_all_but_its_last_token(make, n, joins):
    scheduler = make(asking("a", text(100)), asking("b", text(n)))
    scheduler.plan()
    assert ids(scheduler.running) == ["a", *["b"] * joins]


def test_who_is_alone_joins_whatever_it_takes_and_others_wait_in_order(make):
    scheduler = make(*(asking(name, text(95, of=at)) for at, name in enumerate("ab")), context=100)
    scheduler.add(asking("c", text(1)))
    scheduler.plan()
    assert (ids(scheduler.running), ids(scheduler.waiting)) == (["a"], ["b", "c"])


def test_no_more_join_than_there_are_slots_and_background_leaves_its_own(make):
    scheduler = make(*(prewarming(name, text(30, of=at)) for at, name in enumerate("xy")), n_seq_max=2)
    scheduler.add(prewarming("z", text(3)))
    scheduler.plan()
    assert (ids(scheduler.running), ids(scheduler.waiting)) == (["x", "y"], ["z"])
    assert scheduler._youngest().id == "y"
    calls(scheduler, 1)
    scheduler.add(asking("a", text(3, of=3)))
    scheduler.plan()
    assert (ids(scheduler.running), ids(scheduler.waiting)) == (["x", "a"], ["z", "y"])


@pytest.mark.parametrize(
    ("shared", "changes", "joins"),
    [(64, {}, False), (63, {}, True), (64, {"adapters": (("v", 1.0),)}, True)],
)
def test_one_waits_for_what_another_is_about_to_compute(make, shared, changes, joins):
    scheduler = make(
        asking("a", text(100)), asking("b", [*text(shared), 251, 252], **changes), asking("c", text(5, of=3))
    )
    scheduler.plan()
    assert ids(scheduler.running) == ["a", *["b"] * joins, "c"]
    assert ids(scheduler.waiting) == ["b"] * (not joins)
    if not joins:  # what is left to wait for is less after a call
        assert call(scheduler) == [("c", 5), ("a", 11)]
        scheduler.plan()
        assert ids(scheduler.running) == ["a", "c", "b"]
        assert scheduler.find("b").n_cached == 11


def test_one_waits_for_what_only_others_with_its_adapters_will_have(make):
    scheduler = make()
    leave(scheduler, text(80))
    for name, end in (("a", 251), ("b", 252)):
        scheduler.add(asking(name, [*text(80), end], adapters=(("x", 1.0),)))
    scheduler.plan()
    assert ids(scheduler.running) == ["a"]


@pytest.mark.parametrize(("boundaries", "joins"), [((80,), False), ((60,), True), ((), True)])
def test_where_nothing_can_be_cut_one_waits_for_a_checkpoint(make, boundaries, joins):
    scheduler = make(asking("a", text(100), boundaries=boundaries), cuts=False)
    scheduler.add(asking("b", [*text(85), 251]))
    scheduler.plan()
    assert ids(scheduler.running) == ["a", *["b"] * joins]


def test_nobody_waits_for_background(make):
    scheduler = make(prewarming("late", text(100)))
    call(scheduler)
    scheduler.add(asking("a", [*text(90), 251]))
    scheduler.plan()
    assert ids(scheduler.running) == ["late", "a"]


def test_what_it_is_seated_with(make):
    scheduler = make(asking("a", text(20), chat="one"))
    calls(scheduler, 3)
    scheduler.remove(scheduler.find("a"), keep_cache=True)
    scheduler.add(again := asking("b", [*text(20), 251, 252], chat="two"))
    assert sizes(scheduler.plan()) == [("b", 2)]
    assert (again.n_cached, again.slot.chat) == (20, "two")
    scheduler.add(same := asking("same", text(20)))
    scheduler.plan()
    assert (same.n_cached, same.n_pending) == (19, 1)  # the cache holds no logits
    scheduler.remove(same, keep_cache=False)
    scheduler.add(warm := prewarming("warm", text(20)))
    scheduler.plan()
    assert (warm.n_cached, warm.n_pending) == (20, 0)
    scheduler.remove(warm, keep_cache=True)
    scheduler.preempt(again)
    assert (again.slot, again.checkpoints, ids(scheduler.waiting)) == (None, (), ["b"])
    scheduler.add(asking("first", text(2, of=2)))
    scheduler.resume(asking("resumed", text(2, of=3)))
    assert ids(scheduler.waiting) == ["resumed", "b", "first"]
    scheduler.plan()
    assert again.n_cached == 20  # what was there when it first started


# A window that slides.


def slid(before, after=0, *, kind=Reply, **more):
    """Return a request whose prompt leaves out 40 tokens of what is in the cache, and goes on with others."""
    tokens = [*text(20), *text(before, of=2), *text(after, of=4)]
    return asking("b", tokens, kind=kind, dropped=1, **more)


@pytest.mark.parametrize(
    ("n_same", "seconds", "shifts"),
    [(64, 0.0, True), (63, 0.0, False), (63, 0.02, True), (50, 0.02, True), (49, 0.02, False)],
)
def test_cells_are_moved_where_that_saves_a_second(make, n_same, seconds, shifts):
    """Or 64 tokens, while what one costs is not known."""
    scheduler = make(shifts=True)
    if seconds:
        scheduler.cost.expect(seconds)
    leave(scheduler, [*text(20), *text(40, of=1), *text(n_same, of=2)])
    scheduler.cost._slope = None
    scheduler.add(one := slid(n_same, 5))
    scheduler.plan()
    assert one.slot.approximate is shifts
    assert (one.slot.length, one.n_cached) == ((20 + n_same, 20 + n_same) if shifts else (20, 20))
    assert one.n_shifted == (n_same if shifts else 0)


def test_only_replies_whose_window_has_moved_are_shifted(make):
    for one in (slid(70, kind=Sequence), asking("b", slid(70).tokens)):
        scheduler = make(shifts=True)
        leave(scheduler, [*text(20), *text(40, of=1), *text(70, of=2)])
        scheduler.add(one)
        scheduler.plan()
        assert (one.slot.approximate, one.n_shifted, one.slot.length) == (False, 0, 20)


@pytest.mark.parametrize(("n_cached", "then"), [(10, 70), (75, 75)])
def test_the_window_may_move_during_a_reply(make, n_cached, then):
    scheduler = make(shifts=True)
    leave(scheduler, [*text(20), *text(40, of=1), *text(80, of=2)])
    one = slid(80, 1)
    one.n_prompt, one.n_cached = 90, n_cached
    scheduler.resume(one)
    scheduler.plan()
    assert (one.slot.length, one.n_shifted, one.n_cached) == (100, 70, then)


def test_cells_of_other_adapters_are_not_moved(make):
    scheduler = make(shifts=True)
    leave(scheduler, [*text(20), *text(40, of=1), *text(70, of=2)])
    scheduler.add(one := slid(70, 5, adapters=(("x", 1.0),)))
    scheduler.plan()
    assert (one.slot.length, one.n_cached) == (0, 0)


# Turns.


def test_adapters_take_turns_of_some_calls(make):
    with_x, with_y = (("x", 1.0),), (("y", 1.0),)
    scheduler = make(
        asking("a", text(2), adapters=with_x),
        asking("b", text(2, of=1), adapters=with_y),
        asking("c", text(2, of=2), adapters=with_x),
    )
    seen = [ids([seq for seq, _ in scheduler.plan()]) for _ in range(3 * TURN)]
    assert seen == [["a", "c"]] * TURN + [["b"]] * TURN + [["a", "c"]] * TURN
    scheduler.remove(scheduler.find("b"), keep_cache=False)
    assert ids([seq for seq, _ in scheduler.plan()]) == ["a", "c"]


MEDIA = media_ids(b"x" * 32, 6, 6)


def looking(name, *, before=2, after=2, of=0):
    tokens = [*text(before, of=of), *MEDIA, *text(after, of=of + 2)]
    return asking(name, tokens, media=(MediaRun(before, 6, 6),))


def test_an_image_has_a_call_of_its_own_in_turn_with_others(make):
    scheduler = make(one := looking("a"), asking("b", text(60, of=1)))
    assert scheduler.media() == []
    assert call(scheduler) == [("a", 2), ("b", 14)]
    assert scheduler.media() == [(one, one.media[0])]
    assert call(scheduler) == [("a", 6)]
    assert scheduler.media() == []
    assert [name for name, _ in call(scheduler)] == ["a", "b"]
    other = looking("c", before=1, of=3)
    scheduler.add(other)
    call(scheduler)
    scheduler.is_encoded = lambda sequence, run: (sequence, run) != (other, other.media[0])
    for _ in range(3):
        assert "c" not in dict(call(scheduler))
    scheduler.is_encoded = lambda sequence, run: True
    assert call(scheduler) == [("c", 6)]


def test_an_image_that_no_context_holds(make):
    scheduler = make(looking("a"), context=7)
    assert call(scheduler) == [("a", 2)]
    with pytest.raises(
        DecodeFailed, match=r"^An image or a sound does not fit into the context\.$"
    ) as caught:
        scheduler.plan()
    assert caught.value.hint == "Try --ctx."


# Cells.


def leave(scheduler, tokens):
    """Let the scheduler compute tokens, and leave them in an idle slot."""
    scheduler.add(one := asking("gone", tokens))
    while not one.n_generated:
        call(scheduler)
    scheduler.remove(one, keep_cache=True)


def test_idle_slots_go_before_who_runs_and_then_the_youngest(make):
    scheduler = make(context=200)
    leave(scheduler, text(30))
    assert scheduler.n_free == 170
    scheduler.add(one := asking("a", text(100, of=1)))
    while not one.n_generated:
        call(scheduler)
    scheduler.add(two := asking("b", text(6, of=4)))
    call(scheduler)
    one.tokens += text(80)
    states = []
    while two.slot:
        call(scheduler)
        idle = any(slot.length for slot in scheduler.cache.slots if not slot.busy)
        states += [(idle, ids(scheduler.running))]
    assert list(dict.fromkeys(map(str, states))) == [
        "(True, ['a', 'b'])", "(False, ['a', 'b'])", "(False, ['a'])",
    ]  # fmt: skip
    assert (ids(scheduler.waiting), two.n_cached) == (["b"], 0)
    assert len(one.tokens) > 185


def test_who_is_alone_gets_as_many_cells_as_there_are(make):
    scheduler = make(asking("a", text(15)), context=10)
    assert call(scheduler) == [("a", 10)]
    assert sizes(scheduler.plan()) == [("a", 0)]


def test_a_backend_that_has_no_room_is_believed(make):
    scheduler = make(*(asking(name, text(4, of=at)) for at, name in enumerate("abc")), context=400)
    planned = scheduler.plan()
    scheduler.make_room(planned)
    assert (ids(scheduler.running), ids(scheduler.waiting)) == (["a", "b"], ["c"])
    assert ids([seq for seq, _ in scheduler.plan()]) == ["a", "b"], "none joins before one has ended"
    scheduler.remove(scheduler.find("b"), keep_cache=True)
    planned = scheduler.plan()
    assert ids([seq for seq, _ in planned]) == ["a", "c"]
    scheduler.make_room(planned)
    assert (ids(scheduler.running), scheduler.cells) == (["a"], 400)
    planned = scheduler.plan()
    assert sizes(planned) == [("a", 4)]
    scheduler.make_room(planned)
    assert scheduler.cells == 3
    scheduler.make_room(planned)
    assert scheduler.cells == 2
    assert scheduler.cache.cells == 400


def test_a_backend_that_has_no_room_loses_idle_slots_first(make):
    scheduler = make(asking("gone", text(9)))
    call(scheduler)
    scheduler.remove(scheduler.find("gone"), keep_cache=True)
    scheduler.add(asking("a", text(9, of=2)))
    planned = scheduler.plan()
    scheduler.make_room(planned)
    assert (scheduler.cache.cells_used, ids(scheduler.running), scheduler.cells) == (0, ["a"], 4096)


def test_background_is_preempted_first_and_keeps_its_cells(make):
    late, one = prewarming("late", text(40)), asking("a", text(5, of=2))
    scheduler = make(late)
    call(scheduler)
    scheduler.add(one)
    scheduler.plan()
    assert scheduler._youngest() is late
    scheduler.preempt(late)
    scheduler.preempt(one)
    assert ids(scheduler.waiting) == ["a", "late"]
    assert [slot.length for slot in scheduler.cache.slots] == [16, 0, 0, 0]


def test_what_is_removed_may_leave_its_cells(make):
    scheduler = make(*(asking(name, text(4, of=at)) for at, name in enumerate("ab")))
    call(scheduler)
    scheduler.add(asking("c", text(9)))
    scheduler.remove(scheduler.waiting[0], keep_cache=True)
    for name, keep in (("a", True), ("b", False)):
        scheduler.remove(scheduler.find(name), keep_cache=keep)
    assert scheduler.is_idle
    assert sorted(slot.length for slot in scheduler.cache.slots) == [0, 0, 0, 4]
    assert not any(slot.busy for slot in scheduler.cache.slots)


# What calls leave.


def test_calls_are_counted_by_how_many_they_served(make):
    scheduler = make(*(asking(name, text(3, of=at)) for at, name in enumerate("ab")), n_seq_max=2)
    calls(scheduler, 3)
    scheduler.remove(scheduler.find("a"), keep_cache=False)
    call(scheduler)
    assert scheduler.batches == [1, 3]


@pytest.mark.parametrize(("n_accepted", "left"), [(3, 3), (1, 1), (0, 0)])
def test_drafted_tokens_that_fall_are_rolled_back(make, n_accepted, left):
    scheduler = make(one := asking("a", text(5)))
    calls(scheduler, 2)
    scheduler._backend.decode([BatchPart(one.slot.id, 6, [9, 1, 2, 3], 4)])
    scheduler.cache.extend(one.slot, [9])
    scheduler.accept_draft(one, [1, 2, 3], n_accepted)
    assert one.slot.tokens == [*text(5), 9, 9, *[1, 2, 3][:left]]
    check_cache(scheduler.cache)


def test_drafted_tokens_are_not_cached_before_they_are_accepted(make):
    scheduler = make(one := asking("a", text(5)))
    calls(scheduler, 2)
    one.draft = Draft("ngram", [1, 2])
    part = BatchPart(one.slot.id, 6, [9, 1, 2], 3)
    scheduler._backend.decode([part])
    scheduler.computed([(one, part)])
    assert one.slot.tokens == [*text(5), 9, 9]
    scheduler.accept_draft(one, [1, 2], 2)
    assert one.slot.tokens == [*text(5), 9, 9, 1, 2]


def test_where_nothing_can_be_rolled_back_it_is_computed_again_for_its_chat(make):
    scheduler = make(one := asking("a", text(5), chat="one"), rolls_back=1)
    calls(scheduler, 2)
    scheduler._backend.decode([BatchPart(one.slot.id, 6, [9, 1, 2], 3)])
    scheduler.cache.extend(one.slot, [9])
    scheduler.accept_draft(one, [1, 2], 0)
    assert (one.slot.length, one.slot.chat, one.slot.busy) == (0, "one", True)


def test_an_interrupted_call_leaves_what_it_has_cached(make):
    one, two = asking("a", text(9), chat="one"), asking("b", text(9, of=2))
    scheduler = make(one, two, n_batch=12)
    planned = scheduler.plan()
    scheduler._backend.decode([BatchPart(one.slot.id, 0, planned[0][1].tokens[:4], 0)])
    scheduler.interrupted(planned, [4, None])
    assert (one.slot.length, two.slot.length, one.slot.chat) == (4, 0, "one")
    check_cache(scheduler.cache)


def test_only_calls_that_no_stream_waits_for_can_be_interrupted(make):
    scheduler = make(asking("a", text(400)))
    assert scheduler.interruptible(scheduler.plan()) is None
    scheduler._backend.interruption = interruption = object.__new__(Interruption)
    planned = scheduler.plan()
    assert scheduler.interruptible(planned) is interruption
    assert sizes(planned) == [("a", 128)]
    scheduler.cost.note_interruption(1.0)
    assert scheduler.interruptible(scheduler.plan()) is None
    scheduler.cost.observe(0, 200, 2.0)
    scheduler.add(stream := asking("b", text(1, of=2)))
    planned = scheduler.plan()
    assert stream.n_pending == 1
    assert scheduler.interruptible(planned) is None


@pytest.mark.parametrize(
    ("boundaries", "start", "end", "places"),
    [
        ([], 0, 100, ()),
        ([50], 50, 100, ()),
        ([50], 0, 100, ((50, 50),)),
        ([10, 50], 0, 60, ((50, 50),)),
        ([40, 50], 0, 60, ((8, 40), (50, 50))),
        ([100, 400], 0, 500, ((400, 400),)),  # a quarter more is computed from the start
        ([104, 400], 0, 500, ((5, 104), (400, 400))),
        ([100, 400, 480], 0, 500, ((368, 400), (480, 480))),
        ([300, 390, 400, 480], 0, 500, ((250, 300), (368, 390), (480, 480))),
        ([100, 400, 480], 100, 500, ((368, 400), (480, 480))),
    ],
)
def test_the_places_of_checkpoints(boundaries, start, end, places):
    assert checkpoints_of(boundaries, start, end) == places


def test_checkpoints_are_taken_on_the_way(make):
    scheduler = make(
        one := asking("a", text(120), boundaries=(40, 100)), cuts=False, n_checkpoints=8, n_batch=30
    )
    while one.n_pending > 1 or len(one.tokens) == 120:
        call(scheduler)
    assert [taken.length for taken in one.slot.checkpoints][-1] == 100
    assert len(one.slot.checkpoints) == 2
    assert one.checkpoints == ()


def test_a_checkpoint_that_an_interrupted_call_has_passed_is_given_up(make):
    scheduler = make(one := asking("a", text(100), boundaries=(40, 90)), cuts=False)
    planned = scheduler.plan()
    assert one.checkpoints == ((8, 40), (90, 90))
    part = BatchPart(one.slot.id, 0, one.tokens[:50], 0)
    scheduler._backend.decode([part])
    scheduler.interrupted(planned, [None])
    scheduler.cache.extend(one.slot, part.tokens)
    scheduler._take_checkpoint(one, 1)
    assert (one.checkpoints, one.slot.checkpoints) == (((90, 90),), [])
