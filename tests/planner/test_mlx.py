"""MLX models planned: on Macs that are not here, and on this machine, where MLX has only the processor."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.base.errors import BackendMissing, DoesNotFit, NotADraft
from edgechat.models.formats.header import GgufArray
from edgechat.models.quality import QualityClass, quality_class
from edgechat.native.params import LoadParams
from edgechat.planner.candidates import runnable, weighs_mlx
from edgechat.planner.estimate import calibration
from edgechat.planner.estimate.budget import MLX, RAM, Budget
from edgechat.planner.estimate.footprint import MlxFootprint, may_quantize
from edgechat.planner.estimate.memory import is_recurrent
from edgechat.planner.fallback import reduce_to_fit, step_down
from edgechat.planner.machine import Machine, MachineDescription
from edgechat.planner.placement.drafting import DRAFTED, draft_costs, misfit
from edgechat.planner.placement.plan_model import plan_variant, with_draft
from edgechat.planner.plan import as_json
from edgechat.planner.ranking.ranking import Verdict, best_of, choose, rate
from edgechat.planner.request import DEFAULT_REQUEST, PlanRequest
from tests.planner import golden
from tests.planner.headers import GIB, weights_of
from tests.planner.macs import MACS, files_of, for_mlx, mac
from tests.planner.planning import DraftCandidate, plan
from tests.properties import examples

QWEN, HYBRID, WINDOWED = "qwen3-4b", "qwen3.5-4b", "gemma-3-4b"
ASKED = PlanRequest(backend="mlx")
_macs = st.sampled_from(MACS)
_names = st.sampled_from([QWEN, HYBRID, WINDOWED, "llama-3.2-1b", "qwen3-8b"])


# What a load takes, and where.


@settings(max_examples=examples(8))
@given(_macs, _names, st.sampled_from([None, 2048, 8192]))
def test_the_one_memory_of_a_mac_is_charged_once(machine, name, context):
    profile = mac(*machine)
    try:
        made = plan("a", for_mlx(name), profile, PlanRequest(context=context))
    except DoesNotFit:
        assert machine[0] == 8
        return
    assert (made.backend, made.devices, made.buffers, made.rpc) == ("mlx", (MLX,), (), ())
    assert made.gpu_layers == made.n_layers + 1
    by_name = {one.name: one for one in made.memory}
    assert set(by_name) == {RAM, MLX}
    assert by_name[RAM].weights_bytes == 0  # no matrix lies in both
    assert weights_of(made) == pytest.approx(for_mlx(name).weights_bytes, rel=0.001)
    assert by_name[MLX].total_bytes <= by_name[MLX].budget_bytes <= profile.memory.total * 3 // 4
    assert made.total_bytes <= profile.memory.available


def test_metal_may_take_less_than_there_is():
    """What is free on the whole does not help a model that is larger than Metal's limit."""
    profile = mac(16)
    gpu = profile.mlx_card
    assert gpu is not None
    assert (gpu.total, gpu.own) == (16 * GIB * 2 // 3, 0)
    budget = Budget.of(profile, "mlx")
    assert [card.name for card in budget.cards] == [MLX]
    assert budget.cards[0].budget < gpu.total
    large = replace(profile, memory=replace(profile.memory, total=64 * GIB, available=60 * GIB))
    with pytest.raises(DoesNotFit, match="on MLX"):
        plan("a", for_mlx("qwen3-14b", "4bit"), _limited(large, 6 * GIB), PlanRequest(context=16384))


def _limited(profile, n):
    cards = (replace(profile.accelerators[0], total=n, free=n),)
    return replace(profile, accelerators=cards)


def test_without_metal_in_llama_cpp_the_gpu_is_there_for_mlx():
    profile = mac(16, ggml=False)
    assert not profile.accelerators[0].usable
    assert plan("a", for_mlx(QWEN), profile).devices == (MLX,)
    assert Budget.of(profile).cards == ()


def test_without_a_gpu_it_is_the_processor():
    made = plan("a", for_mlx(QWEN), replace(golden.profile(32), mlx=True))
    assert (made.devices, made.split) == ((), ())
    assert [one.name for one in made.memory] == [RAM]
    assert any("on the CPU, which is much slower" in one for one in made.reasons)


def cache(header, cache_type, context=8192, n_seq_max=1):
    params = LoadParams(context=context, cache_type=cache_type, n_seq_max=n_seq_max, devices=(MLX,))
    return sum(MlxFootprint().extras(header, params, 0).cache)


def test_keys_and_values_by_the_bit():
    """147,456 bytes a token in 16 bits; in 8 bits 64 numbers have a scale and a bias of 16 bits."""
    header = for_mlx(QWEN)
    cells = 8192 + 256  # a cache grows by so many
    assert cache(header, "f16") == 147_456 * cells
    assert cache(header, "q8_0") == 147_456 * cells * 17 // 32
    assert cache(header, "q4_0") == 147_456 * cells * 9 // 32


@pytest.mark.parametrize("key", ["shared_kv_layers", "key_length_mla"])
def test_a_cache_that_mlx_lm_cannot_quantize_stays_whole(key):
    header = for_mlx(QWEN)
    assert MlxFootprint().whole_cache(header) == ""
    odd = replace(header, metadata=header.metadata | {f"qwen3.attention.{key}": 8})
    assert MlxFootprint().whole_cache(odd)
    assert not may_quantize(odd)


def test_windows_and_states_are_each_sequences_own():
    windowed, hybrid = for_mlx(WINDOWED), for_mlx(HYBRID)
    # Five layers see everything, 29 a window of 1,024 and the chunk before it; 4,096 bytes a token in each.
    full, window = 5 * 4096 * (8192 + 2 * 256), 29 * 4096 * 2 * (1024 + 512)
    assert cache(windowed, "f16", n_seq_max=2) == full + window
    assert cache(windowed, "q8_0", n_seq_max=2) == full * 17 // 32 + window
    one, three = (cache(hybrid, "f16", n_seq_max=n) for n in (1, 3))
    state = 24 * 4 * (3 * (2 * 16 * 128 + 32 * 128) + 32 * 128 * 128)
    assert three - one == 2 * (2 * state + 32_768 * 256)


@pytest.mark.parametrize("name", [QWEN, HYBRID, WINDOWED])
def test_a_quantized_cache_pays_with_the_scores_that_are_written_down(name):
    few, many = (LoadParams(context=16384, n_ubatch=n, devices=(MLX,), cache_type="q8_0") for n in (128, 512))
    assert (
        MlxFootprint().extras(for_mlx(name), many, 0).compute
        > 2.5 * MlxFootprint().extras(for_mlx(name), few, 0).compute
    )


def test_which_caches_there_are():
    assert may_quantize(for_mlx(QWEN))
    odd = replace(for_mlx(QWEN), metadata=for_mlx(QWEN).metadata | {"qwen3.attention.key_length": 96})
    assert not may_quantize(odd)
    assert may_quantize(replace(odd, format="gguf"))
    sinks = for_mlx("gpt-oss-20b", "mxfp4")
    assert not may_quantize(sinks)
    with pytest.raises(DoesNotFit, match="cannot use q8_0: mlx-lm does not support that"):
        plan("a", sinks, mac(64), PlanRequest(cache_type="q8_0"))


def test_threads_that_were_asked_for_are_said_to_be_of_no_use():
    made = plan("a", for_mlx(QWEN), mac(16), PlanRequest(threads=3))
    assert "threads = 3" in made.notes[0]
    assert not any("threads" in one for one in made.reasons)
    assert plan("a", for_mlx(QWEN), mac(16)).notes == ()


def test_what_one_backend_did_says_nothing_of_the_other():
    made = plan("a", for_mlx(QWEN), mac(16))
    other = plan_variant(files_of(QWEN)[0], Machine(mac(16)), DEFAULT_REQUEST)
    assert made.where is not None
    assert other.where is not None
    assert made.where.backend == "MLX"
    assert made.where.build == calibration.build("mlx") != other.where.build
    history = calibration.Calibration()
    for _ in range(3):
        history = history.with_run(made.where, decode=3.0)
    slower = plan("a", for_mlx(QWEN), mac(16), history=history)
    assert slower.predicted is not None
    assert made.predicted is not None
    assert slower.predicted.decode_tps == pytest.approx(made.predicted.decode_tps / 3)
    assert history.correction(other.where).decode == 1.0


@pytest.mark.slow
@given(_macs, _macs, _names)
def test_more_bandwidth_writes_faster(one, other, name):
    slow, fast = sorted((one[1], other[1]))
    speeds = []
    for bandwidth in (slow, fast):
        found = plan("a", for_mlx(name), mac(64, bandwidth), PlanRequest(context=4096)).predicted
        assert found is not None
        speeds.append(found.decode_tps)
    assert speeds == sorted(speeds)


# Which backend.


def test_both_are_weighed_on_a_mac_only():
    files = files_of(QWEN)
    assert {one.backend for one in files} == {"llama.cpp", "mlx"}
    for profile, both in (
        (mac(16), True),
        (mac(16, ggml=False), True),
        (mac(16, mlx=False), False),
        (replace(golden.profile(16), mlx=True), False),
    ):
        assert weighs_mlx(profile, DEFAULT_REQUEST) == both
        found = {one.backend for one in runnable(files, profile, DEFAULT_REQUEST)}
        assert found == ({"llama.cpp", "mlx"} if both else {"llama.cpp"})


@pytest.mark.parametrize("backend", ["llama.cpp", "mlx"])
def test_what_is_asked_for_is_taken(backend):
    request = PlanRequest(backend=backend)
    for profile in (mac(16), replace(golden.profile(16), mlx=True)):
        assert {one.backend for one in runnable(files_of(QWEN), profile, request)} == {backend}


def test_what_cannot_be_is_refused():
    ggufs = [one for one in files_of(QWEN) if one.format == "gguf"]
    folders = [one for one in files_of(QWEN) if one.format == "mlx"]
    bare = golden.profile(16)
    with pytest.raises(BackendMissing, match="MLX is not available"):
        runnable(files_of(QWEN), bare, ASKED)
    with pytest.raises(BackendMissing, match="qwen3-4b is an MLX model, and MLX is not available"):
        runnable(folders, bare, DEFAULT_REQUEST)
    with pytest.raises(BackendMissing, match=r"which llama\.cpp cannot load"):
        runnable(folders, mac(16), PlanRequest(backend="llama.cpp"))
    with pytest.raises(BackendMissing, match="is not an MLX model") as caught:
        runnable(ggufs, mac(16), ASKED)
    assert caught.value.hint == "To download an MLX version: edgechat pull qwen3-4b --backend mlx"


def test_settings_only_prefer():
    """Where there is nothing to choose they stop nobody."""
    request = PlanRequest(prefers="mlx")
    ggufs = [one for one in files_of(QWEN) if one.format == "gguf"]
    with_mlx = replace(golden.profile(16), mlx=True)
    assert {one.backend for one in runnable(files_of(QWEN), with_mlx, request)} == {"mlx"}
    assert runnable(ggufs, with_mlx, request) == ggufs
    assert {one.backend for one in runnable(files_of(QWEN), golden.profile(16), request)} == {"llama.cpp"}


@pytest.mark.parametrize("machine", MACS)
@pytest.mark.parametrize("name", [QWEN, HYBRID, "llama-3.2-1b"])
def test_the_reasons_weigh_both(machine, name):
    profile = mac(*machine)
    files = runnable(files_of(name), profile, DEFAULT_REQUEST)
    options = [rate(one, Machine(profile), DEFAULT_REQUEST) for one in files]
    first = choose(options)
    assert first is not None
    assert first.plan is not None
    assert first.plan.backend == first.variant.backend
    (reason,) = (one for one in first.plan.reasons if " rather than " in one)
    other = {"llama.cpp": "MLX", "mlx": "llama.cpp"}[first.plan.backend]
    assert f"rather than {other}, for which " in reason
    assert other.lower() in {one.backend for one in first.plan.alternatives}
    assert as_json(first.plan)["backend"] == first.plan.backend
    quick = best_of(files, Machine(profile), DEFAULT_REQUEST)
    assert quick is not None
    assert quick.verdict == first.verdict
    assert quick.worth >= first.worth - 0.01


def test_mlx_is_taken_where_it_is_the_better():
    """As it is said to read and write a little faster, the same bits go to it on a slow machine."""
    profile = mac(16, 60)
    files = [one for one in files_of("qwen3-8b") if one.quant in ("Q8_0", "8bit", "4bit")]
    same = replace(next(one for one in files if one.quant == "4bit"), quant="8bit")
    same = replace(same, header=lambda: _in_8_bits(same.model), size=_in_8_bits(same.model).file_size)
    eight = [next(one for one in files if one.quant == "Q8_0"), same]
    first = choose([rate(one, Machine(profile), PlanRequest(context=4096)) for one in eight])
    assert first is not None
    assert first.plan is not None
    assert first.plan.backend == "mlx"
    assert "MLX rather than llama.cpp, for which Q8_0 would be the best choice." in " ".join(
        first.plan.reasons
    )


def _in_8_bits(name):
    found = for_mlx(name)
    tensors = tuple(
        replace(one, n_bytes=one.n_bytes * 17 // 9 if len(one.shape) > 1 else one.n_bytes)
        for one in found.tensors
    )
    made = replace(found, tensors=tensors, metadata=found.metadata | {"mlx.quantization": "8bit"})
    return replace(made, file_size=made.weights_bytes)


def test_four_plain_bits_are_enough_for_whoever_asks_for_mlx():
    assert quality_class("4bit") is QualityClass.REDUCED
    folders = [one for one in files_of(QWEN) if one.quant == "4bit"]
    on = Machine(mac(16))
    assert rate(folders[0], on, DEFAULT_REQUEST).verdict is Verdict.POOR
    assert rate(folders[0], on, ASKED).verdict is Verdict.FITS
    strict = msgspec.structs.replace(ASKED, quality=QualityClass.GOOD)
    assert rate(folders[0], on, strict).verdict is Verdict.POOR


def test_a_mac_can_be_described():
    here = golden.profile(8)
    found = MachineDescription(ram=32 * GIB, bandwidth=2e11, runs_mlx=True).over(here)
    assert found.mlx_card is not None
    assert found.mlx_card.total == 32 * GIB * 2 // 3
    assert plan("a", for_mlx(QWEN), found).devices == (MLX,)
    assert (
        MachineDescription(runs_mlx=True).over(here).mlx_card is None
    )  # nothing was described: it is this machine


# The ladder.


def test_the_ladder_ends_with_all_layers_where_they_were():
    header = for_mlx(QWEN)
    made = plan("a", header, mac(16), PlanRequest(context=16384))
    told, totals = [], [made.total_bytes]
    while (step := step_down(made, header)) is not None:
        made, told = reduce_to_fit(made, header, mac(16), None, failed=True)[0], [*told, step[1]]
        totals.append(made.total_bytes)
    assert [one.split()[1] for one in told] == ["are", "KV", "context", "context", "context"]
    assert totals == sorted(totals, reverse=True)
    assert (made.devices, made.gpu_layers) == ((MLX,), made.n_layers + 1)
    assert (made.context, made.cache_type, made.n_batch) == (2048, "q8_0", 128)
    with pytest.raises(DoesNotFit):
        reduce_to_fit(made, header, mac(16), None, failed=True)


def test_a_plan_goes_down_to_what_metal_allows_now():
    header, profile = for_mlx(QWEN), mac(16)
    made = plan("a", header, profile, PlanRequest(context=16384))
    assert reduce_to_fit(made, header, profile, None, failed=False) == (made, ())
    found, told = reduce_to_fit(made, header, _limited(profile, 5 * GIB), None, failed=False)
    assert told
    assert all(one.total_bytes <= one.budget_bytes for one in found.memory)


# Drafts.


def test_states_cannot_be_taken_back():
    assert draft_costs(for_mlx(QWEN), "auto").drafted == DRAFTED
    assert draft_costs(for_mlx(WINDOWED), "auto").drafted == DRAFTED
    for wish in ("auto", "ngram", "a-model"):
        found = draft_costs(for_mlx(HYBRID), wish)
        assert (found.drafted, found.n_rs_seq) == (DRAFTED, 0), "what stands is computed again"


def test_a_state_of_unknown_size_is_one():
    plain = for_mlx(QWEN)
    listed = {"qwen3.attention.recurrent_layers": GgufArray("bool", 36, (True,) * 36)}
    assert is_recurrent(replace(plain, metadata=plain.metadata | listed))
    assert not is_recurrent(plain)


def test_a_draft_is_of_the_same_format():
    target, small = for_mlx(QWEN), for_mlx("qwen3-0.6b")
    assert misfit(target, small) == ""
    gguf = replace(small, format="gguf")
    assert misfit(target, gguf) == "it is a GGUF file, but the target is an MLX model"
    assert (
        misfit(gguf, replace(small, tensors=small.tensors[:9]))
        == "it is an MLX model, but the target is a GGUF file"
    )
    both = plan("a", target, mac(16), draft=DraftCandidate("small", small, requested=True))
    assert both.draft is not None
    assert (both.draft.devices, both.draft.cache_type) == ((MLX,), "f16")
    alone = plan("a", target, mac(16), PlanRequest(context=both.context, cache_type=both.cache_type))
    assert both.total_bytes == alone.total_bytes + both.draft.total_bytes
    loaded = both.for_draft()
    assert loaded is not None
    assert loaded.backend == "mlx"


def test_the_catalogues_draft_comes_from_its_own_repository_for_mlx():
    (variant,) = (one for one in files_of("qwen3-8b") if one.quant == "4bit")
    machine = Machine(mac(64, 400))
    made = plan_variant(variant, machine, ASKED)
    both = with_draft(made, variant, machine, ASKED, insists=False, elsewhere=True)
    assert both.draft is not None
    assert (both.draft.model_name, both.draft.quant) == ("qwen3-0.6b", "4bit")
    here = replace(variant, path=Path("/models/qwen3-8b"))
    told = with_draft(made, here, machine, ASKED, insists=False)
    assert told.draft is None
    assert "edgechat pull qwen3-0.6b --backend mlx" in told.no_draft
    request = msgspec.structs.replace(ASKED, draft="guide-draft")
    with pytest.raises(NotADraft, match="a GGUF file, but the target is an MLX model"):
        with_draft(made, variant, machine, request, insists=True)
