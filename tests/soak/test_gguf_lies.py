"""Headers that contradict themselves, before the reader, the planner and llama.cpp's own loader.

EDGECHAT_SOAK_LIES sets how many are read, EDGECHAT_SOAK_LOADS how many of those that pass are planned.
"""

import os
import time
from collections import Counter
from itertools import count, islice

import pytest

from edgechat.base.errors import DoesNotFit, DryRunFailed, ModelFileError, SettingsError
from edgechat.device.profile import probe
from edgechat.models.formats.gguf import NeedMoreBytes, parse_header
from edgechat.native.params import LoadParams
from edgechat.planner.estimate.dry_run import TIME_LIMIT, DryRun
from edgechat.planner.placement.plan_model import plan
from tests.models.fuzz import hold, lying

pytestmark = [pytest.mark.slow, pytest.mark.soak]

LIES = int(os.environ.get("EDGECHAT_SOAK_LIES", "31000"))
LOADS = int(os.environ.get("EDGECHAT_SOAK_LOADS", "200"))
MOST_SECONDS = 1.0


def test_lies_are_read_or_refused_soon():
    slowest, outcomes = 0.0, Counter[str]()
    for seed in range(LIES):
        data, size = lying(seed)
        start = time.perf_counter()
        outcomes[hold(data, size)] += 1
        slowest = max(slowest, time.perf_counter() - start)
    assert sum(outcomes.values()) == LIES
    assert slowest < MOST_SECONDS


def believed():
    """Yield headers that the reader finds nothing wrong with."""
    for seed in count():
        data, size = lying(seed)
        try:
            yield parse_header(data, size, f"lie {seed}")
        except (ModelFileError, NeedMoreBytes):
            continue


def told(error):
    assert error.message.isprintable(), error.message


def test_what_is_believed_harms_neither_the_planner_nor_the_process_that_tries_it():
    machine, outcomes = probe(), Counter[str]()
    for header in islice(believed(), LOADS):
        start = time.monotonic()
        try:
            plan(header.path, header, machine)
            outcomes["planned"] += 1
        except (ModelFileError, DoesNotFit, SettingsError) as error:
            told(error)
        with DryRun() as run:
            run.show(header)
            try:
                run.ask(LoadParams(context=512))
                outcomes["loaded"] += 1
            except DryRunFailed as error:
                told(error)
        assert time.monotonic() - start < 2 * TIME_LIMIT
    assert min(outcomes["planned"], outcomes["loaded"]) > LOADS / 10
