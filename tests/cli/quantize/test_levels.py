"""Names of levels."""

from __future__ import annotations

import pytest

from edgechat.base.errors import NotQuantized
from edgechat.cli.quantize.levels import LEVELS, level_named


@pytest.mark.parametrize(
    ("typed", "level"),
    [
        ("Q4_K_M", "Q4_K_M"),
        ("q4_k_m", "Q4_K_M"),
        ("q4-k-m", "Q4_K_M"),
        (" Q4_K ", "Q4_K_M"),
        ("Q3_K", "Q3_K_M"),
        ("fp16", "F16"),
        ("bf16", "BF16"),
        ("mxfp4_moe", "MXFP4"),
        ("iq4_xs", "IQ4_XS"),
    ],
)
def test_a_level_is_known_in_any_spelling(typed: str, level: str) -> None:
    assert level_named(typed) == level


@pytest.mark.parametrize(("typed", "near"), [("Q4_KM", "Q4_K_M"), ("iq4xs", "IQ4_XS"), ("Q9_0", "Q5_0")])
def test_a_typo_is_answered_with_what_is_near(typed: str, near: str) -> None:
    with pytest.raises(NotQuantized) as refused:
        level_named(typed)
    assert near in (refused.value.hint or "")


def test_what_is_like_nothing_is_answered_with_the_list() -> None:
    with pytest.raises(NotQuantized) as refused:
        level_named("small\x1b[31m")
    assert "Q4_K_M, " in (refused.value.hint or "")
    assert "\x1b" not in refused.value.message


def test_nvfp4_which_llama_cpp_cannot_write_is_no_level() -> None:
    assert "NVFP4" not in LEVELS
    assert len(LEVELS) == 35
