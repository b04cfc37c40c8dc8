import re

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edgechat.base.errors import DoesNotFit, DryRunFailed, SettingsError
from edgechat.device.memory import Memory
from edgechat.device.profile import DeviceProfile
from edgechat.native.params import Breakdown, Buffer, LoadParams
from edgechat.planner.estimate.budget import SPARE
from edgechat.planner.estimate.memory import checkpoint_bytes, recurrent_bytes
from edgechat.planner.placement.drafting import DRAFTED
from edgechat.planner.placement.plan_model import CONTEXTS
from edgechat.planner.plan import as_json
from edgechat.planner.request import DEFAULT_REQUEST, PlanRequest
from tests.planner.headers import GIB, LLAMA_8B, QWEN35_4B, cache_bytes, cache_of, header, machine
from tests.planner.planning import plan


def planned(free, request=DEFAULT_REQUEST, **changes):
    return plan("a", header(LLAMA_8B, **changes), machine(int(free * GIB)), request)


def refused(free, request=DEFAULT_REQUEST, **changes):
    with pytest.raises(DoesNotFit) as caught:
        planned(free, request, **changes)
    return caught.value


# 4 GiB of weights; a token takes 128 KiB of cache in f16, 68 in q8_0; the rest is about 0.4 GiB.
@pytest.mark.parametrize(
    ("free", "context", "cache_type"),
    [
        (16, 16384, "f16"),
        (7.5, 16384, "f16"),
        (6.5, 16384, "q8_0"),  # 8 bits of cache before half of the context
        (5.85, 8192, "f16"),
        (5.5, 8192, "q8_0"),
        (5.15, 4096, "q8_0"),
        (4.9, 2048, "q8_0"),  # f16 takes as much for 2048 tokens as q8_0 for 3855
        (4.5, 2048, "q8_0"),  # only just
    ],
)
def test_the_ladder(free, context, cache_type):
    made = planned(free)
    assert (made.context, made.cache_type) == (context, cache_type)
    assert made.total_bytes <= made.memory[0].budget_bytes == int(free * GIB)


def test_what_just_fits_says_so():
    assert "barely fits" in planned(4.5).reasons[0]
    assert "barely fits" not in planned(5.3).reasons[0]


def test_what_limits_the_memory_is_named():
    tight = DeviceProfile(machine(GIB).cpu, Memory(64 * GIB, 4 * GIB, "the control group /a"))
    with pytest.raises(DoesNotFit, match=r"only 4\.0 GiB are free under the control group /a\."):
        plan("a", header(LLAMA_8B), tight, DEFAULT_REQUEST)


def test_nothing_fits():
    error = refused(4.0)
    assert error.exit_code == 1
    assert "needs about" in error.message
    assert "4.0 GiB" in error.message
    assert (error.hint or "").startswith("Close other programs, or choose a smaller model.")


@pytest.mark.parametrize(
    ("trained", "context"), [(8192, 8192), (6000, 4096), (2048, 2048), (1000, 1024), (0, 16384)]
)
def test_never_beyond_what_the_model_was_trained_on(trained, context):
    assert planned(64, context_length=trained).context == context


def test_a_wish_is_kept_and_rounded_up():
    made = planned(64, PlanRequest(context=30000, cache_type="q4_0", threads=3))
    assert (made.context, made.cache_type, made.threads) == (30208, "q4_0", 3)


def test_a_wish_may_take_what_is_spared_otherwise():
    assert planned(5.85).context == 8192
    assert planned(5.85, PlanRequest(context=16384)).context == 16384


def test_a_wish_shrinks_the_cache_before_it_is_refused():
    made = planned(5.8, PlanRequest(context=16384))
    assert made.cache_type == "q8_0"
    assert "q8_0 because" in made.reasons[0]


def test_a_wish_that_cannot_fit_names_both_numbers_and_the_nearest_that_does():
    error = refused(6, PlanRequest(context=65536))
    found = re.search(r"A context of (\d+) tokens fits", error.hint or "")
    assert "65536" in error.message
    assert "6.0 GiB" in error.message
    assert found
    nearest = int(found.group(1))
    assert planned(6, PlanRequest(context=nearest)).context == nearest
    assert refused(6, PlanRequest(context=nearest + 1))


@pytest.mark.parametrize(("trained", "nearest"), [(6000, 5888), (131072, 130816), (131072, 256)])
def test_the_nearest_context_is_the_nearest(trained, nearest):
    def ask(context, free):
        request = PlanRequest(context=context, cache_type="f16")
        return plan("a", header(LLAMA_8B, context_length=trained), machine(free), request)

    free = ask(nearest, 64 * GIB).total_bytes
    assert ask(nearest, free).context == nearest
    with pytest.raises(DoesNotFit) as caught:
        ask(trained, free)
    assert f"A context of {nearest} tokens fits." in (caught.value.hint or "")


