"""The steps down from a plan that no longer fits: each in its order, each told, and an end."""

import math
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.base.errors import DoesNotFit, DryRunFailed
from edgechat.device.memory import Memory
from edgechat.planner import fallback
from edgechat.planner.fallback import (
    is_short,
    plan_reload,
    reduce_to_fit,
    refit,
    replan_for_more,
    step_down,
)
from edgechat.planner.placement.drafting import AUTO, draft_costs
from edgechat.planner.placement.model_on_machine import for_embeddings
from edgechat.planner.plan import DeviceMemory
from edgechat.planner.prepare import prepare
from edgechat.planner.request import PlanRequest
from tests.kit import tiny
from tests.kit.published import published
from tests.planner.headers import GIB, LLAMA_8B, header, machine, projector_file, wide
from tests.planner.placement.test_layout import card, with_cards
from tests.planner.planning import plan
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
    monkeypatch.setattr("edgechat.planner.machine.current_profile", look)
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


# Each step by itself.

BLIND = "Its projector eyes.gguf is not loaded, to save memory: the model reads only text."
LEAST = {"n_ubatch": 128, "n_batch": 128, "cache_type": "q8_0", "context": 2048}


def least(**changes):
    """Return a plan from which no step is left, but for these changes."""
    return msgspec.structs.replace(made_on(machine(16 * GIB)), **LEAST | changes)


@pytest.mark.parametrize(
    ("changes", "told", "then"),
    [
        ({"context": 3000}, "The context is reduced to 2048 tokens, to save memory.", {"context": 2048}),
        ({"context": 10300}, "The context is reduced to 5120 tokens, to save memory.", {"context": 5120}),
        ({"cache_type": "f16"}, STEPS[1], {}),
        ({"n_ubatch": 129, "n_batch": 512}, STEPS[0], {}),
        (
            {"checkpoint_bytes": 1, "n_ubatch": 256},
            "To save memory, the model reads the whole chat again after most edits.",
            {"checkpoint_bytes": 0, "n_ubatch": 256},
        ),
        (
            {"draft": SimpleNamespace(model_name="small"), "checkpoint_bytes": 1},
            "The draft model small is not used, to save memory.",
            {
                "draft": None,
                "checkpoint_bytes": 1,
                "no_draft": "The draft model small is not used, to save memory.",
            },
        ),
        (
            {"projector": SimpleNamespace(name="eyes.gguf", image_batch=64), "context": 4096},
            BLIND,
            {
                "projector": None,
                "context": 4096,
                "no_vision": BLIND,
            },
        ),
        (
            {"projector": SimpleNamespace(name="eyes", image_batch=200), "n_ubatch": 201},
            "Prompts are read 200 tokens at a time, to save memory.",
            {"projector": SimpleNamespace(name="eyes", image_batch=200), "n_ubatch": 200, "n_batch": 200},
        ),
        (
            {"projector": SimpleNamespace(name="its encoder", image_batch=64), "backend": "mlx"},
            "Its encoder is not loaded, to save memory: the model reads only text.",
            {
                "projector": None,
                "backend": "mlx",
                "no_vision": "Its encoder is not loaded, to save memory: the model reads only text.",
            },
        ),
        (
            {"flash_attention": False, "n_ubatch": 512, "context": 4096},
            "Flash attention is used, to save memory.",
            {"flash_attention": True, "n_ubatch": 512, "context": 4096},
        ),
        (
            {"devices": ("A", "B"), "split": (8, 1), "experts_in_ram": 3, "rpc": ("x:1",)},
            "3 more layers run on the CPU, to save memory.",
            {"devices": ("A",), "split": (6,), "experts_in_ram": 3, "rpc": ("x:1",)},
        ),
        (
            {"devices": ("A",), "split": (1,), "experts_in_ram": 3, "rpc": ("x:1",)},
            "1 more layer runs on the CPU, to save memory.",
            {},
        ),
    ],
)
def test_a_step(changes, told, then):
    assert step_down(least(**changes), LLAMA) == (least(**then), told)


def test_no_step_is_left():
    assert step_down(least(), LLAMA) is None
    assert step_down(least(backend="mlx", devices=("A",), split=(9,)), LLAMA) is None
    assert step_down(least(embeddings=True, context=512, n_ubatch=512), LLAMA) is None


