"""A thousand random lives of chats (see tests/engine/world.py), every other one with drafts.

EDGECHAT_SOAK_LIVES sets another number.
"""

from __future__ import annotations

import os

import pytest

from edgechat.engine.prompt.template import ChatTemplate
from tests.engine.conftest import MakePlan, kind, runtime, scripted  # noqa: F401  (fixtures)
from tests.engine.runtimes import KINDS, Runtime
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
from tests.kit.heads import MTP, with_head

LIVES = int(os.environ.get("EDGECHAT_SOAK_LIVES", "1000"))
pytestmark = [pytest.mark.soak, pytest.mark.slow]


@pytest.mark.parametrize("kind", SCRIPTED)
def test_scripted_lives(scripted: MakePlan, template: ChatTemplate, kind: str) -> None:  # noqa: F811
    for seed in range(1000, 1000 + LIVES // 2 // len(SCRIPTED)):
        world = scripted_world(scripted, template, kind, seed, drafts=seed % 2 == 1)
        try:
            world.run(120)
        finally:
            world.close()


def test_real_lives(
    template: ChatTemplate,  # noqa: F811
    runtime: Runtime,  # noqa: F811
    kind: str,  # noqa: F811
    judge: Judge,  # noqa: F811
) -> None:
    for seed in range(1000, 1000 + LIVES // 4 // len(KINDS)):
        drafts = seed % 2 == 1
        draft = runtime.model("dense" if kind == "hybrid" or seed % 4 == 1 else kind) if drafts else None
        world = real_world(template, runtime.model(kind), seed, judge, drafts=drafts, draft=draft)
        try:
            world.run(80)
        finally:
            world.close()


@pytest.mark.parametrize("head_kind", MTP)
def test_real_lives_with_a_head(template: ChatTemplate, head_kind: str) -> None:  # noqa: F811
    path = with_head(head_kind)
    with stripping() as own_template:
        judge = Judge(path, own_template)
        for seed in range(1000, 1000 + LIVES // 8 // len(MTP)):
            world = real_world(template, path, seed, judge, drafts=True, mtp=True)
            try:
                world.run(80)
            finally:
                world.close()
        judge.backend.close()
