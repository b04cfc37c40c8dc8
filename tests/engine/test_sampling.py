"""Sampling compared with llama.cpp's samplers and with its definition."""

import ctypes
from types import SimpleNamespace

import llama_cpp.llama_cpp as lib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.base.errors import BadRequest, DecodeFailed, SchemaError
from edgechat.engine.sampling import Sampler, accepts, check_bias, logprobs, top_ids
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
@pytest.mark.parametrize("at", [77, 8999])
@pytest.mark.parametrize("n_vocab", [9000, 50])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0),
        Sampling(**OFF),
        Sampling(**OFF | {"top_p": 0.9}),
        Sampling(**OFF | {"min_p": 0.1}),
    ],
)
def test_numbers_that_are_none_are_an_error(bad, at, n_vocab, sampling):
    """One of many columns, or one behind them, may have it."""
    logits = row(n_vocab)
    logits[at % n_vocab] = bad
    for sample in (Sampler(sampling).distribution, Sampler(sampling).choose):
        with pytest.raises(DecodeFailed):
            sample(logits, [])


def test_what_the_model_breaks_is_told_as_that_beside_a_grammar():
    logits = row(1000)
    logits[500] = np.nan
    with pytest.raises(DecodeFailed):
        Sampler(Sampling(), Only(1)).distribution(logits, [], [])


@pytest.mark.parametrize("n_vocab", [2, 32_768, 70_000])
def test_without_filters_a_token_is_drawn_from_the_distribution(n_vocab):
    """It is not made for that where the vocabulary is large."""
    logits = row(n_vocab, scale=1.0)
    logits[n_vocab // 2 :] -= 2
    logits[n_vocab // 2 - 1 : n_vocab // 2] = -np.inf
    sampler = Sampler(Sampling(**OFF | {"temperature": 0.7}, seed=3, bias=((0, 1.0),)))
    predicted = [sampler.predict(sampler.distribution(logits, []), ahead) for ahead in range(100)]
    assert [sampler.choose(logits, []) for _ in range(100)] == predicted


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-53])
def test_the_first_and_the_last_token_can_be_drawn(number):
    logits = np.full(70_000, -np.inf, np.float32)
    logits[[3, 40_000, 69_990]] = 0.0
    sampler = Sampler(Sampling(**OFF))
    sampler._random = SimpleNamespace(random=lambda: number)
    assert sampler.choose(logits, []) == {0.0: 3, 0.5: 40_000}.get(number, 69_990)


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


@pytest.mark.parametrize(
    ("sampling", "deterministic", "needs_logits"),
    [
        (Sampling(), False, False),
        (Sampling(seed=0), True, False),
        (Sampling(temperature=0), True, False),
        (Sampling(repetition_penalty=1.1), False, True),
        (Sampling(repetition_penalty=1.1, penalty_window=0), False, False),
        (Sampling(presence_penalty=0.1, penalty_window=1), False, True),
        (Sampling(frequency_penalty=0.1), False, True),
        (Sampling(bias=((1, 1.0),)), False, True),
    ],
)
def test_what_a_backend_need_not_know(sampling, deterministic, needs_logits):
    sampler = Sampler(sampling)
    assert (sampler.is_deterministic, sampler.needs_logits) == (deterministic, needs_logits)
    assert Sampler(sampling, Only(1)).needs_logits


def test_a_penalty_makes_unlikely_what_was_unlikely_already():
    assert Sampler(Sampling(temperature=0, repetition_penalty=2)).choose(np.float32([-1, -1.5]), [0]) == 1


def test_a_penalty_without_a_window_is_none():
    ids, probabilities = Sampler(
        Sampling(**OFF, presence_penalty=5.0, penalty_window=0, bias=((3, 0.0),))
    ).distribution(np.zeros(4, np.float32), [0, 1])
    assert dict(zip(ids.tolist(), probabilities.tolist(), strict=True)) == dict.fromkeys(range(4), 0.25)


def test_one_token_of_top_k_is_the_likeliest():
    ids, probabilities = Sampler(Sampling(**OFF | {"top_k": 1})).distribution(row(1000), [])
    assert (ids.tolist(), probabilities.tolist()) == ([int(row(1000).argmax())], [1.0])


