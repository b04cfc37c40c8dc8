"""The memory that a load may use: by hand, in bytes that are all different."""

from dataclasses import fields, replace

import pytest

from edgechat.device.memory import Memory
from edgechat.native.params import Breakdown, Buffer
from edgechat.planner.estimate.budget import MLX, RAM, Budget, Card, Needs, needs_of, together
from tests.planner.headers import GIB, machine
from tests.planner.placement.test_layout import card, with_cards

MIB = 2**20
NEEDS = Needs(
    weights=1, cache=20, compute=300, program=4000, checkpoints=50_000, projector=600_000, adapters=7
)


def budget(*cards, available=1000, bound=None):
    return Budget(Memory(2000, available, bound), cards)


def byte_card(name, free, *, own=None, taken=0):
    """Return a card of so many bytes; own: of one that shares the machine's memory."""
    gpu = replace(card(name, 0), total=free, free=free, own=free if own is None else own)
    return Card(name, replace(gpu, shares_ram=own is not None), taken)


def test_needs_are_added_each_to_its_own():
    assert NEEDS.total == 654_328
    assert Needs().total == 0
    double = NEEDS + NEEDS
    assert [getattr(double, one.name) for one in fields(Needs)] == [
        2 * getattr(NEEDS, one.name) for one in fields(Needs)
    ]
    assert together({"A": NEEDS, RAM: Needs(1)}, {RAM: Needs(2), "B": Needs(3)}) == {
        "A": NEEDS,
        RAM: Needs(3),
        "B": Needs(3),
    }


@pytest.mark.parametrize(
    ("free", "taken", "left"),
    [
        (1000, 0, 900),
        (1000, 100, 800),
        (1000, 901, 0),
        (8 * GIB, 0, 8 * GIB - 512 * MIB),
        (5120 * MIB, MIB, 5120 * MIB - 513 * MIB),
        (0, 0, 0),
    ],
)
def test_a_card_has_a_margin(free, taken, left):
    assert byte_card("A", free, taken=taken).budget == left


def test_what_another_load_takes_of_a_cards_own_memory():
    assert [byte_card("A", 100, own=40, taken=taken).own for taken in (0, 30, 41)] == [40, 10, 0]


def test_the_best_card_stands_last_and_what_cannot_be_used_nowhere():
    """Of this machine, with memory of its own, and large, in this order."""
    cards = [
        replace(card("none", 9), devices=()),
        card("full", 0),
        card("large", 8),
        card("small", 4),
        card("shared", 16, shares_ram=True),
        card("far", 24, worker="10.0.0.2:1"),
    ]
    found = Budget.of(with_cards(32, *cards))
    assert [one.name for one in found.cards] == ["far", "shared", "small", "large"]
    assert found.memory == with_cards(32).memory
    assert [one.name for one in found.without_workers.cards] == ["shared", "small", "large"]
    assert found.without_workers.memory == found.memory
    several = replace(card("x", 1), devices=("CUDA0", "Vulkan0"))
    assert [one.name for one in Budget.of(with_cards(32, several)).cards] == ["CUDA0"]


def test_mlx_has_the_card_of_the_processor():
    chip = replace(card("MTL0", 8, shares_ram=True), vendor="apple")
    profile = replace(with_cards(16, card("A", 4), chip), mlx=True)
    assert Budget.of(profile, "mlx") == Budget(profile.memory, (Card(MLX, chip),))
    assert Budget.of(machine(16 * GIB), "mlx") == Budget(machine(16 * GIB).memory)


def test_what_a_load_leaves():
    before = budget(byte_card("A", 500), byte_card("B", 600, taken=5))
    after = before.less({RAM: Needs(300), "B": Needs(cache=50), "C": Needs(9)})
    assert (after.ram, [one.taken for one in after.cards], after.memory.total) == (700, [0, 55], 2000)
    assert before.less({RAM: Needs(1001)}).ram == 0
    assert before.less({}) == before


def test_a_card_that_shares_the_ram_is_charged_to_it_beyond_its_own():
    found = budget(byte_card("A", 500), byte_card("S", 600, own=100, taken=20))
    assert found.charged({}) == 0
    assert found.charged({"A": Needs(50)}) == 0
    assert found.charged({RAM: Needs(7), "S": Needs(60, 60)}) == 7 + 40
    assert found.charged({RAM: Needs(7), "S": Needs(50)}) == 7


def test_it_fits_where_every_memory_has_enough():
    found = budget(byte_card("A", 1000), byte_card("B", 2000))  # less a tenth each
    assert found.over({RAM: Needs(9999), "A": Needs(900), "B": Needs(1800)}) == {}
    assert found.over({"A": Needs(903), "B": Needs(1801)}) == {"A": 3, "B": 1}
    assert found.fits({RAM: Needs(1000), "A": Needs(900)})
    assert not found.fits({RAM: Needs(1001)})
    assert not found.fits({"A": Needs(901)})
    assert found.fits({RAM: Needs(750)}, spare=0.25)
    assert not found.fits({RAM: Needs(751)}, spare=0.25)


def test_its_words():
    assert budget(available=5 * GIB).in_words == "5.0 GiB are free"
    assert budget(available=5 * GIB, bound="ulimit -v").in_words == "5.0 GiB are free under ulimit -v"


def test_buffers_are_needs_of_their_memory():
    buffers = (
        Buffer("CPU_Mapped", True, weights=1),
        Buffer("CUDA_Host", True, compute=20, device="CUDA0"),
        Buffer("CUDA0", False, 300, 4000, 50_000, device="CUDA0"),
        Buffer("CUDA0_Split", False, weights=600_000, device="CUDA0"),
    )
    assert needs_of(Breakdown(buffers, output=7_000_000, n_ctx=1), 80_000_000) == {
        RAM: Needs(weights=1, compute=7_000_020, program=80_000_000),
        "CUDA0": Needs(600_300, 4000, 50_000),
    }
    assert needs_of(Breakdown((), output=0, n_ctx=1), 3) == {RAM: Needs(program=3)}
