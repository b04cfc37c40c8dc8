"""Scores of tokens and their figures, against the same in float64, and against llama.cpp's own arithmetic."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from edgechat.bench import divergence
from edgechat.bench.divergence import (
    BASE_NLL,
    HEAD,
    KLD,
    NLL,
    SAME_TOP,
    coded,
    decoded,
    summary,
    token_scores,
)

N, N_VOCAB = 37, 1501
POOL = ThreadPoolExecutor(2)


@pytest.fixture(params=[0.02, 0.3, 3.0], ids=["near", "like Q4", "far"])
def pair(request):
    """Return the logits of a base and of a quantization, shifted: only differences count."""
    random = np.random.default_rng(7)
    base = random.normal(0, 4, (N, N_VOCAB)).astype(np.float32)
    noise = random.normal(0, request.param, base.shape)
    return base, (base + noise + 1.7).astype(np.float32)


def log_softmax(logits):
    exact = logits.astype(np.float64)
    exact -= exact.max(1, keepdims=True)
    return exact - np.log(np.exp(exact).sum(1, keepdims=True))


def targets():
    return np.random.default_rng(8).integers(0, N_VOCAB, N).astype(np.int32)


@pytest.mark.parametrize("block_bytes", [1, 4 * N_VOCAB * 5, 1 << 24])
def test_scores_are_those_of_float64(pair, block_bytes, monkeypatch):
    monkeypatch.setattr(divergence, "_BLOCK", block_bytes)
    base, logits = pair
    before = base.copy(), logits.copy()
    with ThreadPoolExecutor(2) as pool:
        scores = token_scores(logits, targets(), base, pool)
    p, q = log_softmax(base), log_softmax(logits)
    places = np.arange(N)
    np.testing.assert_allclose(scores[NLL], -q[places, targets()], rtol=1e-5)
    np.testing.assert_allclose(scores[BASE_NLL], -p[places, targets()], rtol=1e-5)
    np.testing.assert_allclose(scores[KLD], (np.exp(p) * (p - q)).sum(1), rtol=1e-4, atol=2e-7)
    assert (scores[SAME_TOP] == (p.argmax(1) == q.argmax(1))).all()
    # llama.cpp owns the logits: they are not to be written to.
    assert (base == before[0]).all()
    assert (logits == before[1]).all()


def test_alone_a_model_is_compared_with_itself(pair):
    _, logits = pair
    with ThreadPoolExecutor(1) as pool:
        scores = token_scores(logits, targets(), None, pool)
    assert (scores[NLL] == scores[BASE_NLL]).all()
    assert (scores[KLD] == 0).all()
    assert (scores[SAME_TOP] == 1).all()


def coded_by_loops(row):
    """Return what log_softmax of tools/perplexity writes of a row, in its own steps."""
    f = np.float32
    highest = max(row)
    least = max(min(row), f(highest - f(16)))
    log_sum = f(math.log(sum(float(np.exp(f(x - highest))) for x in row)))
    scale = f((highest - least) / f(65535))
    head = np.array([scale, f(f(least - highest) - log_sum)], np.float32).view(np.uint16).tolist()
    inverse = f(1) / scale
    return head + [round(float(f(inverse * f(x - least)))) if x > least else 0 for x in row]


def test_a_base_file_has_the_rows_of_llama_cpp(pair):
    logits = pair[0][:3]
    rows = coded(logits, POOL)
    assert rows.shape == (3, HEAD + N_VOCAB + 1)  # made even
    for row, own in zip(logits, rows[:, : HEAD + N_VOCAB], strict=True):
        assert np.abs(np.array(coded_by_loops(row)[HEAD:]) - own[HEAD:].astype(int)).max() <= 1
        np.testing.assert_allclose(
            own[:HEAD].copy().view(np.float32),
            np.array(coded_by_loops(row)[:HEAD], np.uint16).view(np.float32),
            rtol=1e-5,
        )


def test_equal_logits_are_coded_without_dividing_by_nothing():
    rows = coded(np.full((2, 10), 3.5, np.float32), POOL)
    np.testing.assert_allclose(decoded(rows, 10), np.log(0.1), rtol=1e-6)


def kld_by_loops(row, logits):
    """Return what log_softmax of tools/perplexity computes with a row of a base file."""
    log_sum = float(logits.max()) + math.log(np.exp(logits.astype(np.float64) - float(logits.max())).sum())
    found = 0.0
    for log_p, logit in zip(row.tolist(), logits.tolist(), strict=True):
        if log_p > -16:
            found += math.exp(log_p) * (log_p - logit + log_sum)
    return found


def test_scores_against_a_base_file_are_llama_cpps(pair):
    base, logits = pair
    rows = coded(base, POOL)
    logs = decoded(rows, N_VOCAB)
    with ThreadPoolExecutor(1) as pool:
        scores = token_scores(logits, targets(), rows, pool)
    expected = [kld_by_loops(row, other) for row, other in zip(logs, logits, strict=True)]
    np.testing.assert_allclose(scores[KLD], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(scores[BASE_NLL], -logs[np.arange(N), targets()], rtol=1e-6)
    assert (scores[SAME_TOP] == (base.argmax(1) == logits.argmax(1))).mean() > 0.9


def test_a_summary_has_llama_cpps_errors():
    random = np.random.default_rng(3)
    nll, noise = random.exponential(2, 5000), random.normal(0.01, 0.1, 5000)
    kld, same = random.exponential(0.03, 5000), random.random(5000) < 0.9
    scores = np.stack([nll + noise, nll, kld, same]).astype(np.float32)
    figures = summary(scores, compared=True)
    loss = figures.divergence
    assert loss is not None
    assert figures.n_tokens == 5000
    error = (nll + noise).std() / math.sqrt(4999)
    assert figures.perplexity.value == pytest.approx(math.exp((nll + noise).mean()), rel=1e-6)
    assert figures.perplexity.error == pytest.approx(figures.perplexity.value * error, rel=1e-5)
    assert loss.base_perplexity.value == pytest.approx(math.exp(nll.mean()), rel=1e-6)
    # llama.cpp: sqrt(var(q) + var(base) - 2 cov)
    covariance = np.cov(nll + noise, nll, ddof=0) / 4999
    spread = math.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    assert loss.log_ratio.value == pytest.approx(noise.mean(), rel=1e-3)
    assert loss.log_ratio.error == pytest.approx(spread, rel=1e-3)
    assert (loss.mean.value, loss.mean.error) == pytest.approx(
        (kld.mean(), kld.std() / math.sqrt(4999)), rel=1e-5
    )
    assert loss.median.value == pytest.approx(np.median(kld), rel=1e-6)
    assert loss.tail.value == pytest.approx(np.quantile(kld, 0.999), rel=1e-6)
    assert loss.same_top.value == same.mean()
    assert loss.same_top.error == pytest.approx(math.sqrt(same.mean() * (1 - same.mean()) / 4999))


def test_the_error_of_a_quantile_is_how_much_it_varies():
    random = np.random.default_rng(5)
    many = random.exponential(1, (400, 2000))
    claimed = summary(np.stack([many[0]] * 4).astype(np.float32), compared=True).divergence
    assert claimed is not None
    assert claimed.median.error == pytest.approx(np.median(many, axis=1).std(), rel=0.3)


def test_nothing_is_compared_without_a_base():
    assert summary(np.ones((4, 20), np.float32), compared=False).divergence is None
