"""A thousand random lives of chats (see tests/engine/world.py), every other one with drafts.

EDGECHAT_SOAK_LIVES sets another number.
"""

import os
from functools import partial
from pathlib import Path

import pytest

from tests.engine.conftest import MakePlan, kind, runtime, scripted  # noqa: F401  (fixtures)
from tests.engine.headed import HEADS, headed
from tests.engine.runtimes import KINDS, plan
from tests.engine.test_interleavings import (  # noqa: F401  (fixtures)
    SCRIPTED,
    Judge,
    all_is_worth_it,
    judge,
    real_world,
    scripted_world,
    stripping,
    template,
)

LIVES = int(os.environ.get("EDGECHAT_SOAK_LIVES", "1000"))
pytestmark = [pytest.mark.soak, pytest.mark.slow]


@pytest.mark.parametrize("kind", SCRIPTED)
def test_scripted_lives(scripted, template, kind):  # noqa: F811
    for seed in range(1000, 1000 + LIVES // 2 // len(SCRIPTED)):
        world = scripted_world(scripted, template, kind, seed, drafts=seed % 2 == 1)
        try:
            world.run(120)
        finally:
            world.close()


def test_real_lives(
    template,  # noqa: F811
    runtime,  # noqa: F811
    kind,  # noqa: F811
    judge,  # noqa: F811
):
    for seed in range(1000, 1000 + LIVES // 4 // len(KINDS)):
        drafts = seed % 2 == 1
        draft = runtime.model("dense" if kind == "hybrid" or seed % 4 == 1 else kind) if drafts else None
        planned = partial(plan, runtime.model(kind))
        world = real_world(template, planned, seed, judge, drafts=drafts, draft=draft)
        try:
            world.run(80)
        finally:
            world.close()


@pytest.mark.parametrize("head_kind", HEADS)
def test_real_lives_with_a_head(template, head_kind):  # noqa: F811
    planned = partial(headed, head_kind)
    with stripping() as own_template:
        judge = Judge(Path(planned().model_path), own_template)
        for seed in range(1000, 1000 + LIVES // 8 // len(HEADS)):
            world = real_world(template, planned, seed, judge, drafts=True)
            try:
                world.run(80)
            finally:
                world.close()
        judge.backend.close()