def test_a_wish_beyond_training_gets_what_there_is_and_both_numbers():
    made = planned(64, PlanRequest(context=8192), context_length=4096)
    assert made.context == 4096
    assert "8192" in made.notes[0]
    assert "4096" in made.notes[0]
    assert planned(64, PlanRequest(context=4096), context_length=4096).notes == ()


@pytest.mark.parametrize("asked", [PlanRequest(context=0), PlanRequest(context=-5), PlanRequest(threads=0)])
def test_requests_without_sense(asked):
    with pytest.raises(SettingsError, match="is not valid"):
        planned(64, asked)


def test_heads_that_no_block_divides_keep_the_cache_in_f16():
    odd = {"attention__key_length": 80, "attention__value_length": 80}
    assert "80" in refused(64, PlanRequest(cache_type="q8_0"), **odd).message
    assert all(planned(free, **odd).cache_type == "f16" for free in (4.8, 5.0, 5.3, 6, 64))


def test_a_recurrent_model_gets_fewer_sequences():
    hybrid = header(QWEN35_4B, arch="qwen35")
    made = plan("a", hybrid, machine(16 * GIB), DEFAULT_REQUEST)
    assert (made.n_seq_max, made.n_outputs_max) == (2, 2)
    state = cache_of(made) - cache_bytes(hybrid, made.context, made.cache_type, n_seq_max=2)
    assert state == recurrent_bytes(hybrid, 2) > 0
    assert any("a recurrent state of" in reason for reason in made.reasons)
    dense = planned(16)
    assert (dense.n_seq_max, dense.n_outputs_max, dense.n_batch, dense.n_layers) == (8, 8 + DRAFTED, 512, 32)


