from __future__ import annotations

import pytest

from edgechat.errors import DoesNotFit
from edgechat.models.gguf import read_model
from edgechat.planner.choose import Draft, plan
from edgechat.planner.chooser import DRAFTED
from edgechat.planner.dryrun import DryRun
from edgechat.planner.ladder import descend, step_down
from edgechat.planner.machine import Machine
from edgechat.planner.memory import recurrent_bytes
from edgechat.planner.plan import as_json
from edgechat.planner.wishes import Wishes
from tests.kit import DENSE, Spec, build, tiny
from tests.planner.headers import GIB, LLAMA_8B, QWEN35_4B, header, machine
from tests.planner.test_ladder import silent
from tests.planner.test_layout import card, with_cards

SMALL = {**LLAMA_8B, "block_count": 4, "embedding_length": 1024, "feed_forward_length": 2048}


def drafting(weights: int = GIB) -> Draft:
    return Draft("small", header(SMALL, weights=weights))


def test_both_are_in_one_budget() -> None:
    target = header(LLAMA_8B)
    wishes = Wishes(context=8192, cache_type="f16")
    alone = plan("a", target, machine(64 * GIB), wishes)
    both = plan("a", target, machine(64 * GIB), wishes, draft=drafting())
    assert both.draft is not None
    assert both.draft.context == both.context == 8192
    assert both.draft.total_bytes > GIB
    rows = 8 * DRAFTED * 4 * LLAMA_8B["vocab_size"]  # more sequences x drafted tokens x F32 x vocabulary
    assert both.total_bytes == alone.total_bytes + both.draft.total_bytes + rows
    free = both.total_bytes
    assert plan("a", target, machine(free), wishes, draft=drafting()).draft == both.draft
    with pytest.raises(DoesNotFit):
        plan("a", target, machine(free - 1), wishes, draft=drafting())


def test_the_cache_makes_room_for_a_draft() -> None:
    profile = machine(int(7.6 * GIB))
    alone = plan("a", header(LLAMA_8B), profile)
    both = plan("a", header(LLAMA_8B), profile, draft=drafting())
    assert (alone.context, alone.cache_type) == (16384, "f16")
    assert (both.context, both.cache_type) == (16384, "q8_0")


def test_rows_and_snapshots_are_paid_for() -> None:
    hybrid = header(QWEN35_4B, arch="qwen35")
    made = plan("a", hybrid, machine(64 * GIB), Wishes(context=4096), draft=drafting())
    alone = plan("a", hybrid, machine(64 * GIB), Wishes(context=4096))
    assert (made.n_outputs_max, made.n_rs_seq) == (2 * (1 + DRAFTED), DRAFTED)
    assert made.draft is not None
    snapshots = recurrent_bytes(hybrid, 2, DRAFTED) - recurrent_bytes(hybrid, 2)
    own = made.cache_bytes - alone.cache_bytes
    draft_cache = plan("d", drafting().header, machine(64 * GIB), Wishes(context=4096)).cache_bytes
    assert own == snapshots + draft_cache


def test_a_card_holds_the_draft_and_what_is_left_of_the_target() -> None:
    target = header(LLAMA_8B, weights=8 * GIB)
    profile = with_cards(64, card("A", 6))
    made = plan("a", target, profile, Wishes(context=4096, cache_type="f16"), draft=drafting())
    assert made.draft is not None
    assert made.draft.devices == ("A",)
    on_card = next(one for one in made.memory if one.name == "A")
    assert GIB < on_card.total_bytes <= on_card.budget_bytes


def test_llama_cpps_own_word_counts_for_both() -> None:
    target, small = read_model(tiny("dense")), read_model(build(Spec(shape=DENSE.sized(n_layers=1))))
    with DryRun() as dry:
        on = Machine(machine(8 * GIB), dry=dry)
        wishes = Wishes(context=512)
        draft = Draft("small", small, on.measuring(small))
        both = plan("a", target, on.profile, wishes, on.measuring(target), draft=draft)
        alone = plan("d", small, on.profile, Wishes(context=512, cache_type="f16"), on.measuring(small))
    assert both.buffers
    assert both.draft is not None
    assert both.draft.total_bytes - alone.total_bytes < 0  # one process for both
    assert both.memory[0].cache_bytes == both.cache_bytes
    assert both.cache_bytes > alone.cache_bytes


def test_programs_are_told_of_it() -> None:
    made = plan("a", header(LLAMA_8B), machine(64 * GIB), draft=drafting())
    found = as_json(made)["draft"]
    assert set(found) == {"model", "path", "quant", "file_bytes", "context", "total_bytes"}
    assert as_json(plan("a", header(LLAMA_8B), machine(64 * GIB)))["draft"] is None


def test_the_draft_is_the_first_to_go() -> None:
    target = header(QWEN35_4B, arch="qwen35")
    both = plan("a", target, machine(64 * GIB), Wishes(context=4096), draft=drafting())
    step = step_down(both, target)
    assert step is not None
    params, why = step
    assert (params.draft, params.n_outputs_max, params.n_rs_seq) == (None, 2, 0)
    assert "small" in why
    alone = plan("a", target, machine(64 * GIB), Wishes(context=4096))
    left, told = descend(both, target, machine(alone.total_bytes), silent, failed=False)
    assert told == (why,)
    assert left.total_bytes == alone.total_bytes
