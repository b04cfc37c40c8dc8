"""Which file is chosen: what holds on every machine, and whether what is said of the others is true."""

import json
import math
import re
from dataclasses import replace

import msgspec
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from edgechat.base.errors import DoesNotFit, ModelFileError
from edgechat.models.quality import QualityClass, kl_divergence, quality_class
from edgechat.planner.estimate.speed import Prediction
from edgechat.planner.machine import Machine
from edgechat.planner.placement.plan_model import plan_variant
from edgechat.planner.plan import as_json
from edgechat.planner.ranking.ranking import (
    Verdict,
    best_of,
    choose,
    likeliest,
    loss_of,
    rate,
    score,
    thinks,
    verdict_of,
    why_not,
    worth_of,
)
from edgechat.planner.request import DEFAULT_REQUEST, READABLE, PlanRequest
from tests.planner import golden
from tests.planner.golden import profile
from tests.properties import examples

MODELS = {files[0].model: files for files in golden.models()}
LLAMA = MODELS["llama-3.1-8b"]

_rams = st.sampled_from([2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 32, 48, 64, 96])
_bandwidths = st.sampled_from([5e9, 1e10, 2e10, 3e10, 5e10, 1e11, 2e11, 4e11, 8e11])
_kinds = st.sampled_from(["CPU", "GPU 4", "GPU 8", "GPU 12", "GPU 24", "unified 100", "unified 400"])
_names = st.sampled_from(["llama-3.1-8b", "qwen3.5-4b", "qwen3-coder-30b-a3b", "gemma-3-1b", "gemma-4-e2b"])


def all_of(name, machine, request=DEFAULT_REQUEST):
    return [rate(one, Machine(machine), request) for one in MODELS[name]]


def chosen(name, machine, request=DEFAULT_REQUEST):
    return choose(all_of(name, machine, request), request)


@pytest.mark.slow
@settings(max_examples=examples(8))
@given(_names, _rams, _kinds)
@example("llama-3.1-8b", 8, "GPU 8")
@example("llama-3.1-8b", 5, "CPU")  # nothing but what is poor fits
@example("qwen3-coder-30b-a3b", 2, "CPU")
def test_the_choice_fits_and_nothing_that_fits_is_better(name, ram, kind):
    options = all_of(name, profile(ram, kind))
    found = choose(options)
    assert options
    if found is None:
        assert all(one.plan is None and one.why_not for one in options)
        return
    assert found.plan is not None
    assert all(one.total_bytes <= one.budget_bytes for one in found.plan.memory)
    assert all(found.rank >= one.rank for one in options)
    if found.verdict is Verdict.POOR:
        assert not [one for one in options if one.verdict > Verdict.POOR]


@pytest.mark.slow
@settings(max_examples=examples(8))
@given(_names, _rams, _rams, _bandwidths)
def test_more_memory_never_gives_less(name, ram, more, bandwidth):
    """But for what a cache in 16 bits costs in speed, which is less than a tenth of a class."""
    small, large = (profile(one, bandwidth=bandwidth) for one in sorted((ram, more)))
    first, second = chosen(name, small), chosen(name, large)
    assume(first is not None)
    assert second is not None
    assert second.verdict >= first.verdict or abs(first.predicted.decode_tps - READABLE) < 1
    assert second.worth >= first.worth - 0.02


@pytest.mark.slow
@settings(max_examples=examples(8))
@given(_names, _rams, _bandwidths, _bandwidths)
def test_more_bandwidth_never_gives_less(name, ram, bandwidth, more):
    slow, fast = (profile(ram, bandwidth=one) for one in sorted((bandwidth, more)))
    first, second = chosen(name, slow), chosen(name, fast)
    assert (first is None) == (second is None)
    assume(first is not None)
    assert second.rank >= first.rank