def test_the_drafting_layers_go_as_if_they_had_never_been():
    why = "Its own drafting layers (MTP) are not loaded, to save memory."
    for changes in ({"mtp": True, "draft": SimpleNamespace(model_name="mtp")}, {"head": SimpleNamespace()}):
        plain = draft_costs(LLAMA, AUTO)
        then = least(
            no_draft=why,
            n_rs_seq=plain.n_rs_seq,
            n_outputs_max=least().n_seq_max + plain.drafted,
            ngrams=True,
        )
        assert step_down(least(**changes, n_rs_seq=9, n_outputs_max=1, ngrams=False), LLAMA) == (then, why)


@pytest.mark.parametrize(("context", "half"), [(4096, 2048), (1300, 512), (600, 512)])
def test_texts_to_embed_get_shorter(context, half):
    made, told = step_down(least(embeddings=True, context=context), LLAMA)
    assert (made.context, told) == (half, f"Texts are limited to {half} tokens, to save memory.")
    assert made == for_embeddings(least(embeddings=True, context=half), LLAMA)


# Whether another plan is better now.


@pytest.fixture
def ram(monkeypatch):
    """Let so many bytes be free, and nothing be lost."""
    found = [16 * GIB]
    monkeypatch.setattr(fallback, "current_profile", lambda *_: machine(found[0]))
    monkeypatch.setattr(fallback, "why_lost", lambda rpc: "desk is gone" if "gone:1" in rpc else "")
    return found


def on_card(**changes):
    return msgspec.structs.replace(
        plan("a", LLAMA, with_cards(64, card("CUDA0", 24)), PlanRequest(context=4096)), **changes
    )


@pytest.mark.parametrize(
    ("before", "changes", "is_taken"),
    [
        ({}, {}, True),
        ({}, {"context": 4097}, True),
        ({}, {"context": 4095}, False),
        ({}, {"split": (32,)}, False),
        ({}, {"model_path": "another.gguf"}, False),
        ({"projector": SimpleNamespace()}, {"projector": None}, False),
        ({}, {"projector": SimpleNamespace()}, True),
        ({"head": SimpleNamespace()}, {"head": None}, False),
        ({}, {"head": SimpleNamespace()}, True),
        ({"memory": ()}, {"context": 8192}, False),
        ({"rpc": ("gone:1",)}, {"context": 1}, True),  # anything is better than a worker that was lost
        ({"rpc": ("gone:1",)}, {"model_path": "another.gguf"}, False),
    ],
)
def test_another_plan_is_taken_if_it_is_no_worse(ram, before, changes, is_taken):
    requested = on_card(**before)
    other = msgspec.structs.replace(requested, threads=99, **changes)
    assert replan_for_more(requested, lambda: other) is (other if is_taken else requested)


def test_another_plan_is_not_made_for_a_little_more_memory_or_where_none_can_be(ram):
    requested = made_on(machine(10 * GIB), 4096)
    other = msgspec.structs.replace(requested, threads=99)
    for free, expected in ((11 * GIB, requested), (11 * GIB + 1, other), (9 * GIB, requested)):
        ram[0] = free
        assert replan_for_more(requested, lambda: other) is expected

    def refuse():
        raise DoesNotFit("not now")

    ram[0] = 16 * GIB
    for rpc in ((), ("gone:1",)):
        lost = msgspec.structs.replace(requested, rpc=rpc)
        assert replan_for_more(lost, refuse) is lost


@pytest.mark.parametrize(
    ("fitting", "killed", "expected"),
    [
        ({}, False, ({}, ())),
        ({"reasons": ("another",)}, False, ({"reasons": ("another",)}, ())),
        ({"context": 2048}, False, ({"context": 2048}, ("as it fits",))),
        ({"checkpoint_bytes": 7}, False, ({"checkpoint_bytes": 7}, ("as it fits",))),
        ({"draft": SimpleNamespace()}, False, ({"draft": SimpleNamespace()}, ("as it fits",))),
        ({"projector": SimpleNamespace()}, False, ({"projector": SimpleNamespace()}, ("as it fits",))),
        (
            {"context": 8192},
            False,
            ({"context": 8192}, ("More memory is free again: the context is now 8192 tokens.",)),
        ),
        ({}, True, ({"context": 512}, ("a step down",))),
        ({"memory": ()}, True, ({"memory": ()}, ())),  # which takes less already
    ],
)
def test_what_is_loaded_after_a_load(monkeypatch, fitting, killed, expected):
    requested, last = made_on(machine(16 * GIB), 1024), made_on(machine(16 * GIB), 4096)
    changed = msgspec.structs.replace

    def refit_(one, *, failed=False):
        assert one is (last if failed else requested)
        return (
            (changed(last, context=512), ("a step down",))
            if failed
            else (changed(last, **fitting), ("as it fits",))
        )

    monkeypatch.setattr(fallback, "refit", refit_)
    assert plan_reload(requested, last, killed=killed) == (changed(last, **expected[0]), expected[1])


