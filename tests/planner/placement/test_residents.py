"""What is free for a model beside others of ours, and in their place."""

from dataclasses import replace

import msgspec
import pytest

from edgechat.device.memory import Memory
from edgechat.native.params import Buffer
from edgechat.planner.machine import beside, is_lesser, mapped_bytes, without_loads
from edgechat.planner.request import PlanRequest
from tests.planner.headers import GIB, LLAMA_8B, header, machine, projector_file, weights_of
from tests.planner.placement.test_layout import card, with_cards
from tests.planner.planning import plan

LLAMA = header(LLAMA_8B)


@pytest.fixture
def loaded():
    return plan("loaded", LLAMA, machine(16 * GIB), PlanRequest(context=8192))


def test_mapped_weights_look_free_and_are_not(loaded):
    now = machine(10 * GIB)  # with the loaded model's weights in the kernel's cache
    assert mapped_bytes(loaded) == weights_of(loaded) > GIB
    assert beside(now, [loaded]).memory.available == 10 * GIB - weights_of(loaded)
    assert beside(now, [loaded, loaded, loaded, loaded]).memory.available == 0


def test_copied_weights_are_taken_already(loaded):
    copied = msgspec.structs.replace(
        loaded,
        buffers=(
            Buffer("CPU", is_host=True, weights=weights_of(loaded) - GIB),
            Buffer("CPU_REPACK", is_host=True, weights=GIB),
        ),
    )
    assert mapped_bytes(copied) == weights_of(loaded) - GIB


def test_what_ends_gives_back_what_it_took(loaded):
    before = machine(16 * GIB)
    taken = loaded.total_bytes - mapped_bytes(loaded)
    while_loaded = replace(before, memory=replace(before.memory, available=16 * GIB - taken))
    assert without_loads(while_loaded, [loaded]).memory.available == 16 * GIB


def test_no_more_comes_back_than_there_is(loaded):
    small = replace(machine(8 * GIB), memory=Memory(8 * GIB, 8 * GIB - 1))
    assert without_loads(small, [loaded]).memory.available == 8 * GIB
    bound = replace(small, memory=Memory(64 * GIB, GIB, bound="a group", limit=GIB + 7))
    assert without_loads(bound, [loaded]).memory.available == GIB + 7


def test_a_card_gives_back_its_own():
    profile = with_cards(16, card("CUDA0", 12))
    on_card = plan("loaded", LLAMA, profile, PlanRequest(context=8192))
    assert on_card.gpu_layers > 0
    (one,) = [memory for memory in on_card.memory if memory.name == "CUDA0"]
    full = profile.accelerators[0]
    less = replace(full, free=full.free - one.total_bytes, own=full.own - one.total_bytes)
    while_loaded = replace(profile, accelerators=(less,))
    assert without_loads(while_loaded, [on_card]).accelerators == (full,)
    # What is on the card hides nothing of the RAM.
    assert mapped_bytes(on_card) < weights_of(on_card)


def test_which_plan_is_the_lesser(loaded):
    assert not is_lesser(loaded, loaded)
    for change in ({"context": 4096}, {"cache_type": "q8_0"}, {"quant": "Q2_K"}):
        assert is_lesser(msgspec.structs.replace(loaded, **change), loaded)
    on_card = msgspec.structs.replace(loaded, devices=("CUDA0",), split=(5,))
    assert is_lesser(loaded, on_card)
    assert not is_lesser(on_card, loaded)


def test_a_plan_that_reads_text_alone_is_the_lesser_one(loaded):
    seeing = plan("loaded", LLAMA, machine(16 * GIB), PlanRequest(context=8192), projector=projector_file())
    assert seeing.projector is not None
    assert is_lesser(loaded, seeing)
    assert not is_lesser(seeing, loaded)
