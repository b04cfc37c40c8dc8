"""Who drafts, what that takes, and what a plan says of it."""

from dataclasses import replace

import pytest

from edgechat.base.errors import DoesNotFit
from edgechat.models.formats.gguf import read_model
from edgechat.native.params import LoadParams
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.estimate.memory import checkpoint_bytes, recurrent_bytes
from edgechat.planner.fallback import reduce_to_fit, step_down
from edgechat.planner.machine import Machine
from edgechat.planner.placement.drafting import DRAFTED, draft_costs, is_much_smaller, misfit
from edgechat.planner.placement.model_on_machine import DraftCosts
from edgechat.planner.plan import as_json
from edgechat.planner.request import PlanRequest
from tests.kit import DENSE, Spec, build, tiny
from tests.kit.published import published
from tests.planner.headers import GIB, LLAMA_8B, QWEN35_4B, cache_of, dry_run, header, machine
from tests.planner.placement.test_fallback import silent
from tests.planner.placement.test_layout import card, with_cards
from tests.planner.planning import DraftCandidate, plan

SMALL = {**LLAMA_8B, "block_count": 4, "embedding_length": 1024, "feed_forward_length": 2048}
HYBRID = header(QWEN35_4B, arch="qwen35")
"""Its state is large."""


def drafting_model(weights=GIB, *, asked=True):
    return DraftCandidate("small", header(SMALL, weights=weights), requested=asked)


# Who may draft.


def test_plain_layers_cost_rows_only():
    for wish in ("auto", "ngram", "a-model"):
        assert draft_costs(header(LLAMA_8B), wish) == DraftCosts(DRAFTED)
    assert draft_costs(header(LLAMA_8B), "none").drafted == 0


def test_a_small_state_is_copied_a_large_one_only_where_it_is_asked_for():
    small = read_model(tiny("hybrid"))
    assert draft_costs(small, "auto") == draft_costs(small, "ngram") == DraftCosts(DRAFTED, 8)
    assert draft_costs(HYBRID, "ngram") == draft_costs(HYBRID, "a-model") == DraftCosts(DRAFTED, 3)
    nobody = draft_costs(HYBRID, "auto")
    assert (nobody.drafted, nobody.n_rs_seq) == (0, 0)
    assert "needed, 50 MiB each. To use them: --draft ngram" in nobody.why_not


@pytest.mark.parametrize("arch", ["falcon-h1", "qwen3next", "mamba2", "rwkv7"])
def test_states_that_cannot_go_back(arch):
    one = header(QWEN35_4B, arch=arch)
    for wish in ("auto", "ngram", "a-model"):
        assert draft_costs(one, wish).drafted == 0
        assert "cannot undo a rejected draft" in draft_costs(one, wish).why_not


def test_llama_cpp_counts_the_same_architectures():
    """llama.cpp sets n_rs_seq to 0 where it has no snapshots, and so takes no memory for them."""
    for kind, arch in (("hybrid", "lfm2"), ("dense", "llama")):
        one = read_model(tiny(kind))
        assert one.architecture == arch
        few, many = dry_run(one, [LoadParams(context=256), LoadParams(context=256, n_rs_seq=8)])
        assert (many.cache > few.cache) == (draft_costs(one, "auto").n_rs_seq > 0)


def said(one, **more):
    found = {f"tokenizer.ggml.{key}": value for key, value in more.items()}
    return replace(one, metadata={**one.metadata, **found})


def test_which_model_fits_which():
    target, small = header(LLAMA_8B), header(SMALL, weights=GIB)
    assert misfit(target, small) == ""
    assert "not smaller" in misfit(target, target)
    assert "not smaller" in misfit(small, target)
    hybrid = header(QWEN35_4B, weights=GIB, arch="qwen35", vocab_size=LLAMA_8B["vocab_size"])
    assert "recurrent" in misfit(target, hybrid)
    more = header(SMALL, weights=GIB, vocab_size=LLAMA_8B["vocab_size"] + 128)
    assert misfit(target, more) == ""
    too_many = header(SMALL, weights=GIB, vocab_size=LLAMA_8B["vocab_size"] + 129)
    assert misfit(target, too_many) == "its vocabulary has 128385 tokens, not 128256"


def test_vocabularies_as_far_as_headers_tell():
    target, small = header(LLAMA_8B), header(SMALL, weights=GIB)
    assert "a different type" in misfit(said(target, model="gpt2"), said(small, model="llama"))
    for mine, theirs in (("gpt2", "gemma4"), ("gpt2", "none"), ("none", "llama")):
        assert misfit(said(target, model=mine), said(small, model=theirs)) == ""
    bos = said(target, add_bos_token=True, bos_token_id=1)
    assert misfit(bos, said(small, add_bos_token=True, bos_token_id=1)) == ""
    assert misfit(bos, small) == ""
    assert "BOS token" in misfit(bos, said(small, add_bos_token=True, bos_token_id=2))
    assert "BOS token" in misfit(bos, said(small, add_bos_token=False))
    unused = said(target, add_eos_token=False, eos_token_id=1)
    assert misfit(unused, said(small, add_eos_token=False, eos_token_id=2)) == ""
    assert "EOS token" in misfit(unused, said(small, add_eos_token=True, eos_token_id=1))


