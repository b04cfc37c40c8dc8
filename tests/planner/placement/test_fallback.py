"""The steps down from a plan that no longer fits: each in its order, each told, and an end."""

import math
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.base.errors import DoesNotFit, DryRunFailed
from edgechat.device.memory import Memory
from edgechat.planner.placement import fallback
from edgechat.planner.placement.fallback import (
    is_short,
    plan_reload,
    reduce_to_fit,
    refit,
    replan_for_more,
    step_down,
)
from edgechat.planner.plan_model import plan
from edgechat.planner.prepare import prepare
from edgechat.planner.request import PlanRequest
from tests.kit import tiny
from tests.kit.published import published
from tests.planner.headers import GIB, LLAMA_8B, header, machine, wide
from tests.planner.placement.test_layout import card, with_cards
from tests.properties import examples

LLAMA = published("llama-3.1-8b")
MOE = published("qwen3-30b-a3b")


def silent(_params):
    raise DryRunFailed("nobody answers.")


def down(made, on, *, failed=False):
    return reduce_to_fit(made, LLAMA, on, silent, failed=failed)


def made_on(profile, context=16384):
    return plan("a", LLAMA, profile, PlanRequest(context=context))


STEPS = (
    "Prompts are read 128 tokens at a time, to save memory.",
    "The KV cache is kept in 8 bits (q8_0), to save memory.",
    "The context is reduced to 8192 tokens, to save memory.",
    "The context is reduced to 4096 tokens, to save memory.",
    "The context is reduced to 2048 tokens, to save memory.",
)


def test_every_step_in_its_order_and_then_an_end():
    made = made_on(machine(16 * GIB))
    told = []
    while (step := step_down(made, LLAMA)) is not None:
        made, said = step
        told.append(said)
    assert tuple(told) == STEPS
    assert (made.n_ubatch, made.n_batch, made.cache_type, made.context) == (128, 128, "q8_0", 2048)


def test_each_step_takes_less():
    made = made_on(machine(16 * GIB))
    for said in STEPS:
        before = made.total_bytes
        made, told = down(made, machine(16 * GIB), failed=True)
        assert told == (said,)
        assert made.total_bytes < before
    with pytest.raises(DoesNotFit) as caught:
        down(made, machine(16 * GIB), failed=True)
    # It fits by the figures: the message must not say that it needs more than there is.
    assert "although 16.0 GiB are free" in caught.value.message
    assert "cannot be reduced any further" in caught.value.message
    assert "--load-anyway" in (caught.value.hint or "")


def test_a_plan_that_fits_is_left_as_it_is():
    made = made_on(machine(16 * GIB))
    assert down(made, machine(16 * GIB)) == (made, ())


def test_only_as_many_steps_as_are_needed():
    made = made_on(machine(16 * GIB))
    free = made.total_bytes
    assert down(made, machine(free)) == (made, ())
    smaller, told = down(made, machine(free - 1))
    assert told == STEPS[:1]
    assert smaller.total_bytes <= free - 1
    smaller, told = down(made, machine(free - 300 * 2**20))
    assert told == STEPS[:2]
    assert (smaller.context, smaller.cache_type) == (16384, "q8_0")


def test_the_end_names_what_the_least_needs():
    made = made_on(machine(16 * GIB))
    with pytest.raises(DoesNotFit, match=r"needs at least 4\.\d GiB, but only 2\.0 GiB are free now"):
        down(made, machine(2 * GIB))


@settings(max_examples=examples(15))
@given(st.sampled_from([2048, 3000, 8192, 16384, 131072]), st.floats(2, 20), st.booleans())
def test_what_comes_out_fits_or_is_refused(context, free, failed):
    made = made_on(machine(64 * GIB), context)
    profile = machine(int(free * GIB))
    try:
        found, told = down(made, profile, failed=failed)
    except DoesNotFit:
        return
    assert found.total_bytes <= free * GIB
    assert bool(told) == (found != made)
    assert len(told) >= failed
    assert min(2048, made.context) <= found.context <= made.context
    assert (found.model_path, found.threads, found.sampling) == (
        made.model_path,
        made.threads,
        made.sampling,
    )


def test_heads_that_no_block_divides_keep_their_cache():
    odd = header(LLAMA_8B, attention__key_length=80, attention__value_length=80)
    made = plan("a", odd, machine(16 * GIB), PlanRequest(context=4096))
    steps = []
    while (step := step_down(made, odd)) is not None:
        made, said = step
        steps.append(said)
    assert [said.split()[1] for said in steps] == ["are", "context"]
    assert made.cache_type == "f16"


