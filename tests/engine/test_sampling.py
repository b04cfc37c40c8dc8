"""Sampling against llama.cpp's own samplers, and against its own definition."""

import ctypes

import llama_cpp.llama_cpp as lib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.base.errors import DecodeFailed
from edgechat.engine.sampling import Sampler, top_ids
from edgechat.engine.types import Sampling
from tests.properties import examples

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def row(n_vocab, seed=0, scale=3.0):
    return (np.random.default_rng(seed).standard_normal(n_vocab) * scale).astype(np.float32)


def native(logits, recent, sampling):
    """Return the distribution that llama.cpp's chain of samplers leaves."""
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    penalties = lib.llama_sampler_init_penalties(
        len(logits),
        sampling.penalty_window,
        sampling.repetition_penalty,
        sampling.frequency_penalty,
        sampling.presence_penalty,
    )
    for token in recent:
        lib.llama_sampler_accept(penalties, token)
    for sampler in (
        penalties,
        lib.llama_sampler_init_top_k(sampling.top_k),
        lib.llama_sampler_init_top_p(sampling.top_p, 1),
        lib.llama_sampler_init_min_p(sampling.min_p, 1),
        lib.llama_sampler_init_temp(sampling.temperature),
        lib.llama_sampler_init_dist(1),
    ):
        lib.llama_sampler_chain_add(chain, sampler)
    data = (lib.llama_token_data * len(logits))()
    for i, logit in enumerate(logits):
        data[i] = lib.llama_token_data(i, float(logit), 0.0)
    array = lib.llama_token_data_array(data, len(logits), -1, False)
    lib.llama_sampler_apply(chain, ctypes.byref(array))
    found = {array.data[i].id: array.data[i].p for i in range(array.size)}
    lib.llama_sampler_free(chain)
    return found


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.3, top_k=5),
        Sampling(temperature=1.7, top_k=0, top_p=0.7, min_p=0.0),
        Sampling(top_k=0, top_p=1.0, min_p=0.1),
        Sampling(top_k=1000, top_p=0.99, min_p=0.001, repetition_penalty=1.3),
        Sampling(presence_penalty=0.7, frequency_penalty=0.4),
        Sampling(repetition_penalty=1.1, penalty_window=3),
        Sampling(**OFF),
    ],
)
@pytest.mark.parametrize("n_vocab", [50, 9000])
def test_same_distribution_as_llama_cpp(sampling, n_vocab):
    logits = row(n_vocab)
    recent = [int(i) for i in np.argsort(-logits)[[0, 0, 1, 3, 7, 0]]]
    ids, probabilities = Sampler(sampling).distribution(logits, recent)
    mine = dict(zip(ids.tolist(), probabilities.tolist(), strict=True))
    theirs = native(logits, recent, sampling)
    assert mine.keys() == theirs.keys()
    assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-7)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 20_000), st.integers(1, 600), st.integers(0, 99))
def test_top_ids_are_those_of_a_full_sort(n_vocab, count, seed):
    logits = np.round(row(n_vocab, seed), 2)  # rounded: ties
    expected = np.sort(logits)[::-1][:count]
    ids = top_ids(logits, count)
    assert logits[ids].tolist() == expected.tolist()
    assert len(set(ids.tolist())) == len(ids)


def test_temperature_zero_takes_the_likeliest():
    logits = row(1000)
    assert Sampler(Sampling(temperature=0)).choose(logits, []) == int(logits.argmax())


def test_a_penalty_changes_what_is_likeliest():
    logits = np.zeros(10, np.float32)
    logits[3], logits[4] = 2.0, 1.9
    assert Sampler(Sampling(temperature=0, presence_penalty=0.5)).choose(logits, [3]) == 4
    assert logits[3] == 2.0


def test_the_seed_decides():
    logits = row(1000)

    def draw(seed):
        sampler = Sampler(Sampling(temperature=2.0, seed=seed))
        return [sampler.choose(logits, []) for _ in range(20)]

    assert draw(1) == draw(1) != draw(2)


def test_a_seed_stands_for_the_same_tokens_where_near_ties_change_places():
    """How many rows are computed at once changes the last bits of each: n = 3 is not n = 1, bit by bit."""
    random = np.random.default_rng(0)
    logits = np.full(1000, -50.0, np.float32)
    logits[random.permutation(1000)[:40]] = np.repeat(np.linspace(0.0, 3.0, 20), 2)
    here, there = (Sampler(Sampling(seed=5, top_p=1.0, min_p=0.0)) for _ in range(2))
    for _ in range(200):
        noise = random.normal(0, 1e-6, (2, 1000)).astype(np.float32)
        assert here.choose(logits + noise[0], []) == there.choose(logits + noise[1], [])


def test_tokens_come_as_often_as_their_probability_says():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    sampler = Sampler(Sampling(**OFF, seed=0))
    counts = np.bincount([sampler.choose(logits, []) for _ in range(20_000)], minlength=4)
    expected = np.array([0.5, 0.3, 0.15, 0.05]) * 20_000
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # chi-square, 3 degrees, p = 0.001


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0), Sampling(**OFF)])
def test_numbers_that_are_none_are_an_error(bad, sampling):
    logits = row(9000)
    logits[77] = bad
    with pytest.raises(DecodeFailed):
        Sampler(sampling).distribution(logits, [])


def test_a_token_ruled_out_by_the_model_never_comes():
    logits = np.full(9000, -np.inf, np.float32)
    logits[[5, 6]] = 0.0
    for sampling in (Sampling(), Sampling(**OFF), Sampling(temperature=0)):
        assert Sampler(sampling).choose(logits, []) in (5, 6)


def test_a_bias_is_added_where_a_token_is_known():
    """A draft knows fewer; what is said twice counts twice."""
    sampler = Sampler(Sampling(**OFF, bias=((7, 1.0), (900, 5.0), (2, -1.0), (7, 0.5))))
    for n_vocab in (1000, 900, 5):
        logits = row(n_vocab)
        before = logits.copy()
        ids, probabilities = sampler.distribution(logits, [])
        biased = before.copy()
        for token, value in ((7, 1.5), (900, 5.0), (2, -1.0)):
            if token < n_vocab:
                biased[token] += value
        wanted = np.exp(biased.astype(np.float64) - biased.max())
        assert probabilities[np.argsort(ids)] == pytest.approx(wanted / wanted.sum(), rel=1e-5)
        assert np.array_equal(logits, before)