def test_much_smaller_is_less_than_half():
    target = header(LLAMA_8B, weights=4 * GIB)
    assert not is_much_smaller(header(SMALL, weights=2 * GIB), target)
    assert is_much_smaller(header(SMALL, weights=2 * GIB - 1), target)


# What that takes.


def test_both_are_in_one_budget():
    target = header(LLAMA_8B)
    request = PlanRequest(context=8192, cache_type="f16")
    alone = plan("a", target, machine(64 * GIB), request)
    both = plan("a", target, machine(64 * GIB), request, draft=drafting_model())
    assert both.draft is not None
    assert both.draft.context == both.context == 8192
    assert both.draft.total_bytes > GIB
    assert both.total_bytes == alone.total_bytes + both.draft.total_bytes
    free = both.total_bytes
    assert plan("a", target, machine(free), request, draft=drafting_model()).draft == both.draft
    with pytest.raises(DoesNotFit, match="a with small as its draft model with a context of 8192"):
        plan("a", target, machine(free - 1), request, draft=drafting_model())


def test_rows_for_all_drafted_tokens_of_a_batch():
    request = PlanRequest(context=8192)
    made = plan("a", header(LLAMA_8B), machine(64 * GIB), request)
    plain = plan("a", header(LLAMA_8B), machine(64 * GIB), PlanRequest(context=8192, draft="none"))
    assert (made.n_outputs_max, plain.n_outputs_max) == (8 + DRAFTED, 8)
    assert made.total_bytes - plain.total_bytes == DRAFTED * 4 * LLAMA_8B["vocab_size"]
    assert (made.ngrams, plain.ngrams) == (True, False)
    assert (made.no_draft, plain.no_draft) == ("", "Drafting is off, as requested.")


def test_the_cache_makes_room_for_a_draft_that_was_asked_for():
    profile = machine(int(7.6 * GIB))
    alone = plan("a", header(LLAMA_8B), profile)
    both = plan("a", header(LLAMA_8B), profile, draft=drafting_model())
    assert (alone.context, alone.cache_type) == (16384, "f16")
    assert (both.context, both.cache_type) == (16384, "q8_0")


@pytest.mark.parametrize("free", [7.6, 7.8, 8.0, 16.0])
def test_one_that_was_not_takes_only_what_is_left(free):
    profile = machine(int(free * GIB))
    alone = plan("a", header(LLAMA_8B), profile)
    both = plan("a", header(LLAMA_8B), profile, draft=drafting_model(asked=False))
    assert (both.context, both.cache_type, both.split) == (alone.context, alone.cache_type, alone.split)
    assert (both.draft is None) == (free < 16)
    assert both.ngrams
    assert both.no_draft == (
        "The draft model small does not fit beside the model." if both.draft is None else ""
    )
    assert both.no_draft in " ".join(both.reasons)
    assert both.total_bytes <= 0.9 * free * GIB or both.draft is None


def test_snapshots_are_paid_for():
    request = PlanRequest(context=4096, draft="small")
    made = plan("a", HYBRID, machine(64 * GIB), request, draft=drafting_model())
    alone = plan("a", HYBRID, machine(64 * GIB), PlanRequest(context=4096))
    assert (made.n_outputs_max, made.n_rs_seq) == (2 + DRAFTED, 3)
    assert (alone.n_outputs_max, alone.n_rs_seq, alone.ngrams) == (2, 0, False)
    assert made.draft is not None
    snapshots = recurrent_bytes(HYBRID, 2, 3) - recurrent_bytes(HYBRID, 2)
    own = cache_of(made) - cache_of(alone)
    alike = PlanRequest(context=4096, cache_type=made.draft.cache_type)
    draft_cache = cache_of(plan("d", drafting_model().header, machine(64 * GIB), alike))
    assert own == snapshots + draft_cache


def test_where_nobody_can_draft_no_model_is_planned_for_it():
    made = plan("a", HYBRID, machine(64 * GIB), draft=drafting_model())
    assert made == plan("a", HYBRID, machine(64 * GIB))
    assert made.no_draft in made.reasons


def test_a_card_holds_the_draft_and_what_is_left_of_the_target():
    target = header(LLAMA_8B, weights=8 * GIB)
    profile = with_cards(64, card("A", 6))
    request = PlanRequest(context=4096, cache_type="f16")
    made = plan("a", target, profile, request, draft=drafting_model())
    assert made.draft is not None
    assert made.draft.devices == ("A",)
    on_card = next(one for one in made.memory if one.name == "A")
    assert GIB < on_card.total_bytes <= on_card.budget_bytes


