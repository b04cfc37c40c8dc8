"""Speculation changes the speed and nothing else: the distribution of what is said stays what it was.

Triples of tokens are counted over long replies of a model whose every probability is known, and held against
them: chi-square at 0.001, with fixed seeds. That the test would notice is tested by breaking the rules.
"""

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest

from edgechat.engine import engine as engine_module
from edgechat.engine.engine import EngineCore
from edgechat.engine.sampling import Sampler
from edgechat.engine.speculative.controller import DraftChoice
from edgechat.engine.speculative.drafters import ModelDrafter
from edgechat.engine.speculative.speculation import Speculation, verify
from edgechat.engine.types import ChatRequest, Delta, Finished, Message, Sampling
from tests.engine.speculative.always import Always
from tests.engine.speculative.tables import Fixed, Tables

pytestmark = pytest.mark.slow

N = 5
"""Letters; one more parts the triples where penalties look back further than a triple."""
ENOUGH, FEW = 20_000, 8_000
"""Triples that show whether a draft's token stands a tenth too often, or any other mistake there is here."""
STREAMS, TRIPLES = 10, 500
"""Numbers of streams, and of triples in each reply."""
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
PENALTIES = {"repetition_penalty": 1.4, "presence_penalty": 0.5, "penalty_window": 2}
SETTINGS = {
    "plain": Sampling(**OFF),
    "cold, top-k": Sampling(**OFF | {"temperature": 0.7, "top_k": 3}),
    "top-p": Sampling(**OFF | {"top_p": 0.8}),
    "min-p": Sampling(**OFF | {"min_p": 0.2}),
    "penalties": Sampling(**OFF | PENALTIES),
}


def logits_of(seed, *, parted):
    """Return tables by which each token of a triple depends on those before it in the triple, and no others.

    parted: two tokens of another letter stand between triples.
    """
    rng = np.random.default_rng(seed)
    n, period = (N + 1, 5) if parted else (N, 3)
    tables = np.full((period, n, n, n), -1e4, np.float32)
    first = period - 3
    tables[first, ..., :N] = rng.normal(0, 1.2, N)
    tables[first + 1, ..., :N] = rng.normal(0, 1.2, (1, n, N))
    tables[first + 2, ..., :N] = rng.normal(0, 1.2, (n, n, N))
    tables[:first, ..., N:] = 1e4
    return tables


def drafted_by(*, parted):
    """Return the tables of a model that thinks much the same."""
    tables = logits_of(1, parted=parted)
    return tables + np.random.default_rng(2).normal(0, 0.8, tables.shape)


def likely(logits, recent, sampling):
    """Return the probabilities of the tokens: the definition, in the plainest way."""
    logits = list(logits)
    for token in set(recent):
        logits[token] *= sampling.repetition_penalty ** (-1 if logits[token] > 0 else 1)
        logits[token] -= sampling.presence_penalty
    highest = max(logits)
    plain = [math.exp(one - highest) for one in logits]
    order = sorted(range(len(logits)), key=lambda at: -logits[at])
    if sampling.top_k:
        order = order[: sampling.top_k]
    total, kept, mass = sum(plain[at] for at in order), [], 0.0
    for at in order:
        if mass < sampling.top_p * total and plain[at] >= sampling.min_p * plain[order[0]]:
            kept.append(at)
        mass += plain[at]
    weights = [
        math.exp((logits[at] - highest) / sampling.temperature) * (at in kept) for at in range(len(logits))
    ]
    return [one / sum(weights) for one in weights]


def expected(tables, sampling):
    """Return the probability of each triple."""
    first, found = len(tables) - 3, {}
    window = sampling.penalty_window if sampling.presence_penalty else 0
    for triple in itertools.product(range(N), repeat=3):
        said, chance = [tables.shape[-1] - 1] * 2, 1.0
        for at, token in enumerate(triple):
            row = tables[first + at, said[-2], said[-1]].tolist()
            chance *= likely(row, said[len(said) - window :], sampling)[token]
            said.append(token)
        found["".join(map("abcde".__getitem__, triple))] = chance
    return found


