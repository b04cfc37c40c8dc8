"""What is put on cards where llama.cpp's account is not what the formulas foresaw."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.native import amx
from edgechat.native.params import Breakdown, Buffer
from edgechat.planner.estimate.budget import RAM, Layout, estimated, part_bytes
from edgechat.planner.estimate.rates import guessed
from edgechat.planner.placement.model_on_machine import EXACT, model_on_machine
from tests.kit.published import published
from tests.planner.headers import GIB
from tests.planner.placement.test_layout import card, with_cards
from tests.properties import examples

MIB = 2**20


def loader(name, *cards):
    names = [card(f"CUDA{number}", free) for number, free in enumerate(cards)]
    found = model_on_machine(name, published(name), with_cards(128, *names), threads=4)
    fast = {one.name: guessed(5e11, 2e13) for one in found.budget.cards}
    return replace(found, rates={None: guessed(5e10, 4e11), **fast})


def wanting(base, more):
    """Return the loader with an allocator that wants `more` bytes on each card than the formulas say."""

    def measure(params):
        on = Layout(params.devices, params.split, params.experts_in_ram)
        needs = estimated(base.shape, base._extras(params), on)
        buffers = tuple(
            Buffer(
                name, name == RAM, one.weights, one.cache, max(0, one.compute + more * (name != RAM)), name
            )
            for name, one in needs.items()
        )
        return Breakdown(buffers, 0, params.context)

    return replace(base, measure=measure)


def room(load, on):
    return {one.name: one.budget - load.needs[one.name].total for one in on.budget.cards}


@pytest.mark.parametrize("more", [-100 * MIB, 0, 300 * MIB, 900 * MIB])
def test_experts_are_moved_until_the_card_is_full_and_not_over(more):
    """All layers stay on it: each without its experts is small."""
    on = wanting(loader("qwen3-30b-a3b", 8), more)
    load = on.load(8192, "f16")
    assert load.source == EXACT
    assert load.layout.n == len(on.shape.parts)
    assert 0 < load.layout.experts_in_ram < len(on.shape.layers)
    assert 0 <= room(load, on)["CUDA0"] < max(one.experts for one in on.shape.layers)


@pytest.mark.parametrize("more", [-100 * MIB, 0, 300 * MIB, 900 * MIB])
def test_layers_are_moved_until_the_card_is_full_and_not_over(more):
    on = wanting(loader("llama-3.1-8b", 4), more)
    load = on.load(8192, "f16")
    largest = max(part_bytes(on.shape, on._extras(load.params)))
    assert 0 < load.layout.n < len(on.shape.parts)
    assert 0 <= room(load, on)["CUDA0"] < largest


@settings(max_examples=examples(15))
@given(
    st.sampled_from(["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "gemma-3-12b"]),
    st.floats(0.5, 24),
    st.floats(0.5, 24),
    st.integers(-200, 1500),
)
def test_whatever_the_account_says_it_fits(name, a, b, more):
    on = wanting(loader(name, a, b), more * MIB)
    load = on.load(4096, "f16")
    assert not on.budget.over(dict(load.needs))
    assert load.layout.n <= len(on.shape.parts)
    assert all(count > 0 for count in load.layout.split)
    if load.layout.n:
        assert on.budget.cards[-1].name in load.layout.devices  # the larger one
    assert sum(one.weights for one in load.needs.values()) >= on.header.weights_bytes
    assert load.total < 64 * GIB


@pytest.mark.parametrize(("layout", "more"), [("CPU_REPACK", 0), (amx.NAME, 100 * MIB)])
def test_weights_laid_out_for_amx_take_what_they_take(layout, more):
    """A matrix that is told of twice counts once in RAM; what is packed for AMX is larger than the file."""
    on = loader("llama-3.1-8b")
    file = on.header.weights_bytes
    buffers = (Buffer("CPU", True, 100 * MIB), Buffer(layout, True, file))
    load = replace(on, measure=lambda params: Breakdown(buffers, 0, params.context)).load(8192, "f16")
    assert load.source == EXACT
    assert load.needs[RAM].weights == file + more