def test_anyway_counts_until_it_failed_or_a_worker_is_lost(ram, monkeypatch):
    def reduce(plan, header, profile, measure, *, failed):
        assert (header, profile, measure) == (LLAMA, machine(ram[0]), None)
        return "reduced", failed

    monkeypatch.setattr(fallback, "reduce_to_fit", reduce)
    monkeypatch.setattr(fallback, "read_model", lambda path: LLAMA)
    ram[0] = 2**20
    anyway = made_on(machine(16 * GIB), 4096)
    anyway = msgspec.structs.replace(anyway, anyway=True, backend="mlx")
    assert refit(anyway) == (anyway, ())
    assert refit(anyway, failed=True) == ("reduced", True)
    assert refit(msgspec.structs.replace(anyway, rpc=("gone:1",))) == ("reduced", False)
    assert refit(msgspec.structs.replace(anyway, anyway=False)) == ("reduced", False)


@pytest.fixture
def dry_runs(monkeypatch):
    """Let dry runs answer nothing; return them, and how often each was asked."""
    made = []

    class Dry:
        def __init__(self):
            self.shown, self.n_asked = None, 0
            made.append(self)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def show(self, header):
            self.shown = header

        def ask(self, params):
            self.n_asked += 1
            raise DryRunFailed("nobody answers.")

    monkeypatch.setattr(fallback, "DryRun", Dry)
    return made


def test_a_plan_goes_on_without_a_worker_that_was_lost(ram, dry_runs, monkeypatch):
    looked = []
    monkeypatch.setattr(fallback, "read_model", lambda path: LLAMA)
    monkeypatch.setattr(fallback, "worker_addresses", lambda rpc: ("of", *rpc))
    look = fallback.current_profile
    monkeypatch.setattr(fallback, "current_profile", lambda *which: looked.append(which) or look())
    requested = on_card(rpc=("there:1",), experts_in_ram=2)
    ram[0] = 64 * GIB
    refit(requested)
    assert looked == [(dry_runs[-1], ("of", "there:1"))]
    lost = msgspec.structs.replace(requested, rpc=("gone:1",))
    alone = made_on(machine(64 * GIB), 4096)
    found, told = refit(lost)
    assert looked[1:] == [(dry_runs[-1], ())]
    assert (found.devices, found.split, found.experts_in_ram, found.rpc) == ((), (), 0, ())
    assert (found.memory, found.context, told) == (alone.memory, 4096, ())
    assert dry_runs[-1].shown is LLAMA
    n_asked = dry_runs[-1].n_asked
    assert n_asked
    on_it = with_cards(64, card("CUDA0", 24))
    seeing = plan("a", LLAMA, on_it, PlanRequest(context=4096), projector=projector_file("gemma3"))
    found, _ = refit(msgspec.structs.replace(seeing, rpc=("gone:1",)))
    assert found.projector == seeing.projector
    before, after = ({one.name: one.projector_bytes for one in made.memory} for made in (seeing, found))
    assert before == after
    assert all(after.values())
    ram[0] = alone.total_bytes - 1
    found, told = refit(lost)
    assert (told, found.n_ubatch, found.devices) == (STEPS[:1], 128, ())
    assert dry_runs[-1].n_asked > n_asked


def test_all_that_a_load_takes_counts(ram):
    each = {
        f"{kind}_bytes": 10**n * GIB // 1000
        for n, kind in enumerate(
            ("weights", "cache", "compute", "program", "checkpoint", "projector", "adapter")
        )
    }
    made = msgspec.structs.replace(
        made_on(machine(16 * GIB)), memory=(DeviceMemory(name="RAM", budget_bytes=1, **each),)
    )
    ram[0] = sum(each.values())
    assert not is_short(made)
    ram[0] -= 1
    assert is_short(made)
