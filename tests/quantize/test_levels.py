"""Names of levels."""

import pytest

from edgechat.base.errors import NotQuantized
from edgechat.models.formats.header import ModelTensor
from edgechat.models.formats.quants import GgmlType
from edgechat.quantize.mixtures import LEVELS, level_named, types_for


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
def test_a_level_is_known_in_any_spelling(typed, level):
    assert level_named(typed) == level


@pytest.mark.parametrize(("typed", "near"), [("Q4_KM", "Q4_K_M"), ("iq4xs", "IQ4_XS"), ("Q9_0", "Q5_0")])
def test_a_typo_is_answered_with_what_is_near(typed, near):
    with pytest.raises(NotQuantized) as refused:
        level_named(typed)
    assert near in (refused.value.hint or "")


def test_what_is_like_nothing_is_answered_with_the_list():
    with pytest.raises(NotQuantized) as refused:
        level_named("small\x1b[31m")
    assert "Q4_K_M, " in (refused.value.hint or "")
    assert "\x1b" not in refused.value.message


def test_nvfp4_which_llama_cpp_cannot_write_is_no_level():
    assert "NVFP4" not in LEVELS
    assert len(LEVELS) == 35


def tensor(name, columns, kind=GgmlType.F16):
    return ModelTensor(name, (columns, 64), kind, 0, kind.row_bytes(columns * 64))


@pytest.mark.parametrize(
    ("given", "least", "last"),
    [
        (tensor("blk.0.attn_q.weight", 512), "Q2_K", "F16"),
        (tensor("blk.0.attn_q.weight", 640), "Q4_0", "F16"),
        (tensor("blk.0.attn_q.weight", 512, GgmlType.BF16), "Q2_K", "BF16"),
        (tensor("blk.0.attn_q.weight", 512, GgmlType.F32), "Q2_K", "F16"),
        (tensor("blk.0.ssm_out.weight", 512), "Q8_0", "F16"),
        (tensor("blk.0.odd.weight", 40), "F16", "F16"),
    ],
)
def test_what_a_tensor_may_get_depends_on_its_rows_and_its_place(given, least, last):
    kinds = types_for(given)
    assert min(kinds, key=lambda kind: kind.row_bytes(given.n_elements)).name == least
    assert kinds[-1].name == last
    assert all(given.shape[0] % kind.block[0] == 0 for kind in kinds)