def test_one_that_was_not_asked_for_pushes_no_layer_off_a_card():
    target, profile = published("llama-3.1-8b"), with_cards(64, card("A", 4))
    request = PlanRequest(context=4096, cache_type="f16")
    alone = plan("a", target, profile, request)
    asked = plan("a", target, profile, request, draft=drafting_model())
    meek = plan("a", target, profile, request, draft=drafting_model(asked=False))
    assert meek.gpu_layers == alone.gpu_layers > asked.gpu_layers
    assert meek.draft is not None
    assert asked.draft is not None
    assert meek.draft.gpu_layers < asked.draft.gpu_layers


def test_llama_cpps_own_word_counts_for_both():
    target, small = read_model(tiny("dense")), read_model(build(Spec(shape=DENSE.sized(n_layers=1))))
    with DryRun() as dry:
        on = Machine(machine(8 * GIB), dry=dry)
        request = PlanRequest(context=512)
        draft = DraftCandidate("small", small, on.measuring(small))
        both = plan("a", target, on.profile, request, on.measuring(target), draft=draft)
        alone = plan("d", small, on.profile, PlanRequest(context=512, cache_type="f16"), on.measuring(small))
    assert both.buffers
    assert both.draft is not None
    assert both.draft.total_bytes - alone.total_bytes < 0  # one process for both
    assert both.memory[0].cache_bytes == cache_of(both)
    assert cache_of(both) > cache_of(alone)


@pytest.mark.parametrize("kind", ["dense", "windowed", "hybrid", "moe"])
def test_estimates_of_rows_and_snapshots_are_llama_cpps(kind):
    """What drafts add to a plan, by formula and by llama.cpp's own account."""
    one = read_model(tiny(kind))
    profile = machine(8 * GIB)
    request = {name: PlanRequest(context=512, cache_type="f16", draft=name) for name in ("none", "ngram")}
    guessed = {name: plan("a", one, profile, wish) for name, wish in request.items()}
    with DryRun() as dry:
        on = Machine(profile, dry=dry)
        exact = {name: plan("a", one, profile, wish, on.measuring(one)) for name, wish in request.items()}
    for size in (cache_of, lambda made: made.total_bytes):
        more, known = (size(found["ngram"]) - size(found["none"]) for found in (guessed, exact))
        assert more == pytest.approx(known, abs=1 << 20)


# What is said of it, and what becomes of it.


def test_programs_are_told_of_it():
    made = as_json(plan("a", header(LLAMA_8B), machine(64 * GIB), draft=drafting_model()))
    assert set(made["draft"]) == {"model", "kind", "path", "quant", "file_bytes", "context", "total_bytes"}
    assert (made["ngrams"], made["no_draft"]) == (True, None)
    alone = as_json(plan("a", header(LLAMA_8B), machine(64 * GIB), PlanRequest(draft="none")))
    assert (alone["draft"], alone["ngrams"]) == (None, False)
    assert "as requested" in alone["no_draft"]


def test_people_are_told_of_it():
    def line(**request):
        draft = drafting_model() if request.get("draft") == "small" else None
        made = plan(
            "a", header(LLAMA_8B), machine(64 * GIB), PlanRequest(draft=request.get("draft")), draft=draft
        )
        return made.reasons[3]

    assert line() == "Drafts: n-grams of the conversation."
    assert line(draft="none") == "Drafting is off, as requested."
    assert line(draft="small").startswith("Drafts: small, 1.")
    assert line(draft="small").endswith(" GiB, and n-grams of the conversation.")


def test_the_draft_is_the_first_to_go_and_n_grams_stay():
    request = PlanRequest(context=4096, draft="small")
    both = plan("a", HYBRID, machine(64 * GIB), request, draft=drafting_model())
    step = step_down(both, HYBRID)
    assert step is not None
    params, why = step
    assert (params.draft, params.n_outputs_max, params.n_rs_seq) == (None, 2 + DRAFTED, 3)
    assert params.ngrams
    assert params.no_draft == why
    assert "small" in why
    alone = plan("a", HYBRID, machine(64 * GIB), PlanRequest(context=4096, draft="ngram"))
    left, told = reduce_to_fit(both, HYBRID, machine(alone.total_bytes), silent, failed=False)
    assert told == (why,)
    assert left.draft is None
    assert left.total_bytes == alone.total_bytes


def test_checkpoints_go_next_but_for_one():
    both = plan(
        "a", HYBRID, machine(64 * GIB), PlanRequest(context=4096, draft="small"), draft=drafting_model()
    )
    alone, _ = reduce_to_fit(both, HYBRID, machine(64 * GIB), silent, failed=True)
    size = checkpoint_bytes(HYBRID, alone)
    assert alone.checkpoint_bytes == both.checkpoint_bytes > size > 0
    left, told = reduce_to_fit(both, HYBRID, machine(alone.total_bytes - 1), silent, failed=False)
    assert len(told) == 2
    assert "edits" in told[1]
    assert left.checkpoint_bytes == left.memory[0].checkpoint_bytes == size
    assert alone.total_bytes - left.total_bytes == alone.checkpoint_bytes - size
    least = reduce_to_fit(left, HYBRID, machine(left.total_bytes - 1), silent, failed=False)[0]
    assert (least.checkpoint_bytes, least.context, least.n_ubatch) == (size, 4096, 128)
