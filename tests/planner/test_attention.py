"""Which kind of attention a plan takes, and why."""

from dataclasses import replace

import msgspec
import pytest

from edgechat.device.speed import AttentionCurve, AttentionShape
from edgechat.models.formats.gguf import read_model
from edgechat.native.params import LoadParams
from edgechat.planner.estimate.calibration import USUAL, Calibration, ChatUse, Correction, RunConditions
from edgechat.planner.estimate.rates import guessed
from edgechat.planner.estimate.speed import predict
from edgechat.planner.placement.drafting import NONE
from edgechat.planner.request import PlanRequest
from tests.kit import Shape, Spec, build
from tests.planner.golden import card
from tests.planner.headers import GIB, LLAMA_8B, attending, dry_run, header, machine
from tests.planner.planning import DraftCandidate, plan

HEADS = AttentionShape(heads=32, kv_heads=8, keys=128, values=128)
SPEED = msgspec.structs.replace(guessed(2e10, 1e11, 4), measured=1.0)
FASTER = attending(SPEED, HEADS)
EQUAL = attending(SPEED, HEADS, 1e-6, 0.99e-6)


def planned(free=64, request=PlanRequest(context=8192), speed=FASTER, **changes):  # noqa: B008
    on = replace(machine(int(free * GIB)), speed=speed, **changes.pop("machine", {}))
    return plan("a", header(LLAMA_8B), on, request, **changes)


def told(made):
    return [reason for reason in made.reasons if "attention" in reason]


def test_the_faster_kind_is_taken():
    made = planned()
    assert not made.flash_attention
    (why,) = told(made)
    assert why.startswith("Plain attention: with 128-channel heads, it writes 1.")
    assert why.endswith(" times as fast as flash attention after 1,000 tokens.")


def test_flash_attention_is_taken_where_both_are_as_fast():
    made = planned(speed=EQUAL)
    assert made.flash_attention
    assert told(made) == [
        "Flash attention: with 128-channel heads, plain attention would hardly be faster, but would take "
        "more memory."
    ]


def test_what_is_read_counts_too():
    """On some processors plain attention reads faster, and writes no slower."""
    speed = attending(SPEED, HEADS, 1e-6, 1e-6, reading=1e-6)
    flash = msgspec.structs.replace(
        speed,
        attentions=attending(speed, HEADS, 1e-6, 1e-6, reading=4e-3).attentions
        | {name: curve for name, curve in speed.attentions.items() if name.endswith("plain")},
    )
    made = planned(speed=flash)
    assert not made.flash_attention
    assert "reads prompts of 1,000 tokens" in told(made)[0]


def test_what_this_users_chats_read_and_write_decides():
    where = RunConditions("a processor", "a build", "CPU", "llama", "Q4_K")
    speed = attending(SPEED, HEADS, 4e-6, 1e-6, reading=2e-5)
    curves = {
        name: AttentionCurve(curve.first, (*curve.per_cell[:2], 4e-2))
        for name, curve in speed.attentions.items()
        if name.endswith("plain")
    }
    speed = msgspec.structs.replace(speed, attentions=speed.attentions | curves)  # which reads slowly
    for read, written, is_flash in ((100, 1000, False), (10000, 10, True)):
        history = Calibration()
        for _ in range(16):
            history = history.with_run(where, turn=ChatUse(read, written, 1000))
        assert planned(speed=speed, history=history).flash_attention == is_flash


def test_what_others_have_in_the_cache_costs_plain_attention_alone():
    where = RunConditions("a processor", "a build", "CPU", "llama", "Q4_K")
    for beside, is_flash in ((0, False), (30_000, True)):
        history = Calibration()
        for _ in range(16):
            history = history.with_run(where, turn=ChatUse(600, 300, 2000, beside))
        assert planned(history=history).flash_attention == is_flash


def test_damaged_turns_do_not_count():
    where = RunConditions("a processor", "a build", "CPU", "llama", "Q4_K")
    history = Calibration()
    for _ in range(16):
        history = history.with_run(where, turn=ChatUse(-1, 5, 1 << 40))
    assert history.use() == USUAL


def test_without_a_measurement_nothing_changes():
    made = planned(speed=SPEED)
    assert made.flash_attention
    assert told(made) == []