def is_rejected(counts, chances):
    """Return whether counts of triples contradict their probabilities, at a level of 0.001."""
    n = sum(counts.values())
    if any(not chances[triple] for triple in counts):
        return True
    rare = {triple for triple, chance in chances.items() if 0 < chance * n < 5}
    pairs = [(counts[triple], chance * n) for triple, chance in chances.items() if chance * n >= 5]
    if rare:
        pairs.append((sum(map(counts.__getitem__, rare)), n * sum(map(chances.__getitem__, rare))))
    chi_square = sum((seen - mean) ** 2 / mean for seen, mean in pairs)
    df = len(pairs) - 1
    # Wilson and Hilferty 1931
    limit = df * (1 - 2 / (9 * df) + 3.0902 * math.sqrt(2 / (9 * df))) ** 3
    return chi_square > limit


def said(sampling, n, *, model=False, head=False, ngrams=False, controller=None):
    """Let an engine say n triples; return them, and how many tokens were drafted and stood."""
    parted = bool(sampling.presence_penalty)
    tables = drafted_by(parted=parted)
    target, draft = Tables(logits_of(1, parted=parted), head=tables if head else None), Tables(tables)
    drafter = ModelDrafter(draft, N + parted) if model else None
    period, counts = len(target.tables), Counter()
    engine = EngineCore(
        target,
        Fixed("f" * 5 if parted else "aaa"),
        model_drafter=drafter,
        ngrams=ngrams,
        controller=controller or Always(longest=3),
    )
    drafted = accepted = 0
    while (left := n - counts.total()) > 0:
        texts = {}
        for name in map(str, range(STREAMS)):
            texts[name] = ""
            length = min(TRIPLES, -(-left // STREAMS)) * period
            engine.submit(
                ChatRequest(id=name, messages=(Message("user", ""),), sampling=sampling, max_tokens=length)
            )
        while not engine.is_idle:
            for event in engine.step():
                if isinstance(event, Delta):
                    texts[event.request_id] += event.text
                elif isinstance(event, Finished) and event.speculation:
                    drafted += event.speculation.drafted_tokens
                    accepted += event.speculation.accepted_tokens
        for text in texts.values():
            counts.update(text[end - 3 : end] for end in range(period, len(text) + 1, period))
    engine.close()
    return counts, drafted, accepted


def seed_all(monkeypatch):
    """Let requests without a seed have the same ones in every run."""
    seeds, made = itertools.count(1), np.random.default_rng
    monkeypatch.setattr(
        "numpy.random.default_rng", lambda seed=None: made(next(seeds) if seed is None else seed)
    )


@pytest.fixture(autouse=True)
def same_every_time(monkeypatch):
    """Let requests without a seed have one of ours, unknown to the engine; and let nobody skip drafting."""
    seed_all(monkeypatch)
    monkeypatch.setattr("edgechat.engine.speculative.speculation.OVERHEAD", 1e9)


SOME = [name if name == "plain" else pytest.param(name, marks=pytest.mark.soak) for name in SETTINGS]
"""All settings; those of which the others are much like are left to the soak."""
NUMBERS = [(name, FEW // 2) for name in SETTINGS] + [
    pytest.param(name, 100_000, marks=pytest.mark.soak) for name in SETTINGS
]


@pytest.mark.parametrize(("name", "n"), NUMBERS)
def test_triples_come_as_often_as_without_drafts(name, n):
    """Drafts of a model, of a head and of n-grams, by turns; a hundred thousand triples in the soak."""
    sampling = SETTINGS[name]
    chances = expected(logits_of(1, parted=bool(sampling.presence_penalty)), sampling)
    assert abs(sum(chances.values()) - 1) < 1e-9
    assert not is_rejected(said(sampling, n // 10)[0], chances)
    counts, drafted, accepted = said(sampling, n, model=True, head=True, ngrams=True)
    assert counts.total() >= n
    assert drafted > n
    assert 0.2 < accepted / drafted < 0.8
    assert not is_rejected(counts, chances)


@pytest.mark.parametrize("drafter", ["model", "head", "ngrams"])
@pytest.mark.parametrize("name", SOME)
def test_so_they_do_with_each(name, drafter):
    sampling = SETTINGS[name]
    chances = expected(logits_of(1, parted=bool(sampling.presence_penalty)), sampling)
    assert not is_rejected(said(sampling, 5_000, **{drafter: True})[0], chances)


class Choosy(Always):
    """Drafts by how sure the draft is, and would leave out again what turns out unsure."""

    def chances(self, classes, source):
        return [one / 10 for one in classes]

    def choose(self, offers, most):
        return [DraftChoice("model", 1) if one else None for one in offers]

    def is_worth_adding(self, source, chances, n_beside, longest):
        return chances[-1] > 0.3

    def is_worth_drafting(self, source, chances, n_beside, longest):
        return chances[-1] < 0.8

    def worth_verifying(self, chances, n_beside):
        return len(chances) - (chances[-1] < 0.6) if chances else 0


@pytest.mark.parametrize("name", ["top-p", pytest.param("plain", marks=pytest.mark.soak)])
def test_lengths_may_follow_how_sure_the_draft_is(name):
    chances = expected(logits_of(1, parted=False), SETTINGS[name])
    counts, drafted, _ = said(SETTINGS[name], FEW, model=True, controller=Choosy())
    assert drafted > FEW // 2
    assert not is_rejected(counts, chances)


def test_to_leave_out_what_was_drawn_is_seen(monkeypatch):
    """Whether a token is verified would depend on what follows it, and so on itself."""

    def trim(self, drafts):
        for one in drafts:
            if one is not None:
                one.cut(self.controller.worth_verifying(self.controller.chances(one.confidence, "model"), 0))

    monkeypatch.setattr(Speculation, "_cut_unprofitable", trim)
    chances = expected(logits_of(1, parted=False), SETTINGS["plain"])
    assert is_rejected(said(SETTINGS["plain"], FEW, model=True, controller=Choosy())[0], chances)


WRONG = {
    "whatever is drafted stands": lambda p, q, number: True,
    "what the target likes more stands": lambda p, q, number: p >= q,
    "as often as the target says it": lambda p, q, number: number < p,
    "a little too often": lambda p, q, number: number * q < 1.1 * p,
}


@pytest.mark.parametrize("rule", [*[*WRONG][:-1], pytest.param("a little too often", marks=pytest.mark.soak)])
def test_a_wrong_rule_for_drafts_of_a_model_is_seen(rule, monkeypatch):
    monkeypatch.setattr("edgechat.engine.sampling.accepts", WRONG[rule])
    n = ENOUGH if rule == "a little too often" else FEW // 2
    for sampling in (SETTINGS["plain"], SETTINGS["top-p"]):
        assert is_rejected(said(sampling, n, model=True)[0], expected(logits_of(1, parted=False), sampling))


def test_a_rejected_token_that_is_drawn_again_is_seen(monkeypatch):
    """From all of the target's distribution, not from what the draft has left of it."""
    verify_token = Sampler.verify

    def careless(self, logits, recent, token, drafted, *_):
        found = verify_token(self, logits, recent, token, drafted)
        return token if found == token else self.choose(logits, recent)

    monkeypatch.setattr(Sampler, "verify", careless)
    chances = expected(logits_of(1, parted=False), SETTINGS["plain"])
    assert is_rejected(said(SETTINGS["plain"], FEW, model=True)[0], chances)


def test_guesses_that_stand_without_the_samplers_choice_are_seen(monkeypatch):
    """A guess is not drawn from anything: to let it stand by a chance of its own is wrong."""
    rng = random.Random(1)

    def careless(sampler, rows, tokens, draft, *_):
        if draft.tokens and rng.random() < 0.1:
            return [draft.tokens[0], sampler.choose(rows[1], [*tokens, draft.tokens[0]])]
        return verify(sampler, rows, tokens, draft)

    monkeypatch.setattr(engine_module, "verify", careless)
    chances = expected(logits_of(1, parted=False), SETTINGS["plain"])
    assert is_rejected(said(SETTINGS["plain"], 20_000, ngrams=True)[0], chances)
