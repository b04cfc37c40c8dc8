from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat.device.accelerators import Accelerator
from edgechat.models.formats.quants import GgmlType
from edgechat.planner.estimate.budget import RAM, Budget, Extras, Layout, Needs, estimated, layouts
from edgechat.planner.estimate.shape import Layer, Matrices, shape_of
from tests.planner.headers import GIB, LLAMA_8B, header, machine

MIB = 2**20


def card(name, free, *, shares_ram=False, own=None, worker=""):
    n = int(free * GIB)
    return Accelerator(
        name=name,
        vendor="nvidia",
        devices=(name,),
        total=n,
        free=n,
        shares_ram=shares_ram,
        own=(0 if shares_ram else n) if own is None else int(own * GIB),
        pci=None,
        sources=("ggml",),
        worker=worker,
    )


def with_cards(ram, *cards):
    return replace(machine(int(ram * GIB)), accelerators=cards)


def uniform(n, size, experts=0, tied=0):
    layer = Layer(
        size, experts, (Matrices(GgmlType.Q8_0, size, size),), (Matrices(GgmlType.Q8_0, experts, experts),)
    )
    base = shape_of(header(LLAMA_8B))
    return replace(
        base,
        layers=(layer,) * n,
        output=Layer(size, 0, layer.matrices),
        routed=1 / 8,
        embedding=size,
        tied=tied,
    )


def extras(n, cache=0, compute=0):
    return Extras(cache=[cache] * n, compute=compute, output=0, program=0)


def first(shape, more, profile):
    return next(iter(layouts(shape, more, Budget.of(profile))))


def test_the_larger_card_is_filled_first_and_stands_last():
    shape, more = uniform(10, GIB), extras(10)
    both = with_cards(64, card("B", 7), card("A", 3))
    assert first(shape, more, both) == Layout(("A", "B"), (2, 6))
    assert Layout(("A", "B"), (2, 6)).devices_of(11) == [None] * 3 + ["A"] * 2 + ["B"] * 6


def test_own_memory_comes_before_shared():
    both = with_cards(64, card("igpu", 30, shares_ram=True), card("dgpu", 4))
    assert first(uniform(10, GIB), extras(10), both) == Layout(("igpu", "dgpu"), (8, 3))


def test_cache_and_compute_take_their_part_of_a_card():
    one = with_cards(64, card("A", 8))
    assert first(uniform(10, GIB), extras(10), one).split == (7,)
    assert first(uniform(10, GIB), extras(10, cache=GIB), one).split == (4,)
    assert first(uniform(10, GIB), extras(10, compute=2 * GIB), one).split == (5,)


def test_experts_stay_in_ram_where_that_keeps_all_else_on_the_card():
    shape = uniform(10, 100 * MIB, experts=GIB)
    plain, routed, processor = layouts(shape, extras(10), Budget.of(with_cards(64, card("A", 5))))
    assert plain == Layout(("A",), (5,))  # the output and four layers with their experts
    assert routed == Layout(("A",), (11,), 7)
    assert processor == Layout()
    assert len(list(layouts(shape, extras(10), Budget.of(with_cards(64, card("A", 50)))))) == 2


def test_a_tied_matrix_lies_twice_only_where_a_card_has_the_output():
    shape = uniform(2, GIB, tied=GIB)
    alone = estimated(shape, extras(2), Layout())
    split = estimated(shape, extras(2), Layout(("A",), (1,)))
    assert alone == {RAM: Needs(weights=3 * GIB)}
    assert split == {RAM: Needs(weights=3 * GIB), "A": Needs(weights=GIB)}


@given(st.integers(1, 60), st.floats(0.1, 30), st.floats(0.1, 30), st.integers(0, 2 * GIB))
def test_what_is_laid_out_fits_and_nothing_is_lost(n, a, b, experts):
    shape, more = uniform(n, 300 * MIB, experts), extras(n, 50 * MIB, 100 * MIB)
    budget = Budget.of(with_cards(1000, card("A", a), card("B", b)))
    whole = sum(part.weights + part.experts for part in shape.parts) + shape.embedding
    for layout in layouts(shape, more, budget):
        needs = estimated(shape, more, layout)
        assert not budget.over(needs)
        assert sum(one.weights for one in needs.values()) == whole
        assert sum(one.cache for one in needs.values()) == n * 50 * MIB
        assert layout.n <= n + 1


def test_shared_memory_is_charged_once():
    budget = Budget.of(with_cards(10, card("igpu", 9, shares_ram=True, own=1)))
    needs = {RAM: Needs(weights=2 * GIB), "igpu": Needs(weights=5 * GIB)}
    assert budget.charged(needs) == 6 * GIB
    assert budget.fits(needs)
    assert not budget.fits({RAM: Needs(weights=7 * GIB), "igpu": Needs(weights=5 * GIB)})


@pytest.mark.parametrize(("free", "margin"), [(24, 0.5), (2, 0.2)])
def test_a_margin_is_left_on_a_card(free, margin):
    only = Budget.of(with_cards(10, card("A", free))).cards[0]
    assert only.budget == pytest.approx((free - margin) * GIB, abs=2)


FAR = "ssh://far"


def ways(ram, *cards):
    """Return the layouts of ten layers of a GiB."""
    return list(layouts(uniform(10, int(GIB)), extras(10), Budget.of(with_cards(ram, *cards))))


def test_workers_come_after_what_is_here():
    """A card of this machine gets the last layers, and with them the output, however small it is."""
    here, far = card("CUDA0", 4), card("RPC0", 40, worker=FAR)
    filled, *_ = ways(64, far, here)
    assert filled == Layout(("RPC0", "CUDA0"), (8, 3))


def test_a_worker_may_take_what_does_not_fit_here_and_no_more():
    far, near = card("RPC0", 40, worker=FAR), card("CUDA0", 4)
    whole, least, *alone = ways(6, far, near)
    assert whole == Layout(("RPC0", "CUDA0"), (8, 3))
    # RAM has 5.4 GiB to give, one of them to what is looked up.
    assert least == Layout(("RPC0", "CUDA0"), (4, 3))
    assert alone == [Layout(("CUDA0",), (3,)), Layout()]


def test_two_workers_share_what_does_not_fit_here():
    layout = ways(6, card("RPC0", 3.5, worker=FAR), card("RPC1", 5, worker="ssh://other"))[1]
    assert layout == Layout(("RPC0", "RPC1"), (3, 4))


def test_no_worker_is_asked_in_vain():
    """There is no such layout where nothing is too much for this machine, or too much for all."""
    far = card("RPC0", 40, worker=FAR)
    assert ways(64, far) == [Layout(("RPC0",), (11,)), Layout()]
    little = card("RPC0", 2.5, worker=FAR)
    assert ways(3, little) == [Layout(("RPC0",), (2,)), Layout()]
