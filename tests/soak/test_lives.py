"""A thousand random lives of chats (see tests/engine/world.py), every other one with drafts.

EDGECHAT_SOAK_LIVES sets another number.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from edgechat.engine.template import ChatTemplate
from tests.engine.conftest import MakePlan, scripted  # noqa: F401  (a fixture)
from tests.engine.test_interleavings import (  # noqa: F401  (fixtures)
    KINDS,
    SCRIPTED,
    Cold,
    all_is_worth_it,
    cold,
    real_world,
    scripted_world,
    template,
)

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


@pytest.mark.parametrize("kind", KINDS)
def test_real_lives(
    template: ChatTemplate,  # noqa: F811
    cold: Callable[[str], Cold],  # noqa: F811
    kind: str,
) -> None:
    for seed in range(1000, 1000 + LIVES // 2 // len(KINDS)):
        world = real_world(template, kind, seed, cold(kind), drafts=seed % 2 == 1)
        try:
            world.run(80)
        finally:
            world.close()