@pytest.mark.parametrize(("filters", "kept"), [({"top_p": 0.8999}, 2700), ({"min_p": 0.5}, 3000)])
def test_a_filter_may_keep_most_tokens(filters, kept):
    ids, _ = Sampler(Sampling(**OFF | filters)).distribution(np.zeros(3000, np.float32), [])
    assert len(set(ids.tolist())) == kept


def test_a_token_without_probability_is_not_drawn_by_the_smallest_number():
    sampler = Sampler(Sampling(**OFF))
    sampler._random = SimpleNamespace(random=lambda: 0.0)
    assert sampler.choose(np.float32([-np.inf, 0.0, 0.0]), []) == 1


def test_two_tokens_both_come_and_each_is_predicted():
    sampler = Sampler(Sampling(**OFF, seed=0))
    distribution = sampler.distribution(np.zeros(2, np.float32), [])
    predicted = [sampler.predict(distribution, ahead) for ahead in (3, 0, 2, 1, *range(4, 50))]
    drawn = {sampler.draw(distribution) for _ in range(50)}
    chosen = [sampler.choose(np.zeros(2, np.float32), []) for _ in range(50)]
    assert predicted == [chosen[ahead] for ahead in (3, 0, 2, 1, *range(4, 50))]
    assert set(chosen) == drawn == {0, 1}


# Constraints.


class Only:
    """Allows the same tokens everywhere; a reply must be of these, too."""

    def __init__(self, *tokens, size=1000):
        self.tokens, self.size = tokens, size

    def mask(self, reply):
        assert set(reply) <= {*self.tokens}
        return np.isin(np.arange(self.size), self.tokens)

    def allows(self, reply, tokens):
        if not {*reply} <= {*self.tokens}:
            raise SchemaError("It cannot go on.")
        return next((at for at, token in enumerate(tokens) if token not in self.tokens), len(tokens))


@pytest.mark.parametrize("tokens", [range(0, 1000, 300), range(400), range(100, 1000)])
@pytest.mark.parametrize("sampling", [Sampling(**OFF), Sampling(top_k=2), Sampling(temperature=0)])
def test_only_what_is_allowed_has_a_probability(tokens, sampling):
    """A mask may be longer than the row: of tokens that only pad it."""
    logits = row(950)
    tokens = [token for token in tokens if token < 950]
    ids, probabilities = Sampler(sampling, Only(*tokens)).distribution(logits, [], tokens[:2])
    left = np.full(950, -np.inf, np.float32)
    left[tokens] = logits[tokens]
    wanted_ids, wanted = Sampler(sampling).distribution(left, [])
    found = {one: p for one, p in zip(ids.tolist(), probabilities, strict=True) if p}
    assert found == pytest.approx({one: p for one, p in zip(wanted_ids.tolist(), wanted, strict=True) if p})


def test_a_reply_so_far_is_what_its_grammar_goes_on_from():
    with pytest.raises(SchemaError):
        Sampler(Sampling(temperature=0), Only(1)).choose(row(1000), [], [2])


def test_one_of_two_likely_tokens_may_be_all_that_a_filter_keeps():
    ids, _ = Sampler(Sampling(**OFF | {"min_p": 0.9})).distribution(np.float32([1.0, 0.0, 0.9, -9.0]), [])
    assert sorted(ids.tolist()) == [0, 2]
    ids, _ = Sampler(Sampling(**OFF | {"top_p": 0.1})).distribution(np.float32([1.0, 0.0, 0.9]), [])
    assert ids.tolist() == [0]


@pytest.mark.parametrize("tokens", [(), (7,), range(1000)])
def test_where_the_model_excludes_all_that_is_allowed(tokens):
    logits = np.full(1000, -np.inf, np.float32)
    logits[5] = 0.0
    tokens = [token for token in tokens if token != 5]
    with pytest.raises(SchemaError) as caught:
        Sampler(Sampling(), Only(*tokens)).distribution(logits, [])
    assert caught.value.message == "The model assigns no probability to any token that the schema allows."
    assert caught.value.hint == "Change the schema, or choose another model."


def test_how_many_tokens_of_a_draft_are_allowed():
    sampler = Sampler(Sampling(), Only(1, 2))
    assert [sampler.allowed([1], tokens) for tokens in ([2, 1, 3, 1], [3], [])] == [2, 0, 0]
    assert sampler.allowed([3], [1]) == 0  # which is told with the next token
    assert Sampler(Sampling()).allowed([], [5, 6]) == 2


