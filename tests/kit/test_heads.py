"""The heads of the kit's models draft as they are made to: by the bare library, without edgechat's engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from tests.kit.heads import MTP, with_head
from tests.kit.heads.bare import Bare, before, shifted, zeroed

pytestmark = pytest.mark.slow

PROMPT = [int(t) for t in np.random.default_rng(3).integers(32, 127, 20)]
N = len(PROMPT)


class Read(NamedTuple):
    run: Bare
    text: list[int]


@pytest.fixture(scope="module", params=MTP)
def read(request: pytest.FixtureRequest) -> Iterator[Read]:
    """A model with a head, and its greedy text."""
    with Bare(with_head(request.param)) as run:
        yield Read(run, PROMPT + run.target.greedy(PROMPT, 200))


def test_the_text_does_not_repeat_itself(read: Read) -> None:
    said = bytes(read.text[N:])
    assert len(set(said)) > 40
    assert all(said.count(said[i : i + 4]) < 5 for i in range(190))


def test_the_head_agrees_with_its_target(read: Read) -> None:
    assert 0.75 < read.run.agreement(read.text, skip=N) < 0.97


@pytest.mark.parametrize("change", [zeroed, shifted])
def test_the_head_needs_its_hidden_states(read: Read, change: object) -> None:
    assert read.run.agreement(read.text, skip=N, change=change) < 0.35


def test_the_head_needs_its_cache(read: Read) -> None:
    said, hidden = read.run.targeted(read.text)
    hidden, right = before(hidden), 0
    for at in range(N, len(read.text)):
        read.run.head.clear()
        guessed, _ = read.run.headed(read.text[at : at + 1], hidden[at], start=at)
        right += int(guessed[0].argmax() == said[at].argmax())
    assert right / 200 < 0.35


def test_drafts_go_on_from_drafts(read: Read) -> None:
    assert min(read.run.agreement_of_drafts(read.text, skip=N)) > 0.7


def test_eps_is_how_much_the_head_does_not_know() -> None:
    found = []
    for eps in (0.0, 0.2):
        with Bare(with_head("qwen35", eps=eps)) as run:
            found.append(run.agreement(PROMPT + run.target.greedy(PROMPT, 200), skip=N))
    assert found[0] > 0.93
    assert found[1] < 0.8


def test_each_step_of_a_draft_needs_its_own_head() -> None:
    with Bare(with_head("step35")) as run:
        text = PROMPT + run.target.greedy(PROMPT, 200)
        assert run.n_heads == 3
        run.n_heads = 1  # the first one alone, for every step
        first, second, _ = run.agreement_of_drafts(text, skip=N)
    assert first > 0.7
    assert second < 0.35