@pytest.mark.slow
@settings(max_examples=examples(5))
@given(_rams, _kinds, st.sampled_from([None, 4096, 32768]))
def test_the_likeliest_is_the_best(ram, kind, context):
    """What formulas put first is what planning every file chooses, or as good to a hundredth of a class."""
    machine, request = profile(ram, kind), PlanRequest(context=context)
    for name in ("llama-3.1-8b", "qwen3-coder-30b-a3b", "gemma-4-e2b"):
        quick = best_of(MODELS[name], Machine(machine), request)
        thorough = max(all_of(name, machine, request), key=lambda one: one.rank)
        assert quick is not None
        assert quick.verdict == thorough.verdict
        if thorough.plan is not None:
            assert quick.worth >= thorough.worth - 0.01


@pytest.mark.slow
@settings(max_examples=examples(10))
@given(st.sampled_from([16, 32, 64]), st.floats(0.5, 200))
def test_a_speed_that_is_asked_for_is_kept_or_said_to_be_impossible(ram, least):
    request = PlanRequest(min_tps=least)
    found = chosen("llama-3.1-8b", profile(ram), request)
    assert found is not None
    assert found.plan is not None
    fast = found.predicted.decode_tps >= least
    assert found.verdict is (Verdict.FITS if fast else Verdict.SLOW) or found.verdict is Verdict.POOR
    if found.verdict is Verdict.SLOW:
        assert "tokens/s; this is the best choice" in found.plan.reasons[0]


@pytest.mark.parametrize("floor", list(QualityClass))
def test_a_quality_that_is_asked_for_is_kept(floor):
    found = chosen("llama-3.1-8b", profile(64), PlanRequest(quality=floor))
    assert found is not None
    assert found.quant is not None
    known = quality_class(found.quant)
    assert known is not None
    assert known >= floor
    assert found.verdict > Verdict.POOR


def test_a_quality_that_does_not_fit_is_said_to_be_impossible():
    found = chosen("llama-3.1-8b", profile(8), PlanRequest(quality=QualityClass.REFERENCE))
    assert found is not None
    assert found.plan is not None
    assert found.verdict is Verdict.POOR
    assert "nothing that fits has reference quality, as requested" in found.plan.reasons[0]


@pytest.mark.parametrize("context", [1000, 8192, 40000])
def test_a_context_that_is_asked_for_is_kept(context):
    found = chosen("llama-3.1-8b", profile(16), PlanRequest(context=context))
    assert found is not None
    assert found.plan is not None
    assert 0 <= found.plan.context - context < 256
    assert found.verdict is Verdict.FITS


def test_a_context_beyond_training_is_the_last_choice():
    request = PlanRequest(context=32768)
    machine = profile(16, bandwidth=4e11)
    options = [
        rate(MODELS[name][0], Machine(machine), request) for name in ("tinyllama-1.1b", "llama-3.2-1b")
    ]
    assert [one.verdict for one in options] == [Verdict.SHORT, Verdict.POOR]
    found = choose(options, request)
    assert found is not None
    assert found.plan is not None
    assert found.plan.context == 32768
    assert found.plan.alternatives[0].why_not == "It was trained on at most 2048 tokens."
    alone = choose(options[:1], request)
    assert alone is not None
    assert alone.plan is not None
    assert "32768" in alone.plan.notes[0]


@pytest.mark.parametrize(("ram", "poor"), [(6, True), (8, False)])
def test_a_poor_quantization_is_the_last_resort(ram, poor):
    found = chosen("llama-3.1-8b", profile(ram))
    assert found is not None
    assert found.plan is not None
    assert (found.verdict is Verdict.POOR) == poor
    assert ("nothing better fits" in found.plan.reasons[0]) == poor


# What is said of the others: every number in it is looked up again.


def near(value):
    return lambda other: math.isclose(value, other, rel_tol=0.06)