@pytest.mark.parametrize("rpc", [(), ("127.0.0.1:1",)])
def test_layers_leave_the_card_last_and_all_of_them_in_the_end(rpc):
    """Where none is left there, nothing is said of servers that need not be there."""
    both = replace(with_cards(64, card("CUDA0", 5)), rpc=rpc)
    made = plan("a", MOE, both, PlanRequest(context=2048, cache_type="q8_0"))
    assert made.split
    made = msgspec.structs.replace(made, n_ubatch=128)
    counts, told = [made.gpu_layers], []
    while (step := step_down(made, MOE)) is not None:
        made, said = step
        counts.append(made.gpu_layers)
        told.append(said)
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 0
    assert (made.devices, made.split, made.experts_in_ram, made.rpc) == ((), (), 0, ())
    for said, before, after in zip(told, counts, counts[1:], strict=False):
        n = before - after
        assert said == f"{n} more layer{'s run' if n > 1 else ' runs'} on the CPU, to save memory."


def test_a_card_that_filled_up_gets_fewer_layers():
    made = plan("a", LLAMA, with_cards(64, card("CUDA0", 24)), PlanRequest(context=2048, cache_type="q8_0"))
    assert made.gpu_layers == 33
    found, told = reduce_to_fit(made, LLAMA, with_cards(64, card("CUDA0", 3)), silent, failed=False)
    assert 0 < found.gpu_layers < 33
    assert all(one.total_bytes <= one.budget_bytes for one in found.memory)
    assert "on the CPU" in told[-1]


# refit looks at this machine: as much memory as a test wants it to have.


@pytest.fixture
def free(monkeypatch):
    """Return the free memory in bytes, to be changed."""
    found = [math.inf]
    real = fallback.current_profile

    def look(*args):
        profile = real(*args)
        available = int(min(found[0], profile.memory.available))
        return replace(profile, memory=Memory(profile.memory.total, available))

    monkeypatch.setattr(fallback, "current_profile", look)
    monkeypatch.setattr("edgechat.planner.prepare.current_profile", look)
    return found


def test_a_plan_is_measured_anew_on_its_way_down(free):
    made = prepare(str(tiny()), PlanRequest(context=4096))
    assert refit(made) == (made, ())
    free[0] = made.total_bytes - 1
    found, told = refit(made)
    assert told[0].startswith("Prompts are read")
    assert found.buffers
    assert found.buffers != made.buffers
    assert found.total_bytes <= free[0]
    free[0] = 2**20
    with pytest.raises(DoesNotFit):
        refit(made)


def half(wish):
    """Return the plan so far down the ladder that its context is cut."""
    made = wish
    while made.context == wish.context:
        made, _ = refit(made, failed=True)
    return made


@pytest.mark.slow
def test_a_wish_outlives_a_bad_moment(free):
    wish = prepare(str(tiny()), PlanRequest(context=4096))
    assert plan_reload(wish, wish) == (wish, ())
    free[0] = half(wish).total_bytes
    less, told = plan_reload(wish, wish)
    assert less.context < wish.context
    assert told
    assert plan_reload(wish, less) == (less, ()), "the same is not told twice"
    free[0] = math.inf
    assert plan_reload(wish, less) == (wish, ("More memory is free again: the context is now 4096 tokens.",))


@pytest.mark.slow
def test_a_killed_load_comes_back_smaller_unless_others_have_its_memory(free):
    wish = prepare(str(tiny()), PlanRequest(context=4096))
    assert not is_short(wish)
    less, told = plan_reload(wish, wish, killed=True)
    assert told[0].startswith("Prompts are read")
    assert less.total_bytes < wish.total_bytes
    least, _ = plan_reload(wish, less, killed=True)
    assert least.total_bytes < less.total_bytes
    free[0] = half(wish).total_bytes
    assert is_short(wish)
    fitting, _ = plan_reload(wish, wish)
    assert plan_reload(wish, wish, killed=True)[0] == fitting


def test_a_plan_of_a_bad_moment_grows_where_there_is_more_memory(free):
    free[0] = prepare(str(wide()), PlanRequest(context=8192, cache_type="f16")).total_bytes * 1.2
    wish = prepare(str(wide()))
    asked = 0

    def replan():
        nonlocal asked
        asked += 1
        return prepare(str(wide()))

    assert replan_for_more(wish, replan) == wish
    assert not asked
    free[0] = math.inf
    more = replan_for_more(wish, replan)
    assert asked
    assert more.context > wish.context
    other = msgspec.structs.replace(more, model_path="another.gguf")
    shorter = msgspec.structs.replace(more, context=wish.context - 256)
    assert replan_for_more(wish, lambda: other) == replan_for_more(wish, lambda: shorter) == wish

    def refuse():
        raise DoesNotFit("not now")

    assert replan_for_more(wish, refuse) == wish


def test_anyway_is_taken_at_its_word(free):
    free[0] = 2**20
    anyway = plan("a", LLAMA, machine(2**20), PlanRequest(context=4096, anyway=True))
    assert refit(anyway) == (anyway, ())
