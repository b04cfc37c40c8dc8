"""What LoRA adapters take in a plan, and where."""

import pytest

from edgechat.base.errors import NotAnAdapter
from edgechat.models.formats.gguf import read_model
from edgechat.planner.companions import AdapterPlan, adapter_needs, plan_adapters
from edgechat.planner.request import PlanRequest, with_settings
from edgechat.settings import Settings
from tests.kit import Spec, build
from tests.kit.adapters import adapter

SPEC = Spec()


def test_each_part_lies_beside_what_it_changes():
    one = AdapterPlan(
        name="a",
        path="a",
        scale=1.0,
        rank=4,
        total_bytes=31,
        parts=(
            ("token_embd.weight", None, 1),
            ("output.weight", None, 2),
            ("blk.0.attn_q.weight", 0, 4),
            ("blk.1.ffn_up_exps.weight", 1, 8),
            ("blk.2.ffn_up_exps.weight", 2, 16),
        ),
    )
    needs = adapter_needs([one, one], ["RAM", "GPU0", "GPU0", "GPU1"], experts_in_ram=2)
    assert {name: need.adapter_bytes for name, need in needs.items()} == {"RAM": 26, "GPU0": 32, "GPU1": 4}
    assert sum(need.total_bytes for need in needs.values()) == 62
    assert adapter_needs([], ["RAM"], 0) == {}


def test_usual_ones_are_for_the_models_that_they_fit(tmp_path):
    header = read_model(build(SPEC))
    fits = str(adapter(tmp_path, SPEC, "fits"))
    other = str(adapter(tmp_path, Spec(shape=SPEC.shape.sized(arch="qwen3")), "other"))
    found, notes = plan_adapters([], [f"{fits}:0.5", other, "nix"], header)
    assert [(one.name, one.scale, one.use.path) for one in found] == [("fits", 0.5, fits)]
    assert ["architecture 'qwen3'" in notes[0], "no adapter 'nix'" in notes[1]] == [True, True]
    with pytest.raises(NotAnAdapter, match="qwen3"):
        plan_adapters([other], [], header)


def test_a_request_takes_precedence_over_settings():
    settings = Settings(adapters=("a",))
    assert with_settings(PlanRequest(), settings).usual_adapters == ("a",)
    assert with_settings(PlanRequest(adapters=()), settings).usual_adapters == ()
    assert with_settings(PlanRequest(usual_adapters=("b",)), settings).usual_adapters == ("b",)