def check(option, first, said, request=DEFAULT_REQUEST):
    """Assert that each clause is true, and that the sentence is one."""
    assert re.fullmatch(r"[A-Z].*\.", said.removeprefix(option.variant.model).strip().capitalize())
    assert "  " not in said
    assert "e+" not in said
    assert "nan" not in said
    made, other = option.plan, first.plan
    if made is None or other is None:
        assert "needs about" in said
        return
    mine, its, checked = option.predicted, first.predicted, 0
    for clause, (new, old) in (
        (r"it is (faster|slower) \((.*?) tokens/s, not (.*?)\)", (mine.decode_tps, its.decode_tps)),
        (
            r"its context is (longer|shorter) \((.*?) tokens, not (.*?)\)",
            (made.context, other.context),
        ),
        (
            r"its quantization loses (less|more) \((.*?) nats, not (.*?)\)",
            (loss_of(option.quant), loss_of(first.quant)),
        ),
    ):
        match = re.search(clause, said, re.IGNORECASE)
        if match:
            assert (match[1] in ("faster", "longer", "more")) == (new > old), said
            assert near(new)(float(match[2])), said
            assert near(old)(float(match[3])), said
            checked += 1
    match = re.search(r"it answers (sooner|later)", said, re.IGNORECASE)
    if match:
        assert (match[1] == "sooner") == (mine.ttft_ms < its.ttft_ms)
        checked += 1
    match = re.search(r"published quality is (\d) of 6, not (\d)", said)
    if match:
        entries = option.variant.entry, first.variant.entry
        assert [int(match[1]), int(match[2])] == [entry.quality for entry in entries if entry]
        checked += 1
    match = re.search(r"published scores are a little (higher|lower)", said)
    if match:
        assert (match[1] == "higher") == (score(option.variant) > score(first.variant))
        checked += 1
    if "slower than reading speed" in said:
        assert mine.decode_tps < READABLE
        checked += 1
    if "thinks before answering" in said:
        assert thinks(option.variant)
        assert mine.decode_tps < 2 * READABLE
        checked += 1
    if "loses much" in said:
        known = quality_class(option.quant)
        assert known is not None
        assert known < QualityClass.GOOD
        checked += 1
    if "hardly smaller" in said:
        assert kl_divergence(option.quant).value > kl_divergence("Q4_K_M").value
        checked += 1
    if option.verdict < first.verdict:
        assert checked == 1, said
    elif said != "About as good.":
        assert checked == 1 + len(re.findall(", (?:and|but) it", said)), said


@settings(max_examples=examples(8))
@given(_names, _rams, _kinds)
def test_what_is_said_of_other_quantizations_is_true(name, ram, kind):
    options = all_of(name, profile(ram, kind))
    first = choose(options)
    assume(first is not None)
    for one in options:
        if one.variant is not first.variant:
            check(one, first, why_not(one, first, DEFAULT_REQUEST))


@pytest.mark.slow
@settings(max_examples=examples(2))
@given(_rams, _kinds)
def test_what_is_said_of_other_models_is_true(ram, kind):
    options = golden.options(profile(ram, kind))
    first = choose(options)
    assert first is not None  # the smallest model fits anywhere
    assert first.plan is not None
    assert len(first.plan.alternatives) == 4
    for one in options:
        if one.variant is not first.variant:
            said = why_not(one, first, DEFAULT_REQUEST)
            check(one, first, said)
            # Where a reason is given it is one against: nothing is better in everything that is told.
            if one.verdict == first.verdict:
                assert not re.fullmatch(r"[^,]*(faster|longer|less|higher)[^,]*\.", said), said


def test_equals_are_said_to_be_equal():
    one = rate(LLAMA[0], Machine(profile(64)), DEFAULT_REQUEST)
    two = replace(one, variant=replace(one.variant, model="another", entry=None))
    same = replace(one, variant=replace(one.variant, entry=None))
    assert why_not(two, same, DEFAULT_REQUEST) == "About as good."
    first = choose([one, replace(one, variant=LLAMA[0])])
    assert first is not None
    assert first.variant is one.variant


@pytest.mark.parametrize(
    ("rams", "step"), [((4, 96), 30), pytest.param((2, 4, 16, 96), 1, marks=pytest.mark.soak)]
)
def test_nothing_in_json_is_no_number(rams, step):
    planned = 0
    for ram in rams:
        for kind in ("CPU", "GPU 8", "unified 100"):
            for bandwidth in (1e6, 5e10, 1e15):
                for one in golden.models()[::step]:
                    found = rate(one[0], Machine(profile(ram, kind, bandwidth=bandwidth)), DEFAULT_REQUEST)
                    if found.plan is not None:
                        json.dumps(as_json(found.plan), allow_nan=False)
                        planned += 1
    assert planned > 10


