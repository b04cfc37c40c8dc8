"""Known answers through the whole plan: caches of published models, to the byte, by llama.cpp itself."""

import pytest

from edgechat.models.catalogue import catalogue
from edgechat.models.shipped import shipped_header
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.request import PlanRequest
from tests.kit.published import published
from tests.planner.headers import GIB, cache_bytes, cache_of, machine, weights_of
from tests.planner.planning import plan

pytestmark = pytest.mark.slow

MIB = 2**20
ENTRIES = {entry.name: entry for entry in catalogue()}


@pytest.fixture(scope="module")
def run():
    with DryRun() as run:
        yield run


def windowed(full, n_windowed, window, row, n_ctx):
    """Return MiB of a unified cache of four sequences; row: bytes of keys and values in one layer."""
    cells = min(n_ctx, -(-(4 * window + 512) // 256) * 256)
    return (full * n_ctx + n_windowed * cells) * row / MIB


@pytest.mark.parametrize(
    ("name", "context", "cache_type", "cache"),
    [
        ("llama-3.1-8b", 8192, "f16", 1024),
        ("llama-3.1-8b", 32768, "f16", 4096),
        ("llama-3.1-8b", 131072, "f16", 16384),
        ("llama-3.1-8b", 32768, "q8_0", 2176),
        ("llama-3.1-8b", 1000, "q4_0", 36),
        ("gemma-3-12b", 32768, "f16", windowed(8, 40, 1024, 2 * 8 * 256 * 2, 32768)),
        ("qwen3-30b-a3b", 32768, "f16", 3072),
        ("deepseek-v2-lite", 32768, "f16", 972),
    ],
)
def test_published_shapes(run, name, context, cache_type, cache):
    header = published(name)
    run.show(header)
    request = PlanRequest(context=context, cache_type=cache_type)
    made = plan(name, header, machine(64 * GIB), request, run.ask)
    assert made.buffers
    assert made.context == -(-context // 256) * 256
    assert cache_of(made) == cache * MIB == cache_bytes(header, context, cache_type, n_seq_max=4)
    assert weights_of(made) == header.weights_bytes


# MiB at 8192 and 32768 tokens in f16, from the shapes: what is fixed, and bytes for each token.
PER_TOKEN = {
    "llama-3.1-8b": 131072,
    "llama-3.3-70b": 327680,
    "mistral-7b-v0.3": 131072,
    "phi-4-mini": 131072,
    "smollm3-3b": 73728,
    "qwen3-8b": 147456,
    "qwen3-14b": 163840,
    "qwen3-30b-a3b": 98304,
    "qwen2.5-coder-7b": 57344,
}
STATEFUL = {"qwen3.5-2b": (12288, 19), "qwen3.5-9b": (32768, 50), "qwen3.6-35b-a3b": (20480, 63)}
"""Bytes for each token, and MiB of each of the two sequences' states."""


def made_of(run, name, context):
    header = shipped_header(ENTRIES[name], "Q4_K_M")
    assert header is not None
    run.show(header)
    return plan(name, header, machine(128 * GIB), PlanRequest(context=context), run.ask)


@pytest.mark.parametrize("name", PER_TOKEN)
def test_shipped_headers(run, name):
    for context in (8192, 32768):
        made = made_of(run, name, context)
        assert made.buffers
        assert cache_of(made) == context * PER_TOKEN[name]


@pytest.mark.parametrize("name", STATEFUL)
def test_states_of_two_sequences(run, name):
    per_token, state = STATEFUL[name]
    few, many = made_of(run, name, 8192), made_of(run, name, 32768)
    assert cache_of(many) - cache_of(few) == (32768 - 8192) * per_token
    assert (cache_of(few) - 8192 * per_token) / 2 / MIB == pytest.approx(state, abs=0.5)


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if entry.repo])
def test_what_is_estimated_is_near(run, name):
    """Of the catalogue's models llama.cpp is asked about a few: for the others these figures decide."""
    entry = ENTRIES[name]
    assert entry.quant is not None
    header = shipped_header(entry, entry.quant)
    assert header is not None
    run.show(header)
    for context in (2048, min(16384, header.context_length)):
        request = PlanRequest(context=context)
        estimated = plan(name, header, machine(128 * GIB), request)
        exact = plan(name, header, machine(128 * GIB), request, run.ask)
        assert exact.buffers
        assert not estimated.buffers
        assert cache_of(estimated) == cache_of(exact)
        assert estimated.total_bytes / exact.total_bytes == pytest.approx(1, abs=0.03)