def test_checkpoints_are_counted_and_take_nothing_from_the_context():
    """A share of what is left, of models that cannot be cut; one of them at least, if it fits."""
    hybrid = header(QWEN35_4B, arch="qwen35")
    windowed = header(LLAMA_8B, arch="gemma3", attention__sliding_window=1024)
    for model in (hybrid, windowed):
        size, before = 0, 0
        for free in (64, 16, 8, 6):
            made = plan("a", model, machine(free * GIB), PlanRequest(context=8192))
            size = checkpoint_bytes(model, made)
            ram = made.memory[0]
            assert made.checkpoint_bytes == ram.checkpoint_bytes
            assert made.checkpoint_bytes % size == 0
            assert 0 < made.checkpoint_bytes <= 32 * size
            left = free * GIB - made.total_bytes + made.checkpoint_bytes
            assert made.checkpoint_bytes <= max(size, left // 8)
            assert made.checkpoint_bytes <= before or not before
            assert any("checkpoints up to" in reason for reason in made.reasons)
            assert as_json(made)["devices"][0]["checkpoint_bytes"] == made.checkpoint_bytes
            before = made.checkpoint_bytes
        tight = made.total_bytes - made.checkpoint_bytes + size - 1
        none = plan("a", model, machine(tight), PlanRequest(context=8192))
        assert (none.checkpoint_bytes, none.context) == (0, made.context)
    assert planned(64).checkpoint_bytes == 0


def test_a_kind_of_recurrent_model_that_no_formula_knows_keeps_some_too():
    unknown = header({**LLAMA_8B, "attention.head_count_kv": 8}, arch="rwkv7")
    assert plan("a", unknown, machine(64 * GIB), DEFAULT_REQUEST).checkpoint_bytes > 0


def test_threads_come_with_their_reason():
    made = planned(16)
    assert made.threads == 4
    assert "4 threads: one for each core." in made.reasons
    assert "3 threads, as requested." in planned(16, PlanRequest(threads=3)).reasons


def test_reasons_are_sentences():
    for free in (4.5, 5.3, 6.5, 64):
        assert all(reason.endswith(".") and reason[0].isalnum() for reason in planned(free).reasons)


def allocator(cells_cost, asked):
    """Return an allocator that wants this much for a token, whatever the formulas say."""

    def measure(ask):
        asked.append(ask)
        rate = cells_cost if ask.cache_type == "f16" else cells_cost * 17 // 32
        return Breakdown((Buffer("CPU", True, 4 * GIB, ask.context * rate, 300),), 30, ask.context)

    return measure


def test_the_allocator_decides_where_it_answers():
    asked = []
    cheap = plan("a", header(LLAMA_8B), machine(5 * GIB), DEFAULT_REQUEST, allocator(1024, asked))
    assert (cheap.context, cache_of(cheap), cheap.compute_bytes) == (16384, 16384 * 1024, 330)
    assert cheap.buffers == (Buffer("CPU", True, 4 * GIB, 16384 * 1024, 300),)
    assert "exact, by llama.cpp's own allocator" in cheap.reasons[1]
    assert msgspec.structs.replace(asked[-1], threads=cheap.threads) == LoadParams.of(cheap)
    dear = plan("a", header(LLAMA_8B), machine(16 * GIB), DEFAULT_REQUEST, allocator(3 * 2**19, asked))
    assert dear.context == 8192


def test_the_nearest_context_is_the_allocators_too():
    def ask(context):
        return plan(
            "a", header(LLAMA_8B), machine(5 * GIB), PlanRequest(context=context), allocator(2**20, [])
        )

    with pytest.raises(DoesNotFit) as caught:
        ask(16384)
    nearest = int(re.findall(r"\d+", caught.value.hint or "")[0])
    assert ask(nearest).context == nearest
    with pytest.raises(DoesNotFit):
        ask(nearest + 1)


def test_formulas_serve_where_the_allocator_is_silent():
    def silent(ask):
        raise DryRunFailed("llama.cpp's dry run failed: its process died.")

    made = plan("a", header(LLAMA_8B), machine(16 * GIB), DEFAULT_REQUEST, silent)
    plain = planned(16)
    assert (made.context, cache_of(made), made.buffers) == (plain.context, cache_of(plain), ())
    assert "(estimated: llama.cpp's dry run failed: its process died)" in made.reasons[1]
    assert "(estimated)" in plain.reasons[1]


def test_states_too_large_for_a_dry_run_are_estimated():
    """They are really allocated in a dry run."""
    asked = []
    huge = header(QWEN35_4B, arch="qwen35", ssm__inner_size=2**16)
    made = plan("a", huge, machine(64 * GIB), DEFAULT_REQUEST, allocator(1024, asked))
    assert "too large for a dry run" in made.reasons[1]
    assert not asked


_free = st.floats(0.1, 64)
_types = st.sampled_from([None, "f16", "q8_0", "q4_0"])
_shapes = st.fixed_dictionaries(
    {
        "block_count": st.integers(1, 80),
        "attention__head_count_kv": st.sampled_from([1, 2, 8, 32]),
        "context_length": st.sampled_from([0, 512, 2048, 6000, 40960, 262144]),
        "vocab_size": st.integers(100, 300_000),
        "attention__sliding_window": st.sampled_from([0, 512, 4096]),
    }
)


@pytest.mark.slow
@given(free=_free, context=st.none() | st.integers(1, 300_000), cache_type=_types, shape=_shapes)
def test_a_plan_fits_or_says_what_would(free, context, cache_type, shape):
    request = PlanRequest(context=context, cache_type=cache_type)
    trained = shape["context_length"]
    assume(not (context and trained and context > trained))
    try:
        made = planned(free, request, **shape)
    except DoesNotFit as error:
        found = re.search(r"A context of (\d+) tokens fits", error.hint or "")
        if found:
            nearest = PlanRequest(context=min(int(found.group(1)), trained or 10**9), cache_type=cache_type)
            assert planned(free, nearest, **shape).context == int(found.group(1))
        return
    assert made.total_bytes <= int(free * GIB)
    assert made.context % 256 == 0
    assert made.cache_type == cache_type or cache_type is None
    if context:
        assert 0 <= made.context - context < 256
    else:
        assert made.context in CONTEXTS or made.context == 512


@pytest.mark.slow
@given(free=_free, more=st.floats(0, 16), shape=_shapes)
def test_more_memory_never_shortens_the_context(free, more, shape):
    try:
        first = planned(free, **shape)
    except DoesNotFit:
        return
    second = planned(free + more, **shape)
    assert second.context >= first.context
    assert (second.context, second.cache_type != "f16") >= (
        first.context,
        False,
    ) or second.cache_type == "f16"


def test_the_automatic_choice_leaves_a_tenth_to_others():
    made = planned(7.5)
    assert made.total_bytes <= made.memory[0].budget_bytes * (1 - SPARE)


@pytest.mark.parametrize(
    ("clients", "free", "told"),
    [
        (8, 64, "Up to 8 clients are served at a time."),
        (32, 64, "the others wait. vLLM could serve all of them: edgechat plan OWNER/REPO --engine vllm"),
        (32, 8, "8 of 32 clients are served at a time, and the others wait."),
    ],
)
def test_many_clients(clients, free, told):
    assert planned(free).notes == ()
    (note,) = planned(free, PlanRequest(clients=clients)).notes
    assert note.endswith(told)