# The judgement by itself.


def predicted(tps=50.0, ttft=1000.0):
    return Prediction(decode_tps=tps, prompt_tps=1000.0, ttft_ms=ttft, basis="x")


@given(st.floats(0.01, 1e4), st.floats(1, 50), st.floats(1, 1e6), st.floats(1, 50))
def test_faster_sooner_and_longer_is_worth_no_less(tps, times, ttft, later):
    one = LLAMA[0]
    here = worth_of(one, "Q4_K_M", 4096, "f16", predicted(tps, ttft))
    assert worth_of(one, "Q4_K_M", 4096, "f16", predicted(tps * times, ttft)) >= here
    assert worth_of(one, "Q4_K_M", 4096, "f16", predicted(tps, ttft * later)) <= here
    assert worth_of(one, "Q4_K_M", 8192, "f16", predicted(tps, ttft)) >= here
    assert worth_of(one, "Q5_K_M", 4096, "f16", predicted(tps, ttft)) >= here
    assert worth_of(one, "Q4_K_M", 4096, "q8_0", predicted(tps, ttft)) <= here


def test_a_model_that_thinks_is_waited_for_longer():
    plain, thinker = LLAMA[0], MODELS["qwen3.5-9b"][0]
    header = plain.header()
    for tps, ok in ((9.0, False), (11.0, True)):
        assert verdict_of(plain, header, "Q4_K_M", 8192, predicted(tps), DEFAULT_REQUEST) is Verdict.FITS
        found = verdict_of(thinker, thinker.header(), "Q4_K_M", 8192, predicted(tps), DEFAULT_REQUEST)
        assert (found is Verdict.FITS) == ok
        asked = verdict_of(thinker, header, "Q4_K_M", 8192, predicted(tps), PlanRequest(min_tps=8))
        assert asked is Verdict.FITS


def test_a_class_of_quality_weighs_more_than_the_place_in_it():
    scores = sorted((score(files[0]), files[0].entry) for files in golden.models() if files[0].entry)
    qualities = [entry.quality or 0 for _, entry in scores]
    assert qualities == sorted(qualities)
    assert len({value for value, _ in scores}) == len(scores)


def test_a_short_context_costs_more_than_a_class():
    better, worse = MODELS["qwen3.8-27b"][0], MODELS["gemma-4-26b-a4b"][0]
    short = worth_of(better, "Q4_K_M", 2048, "q8_0", predicted())
    assert short < worth_of(worse, "Q4_K_M", 8192, "f16", predicted())


@pytest.mark.parametrize("quant", ["UD-Q4_K_XL", "Q4_K_M"])
def test_an_uploaders_own_mixture_counts_as_its_like(quant):
    figure = kl_divergence("Q4_K_M")
    assert figure is not None
    assert loss_of(quant) == figure.value
    assert loss_of("ODD") > figure.value


def _unreadable():
    raise ModelFileError("It is damaged.")


def test_a_damaged_header_is_passed_over():
    broken = [replace(one, header=_unreadable) for one in LLAMA]
    machine = Machine(profile(16))
    assert best_of(broken, machine, DEFAULT_REQUEST) is None
    assert likeliest(broken, machine, DEFAULT_REQUEST) == []
    found = best_of([*broken[:-3], *LLAMA[-3:]], machine, DEFAULT_REQUEST)
    assert found is not None
    assert found.variant in LLAMA
    with pytest.raises(ModelFileError):
        rate(broken[0], machine, DEFAULT_REQUEST)
    assert choose([]) is None


def test_a_plan_says_what_its_quantization_loses():
    variant = next(one for one in LLAMA if one.quant == "Q5_K_M")
    made = plan_variant(variant, Machine(profile(32)), DEFAULT_REQUEST)
    assert made.kl_divergence is not None
    assert made.kl_divergence.value == 0.010762
    assert "llama.cpp" in made.kl_divergence.source
    assert made.file_bytes == variant.size
    with pytest.raises(DoesNotFit):
        plan_variant(variant, Machine(profile(3)), DEFAULT_REQUEST)
    assert msgspec.json.decode(msgspec.json.encode(made), type=type(made)) == made
