"""The reader under 100,000 mutated headers (EDGECHAT_SOAK_HEADERS sets another number)."""

import os
import sys
import time
from collections import Counter

import pytest

from tests.models.fuzz import hold, mutated

HEADERS = int(os.environ.get("EDGECHAT_SOAK_HEADERS", "100000"))
MOST_SECONDS = 1.0
MOST_BYTES = 256 << 20


def peak_memory():
    """Return the most memory this process ever had, in bytes."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.skipif(sys.platform == "win32", reason="the peak of memory is not known there")
def test_mutated_headers_stay_within_time_and_memory():
    hold(*mutated(0))
    before, slowest, outcomes = peak_memory(), 0.0, Counter[str]()
    for seed in range(HEADERS):
        data, size = mutated(seed)
        start = time.perf_counter()
        outcomes[hold(data, size)] += 1
        slowest = max(slowest, time.perf_counter() - start)
    assert sum(outcomes.values()) == HEADERS
    assert slowest < MOST_SECONDS
    assert peak_memory() - before < MOST_BYTES
