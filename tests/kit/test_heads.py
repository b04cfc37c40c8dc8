"""The heads of the kit's models draft as they are made to: by the bare library, without edgechat's engine."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from tests.kit.heads import MTP, eagle3_pair, gemma4_pair, split_head, with_head
from tests.kit.heads.bare import Bare, before, shifted, zeroed
from tests.kit.heads.bare_eagle3 import BareEagle3
from tests.kit.heads.bare_gemma4 import BareGemma4

pytestmark = pytest.mark.slow

PROMPT = [int(t) for t in np.random.default_rng(3).integers(32, 127, 20)]
N = len(PROMPT)

RUNS = {
    **{kind: lambda eps, kind=kind: Bare(with_head(kind, eps=eps)) for kind in MTP},
    "eagle3": lambda eps: BareEagle3(*eagle3_pair(eps=eps)),
    "gemma4": lambda eps: BareGemma4(*gemma4_pair(eps=eps)),
}


class Read(NamedTuple):
    run: Bare
    text: list[int]


def read_by(run):
    return Read(run, PROMPT + run.target.greedy(PROMPT, 200))


@pytest.fixture(scope="module", params=RUNS)
def read(request):
    """A model with a head, and its greedy text."""
    with RUNS[request.param](0.05) as run:
        yield read_by(run)


def test_the_text_does_not_repeat_itself(read):
    said = bytes(read.text[N:])
    assert len(set(said)) > 40
    assert all(said.count(said[i : i + 6]) < 5 for i in range(195))


def test_the_head_agrees_with_its_target(read):
    assert 0.75 < read.run.agreement(read.text, skip=N) < 0.97


@pytest.mark.parametrize("change", [zeroed, shifted])
def test_the_head_needs_its_hidden_states(read, change):
    assert read.run.agreement(read.text, skip=N, change=change) < 0.35


def test_the_head_needs_its_cache(read):
    said, hidden = read.run.targeted(read.text)
    hidden, right = before(hidden), 0
    for at in range(N, len(read.text)):
        read.run.forget()
        guessed, _ = read.run.headed(read.text[at : at + 1], hidden[at], start=at)
        right += int(guessed[0].argmax() == said[at].argmax())
    assert right / 200 < 0.4


def test_drafts_go_on_from_drafts(read):
    assert min(read.run.agreement_of_drafts(read.text, skip=N)) > 0.6


@pytest.mark.parametrize("kind", RUNS)
def test_eps_is_how_much_the_head_does_not_know(kind):
    found = []
    for eps in (0.0, 0.2):
        with RUNS[kind](eps) as run:
            found.append(run.agreement(read_by(run).text, skip=N))
    assert found[0] > 0.87
    assert found[1] < 0.75


def test_each_step_of_a_draft_needs_its_own_head():
    with Bare(with_head("step35")) as run:
        text = read_by(run).text
        assert run.n_heads == 3
        run.n_heads = 1  # the first one alone, for every step
        first, second, _ = run.agreement_of_drafts(text, skip=N)
    assert first > 0.7
    assert second < 0.35


@pytest.mark.parametrize("kind", MTP)
def test_a_head_in_a_file_of_its_own_drafts_the_same(kind):
    with Bare(with_head(kind)) as one, Bare(*split_head(kind)) as two:
        whole, split = read_by(one), read_by(two)
        assert whole.text == split.text
        assert one.agreement(whole.text, skip=N) == two.agreement(split.text, skip=N)