def test_the_context_is_never_shortened_for_it():
    for free in (6, 7, 8, 9, 10, 12, 16, 24):
        flash = planned(free, PlanRequest(attention="flash"))
        made = planned(free, PlanRequest())
        assert (made.context, made.cache_type) == (flash.context, flash.cache_type)
        if not made.flash_attention:
            assert made.compute_bytes > flash.compute_bytes
            assert made.total_bytes < made.memory[0].budget_bytes


def test_scarce_memory_is_a_reason_for_flash_attention():
    flash = planned(64, PlanRequest(context=8192, attention="flash"))
    made = planned(flash.total_bytes / GIB / 0.85)
    assert (made.context, made.cache_type, made.flash_attention) == (8192, "f16", True)
    assert told(made)[0].startswith(
        "Flash attention, because memory is scarce: with 128-channel heads, plain attention"
    )


def test_a_cache_in_8_bits_has_flash_attention():
    made = planned(64, PlanRequest(context=8192, cache_type="q8_0"))
    assert made.flash_attention
    assert told(made) == []


@pytest.mark.parametrize("wish", ["flash", "plain"])
def test_a_wish_is_granted(wish):
    for speed in (FASTER, EQUAL, SPEED):
        made = planned(64, PlanRequest(attention=wish), speed)
        assert made.flash_attention == (wish == "flash")
        assert told(made) == [f"{wish.capitalize()} attention, as requested."]
    tight = planned(7.2, PlanRequest(attention="plain"))
    assert (tight.cache_type, tight.flash_attention) == ("f16", False)


def test_layers_on_a_card_keep_flash_attention():
    cards = {"accelerators": (card("nvidia", 24 * GIB),)}
    made = planned(64, machine=cards)
    assert made.gpu_layers
    assert made.flash_attention
    assert not planned(64, PlanRequest(attention="plain", context=8192), machine=cards).flash_attention


def test_a_draft_model_has_a_choice_of_its_own():
    small = header(
        LLAMA_8B, block_count=2, embedding_length=512, feed_forward_length=1024, **{"attention.head_count": 8}
    )
    draft = DraftCandidate("b", small, requested=True)
    heads = AttentionShape(heads=8, kv_heads=8, keys=64, values=64)
    request = PlanRequest(context=8192)
    usual = planned(request=request, draft=draft).draft
    assert usual is not None
    assert (usual.cache_type, usual.flash_attention) == ("q8_0", True)
    quick = planned(request=request, speed=attending(FASTER, heads, 1e-3, 1e-5), draft=draft).draft
    assert quick is not None
    assert (quick.cache_type, quick.flash_attention) == ("f16", False)


def test_predictions_follow_the_measured_curve():
    made = planned(64, PlanRequest(context=32768, draft=NONE))
    assert made.forecast is not None
    assert made.forecast.decode_depth == pytest.approx(max(32 * 1e-6, 131072 / 2e10))
    flash = planned(64, PlanRequest(context=32768, attention="flash")).forecast
    assert flash is not None
    assert flash.decode_depth == pytest.approx(32 * 4e-6)
    assert flash.calls_depth[3] == pytest.approx(4 * 32 * 4e-6)
    predicted = predict(flash, Correction(), 32768)
    assert [one.depth for one in predicted.by_depth] == [0, 1000, 4000, 16000]
    assert predicted.by_depth[1].decode_tps == predicted.decode_tps
    assert predicted.by_depth[3].decode_tps == pytest.approx(1 / flash.decoding(16000))
    assert predict(flash, Correction(), 2048).by_depth == predicted.by_depth[:2]


@pytest.mark.slow
@pytest.mark.parametrize("heads", [1, 4])
def test_plain_attention_is_planned_to_the_byte(heads):
    path = build(Spec(shape=Shape(n_layers=2, n_embd=64 * heads, n_ff=256, n_heads=heads, n_kv_heads=1)))
    model = read_model(path)
    (found,) = dry_run(model, [LoadParams(context=4096, flash_attention=False)])
    (flash,) = dry_run(model, [LoadParams(context=4096)])
    assert found.cache == flash.cache
    assert found.compute > flash.compute