# Verification.


def verified(target, draft, drafted, n=6_000):
    """Draw tokens from the draft and verify them; return how often each came, and how many stood."""
    sampler, counts, stood = Sampler(Sampling(**OFF, seed=0)), np.zeros(len(target)), 0
    logits = np.log(np.array(target, np.float32))
    for _ in range(n):
        token = sampler.draw((np.array(drafted), np.array(draft)))
        found = sampler.verify(logits, [], token, (np.array(drafted), np.array(draft)))
        counts[found] += 1
        stood += found == token
    return counts / n, stood / n


@pytest.mark.parametrize(
    ("draft", "drafted", "standing"),
    [
        ([0.25, 0.25, 0.25, 0.25], [3, 1, 2, 0], 0.7),
        ([0.1, 0.9], [1, 3], 0.15),
        ([0.5, 0.3, 0.15, 0.05], [0, 1, 2, 3], 1.0),
        ([1.0], [9], 0.0),
        ([0.5, 0.5], [1, 0], 0.8),
    ],
)
def test_verified_tokens_come_as_the_target_has_them(draft, drafted, standing):
    target = [0.5, 0.3, 0.15, 0.05]
    found, stood = verified(target, draft, drafted)
    assert found == pytest.approx(target, abs=0.02)
    assert stood == pytest.approx(standing, abs=0.02)


@pytest.mark.parametrize(
    ("p", "q", "number", "stands"),
    [(0.5, 1.0, 0.49, True), (0.5, 1.0, 0.5, False), (0.0, 1.0, 0.0, False), (0.4, 0.2, 0.99, True)],
)
def test_a_drafted_token_stands_by_its_probabilities(p, q, number, stands):
    assert accepts(p, q, number) is stands


def test_a_token_that_the_filters_exclude_is_replaced_even_if_the_rest_is_as_likely():
    sampler = Sampler(Sampling(**OFF | {"top_k": 2}))
    logits = np.float32([2.0, 1.0, 0.0])
    assert sampler.verify(logits, [], 2, sampler.distribution(logits, [])) in (0, 1)


# What is told of chances, and what is asked for.


def test_logprobs_are_those_before_any_filter():
    logits = np.log(np.array([0.05, 0.5, 0.3, 0.15], np.float32)) + 90
    own, others = logprobs(logits, 3, 2)
    assert np.exp(own) == pytest.approx(0.15, rel=1e-4)
    assert [token for token, _ in others] == [1, 2]
    assert np.exp([chance for _, chance in others]) == pytest.approx([0.5, 0.3], rel=1e-4)
    assert logprobs(logits, 3, 0) == (own, [])
    assert [token for token, _ in logprobs(logits, 3, 1)[1]] == [1]


@pytest.mark.parametrize("n_vocab", [32_768, 70_000])
def test_a_large_vocabulary_counts_to_its_end(n_vocab):
    logits = row(n_vocab)
    logits[-1] = logits.max() + 1
    exact = np.exp(logits.astype(np.float64) - logits.max())
    own, _ = logprobs(logits, n_vocab - 1, 0)
    assert np.exp(own) == pytest.approx(1 / exact.sum(), rel=1e-5)
    kept = Sampler(Sampling(**OFF | {"top_p": 0.9})).distribution(logits, [])[0]
    wanted = np.searchsorted(np.sort(exact)[::-1].cumsum(), 0.9 * exact.sum()) + 1
    assert abs(len(kept) - wanted) <= 1


@pytest.mark.parametrize(
    ("bias", "told"),
    [
        (((-1, 1.0),), "unknown token -1; the model's tokens are 0 to 9."),
        (((0, 1.0), (10, 1.0)), "unknown token 10; the model's tokens are 0 to 9."),
        (((9, np.inf),), "The bias of token 9 is not a number."),
        (((0, np.nan),), "The bias of token 0 is not a number."),
    ],
)
def test_a_bias_that_cannot_be(bias, told):
    with pytest.raises(BadRequest, match=told):
        check_bias(Sampling(bias=bias), 10)
    check_bias(Sampling(bias=((0, -100.0), (9, 100.0))), 10)
