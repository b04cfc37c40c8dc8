"""Drafting with the model's own layers (MTP): what it takes, when it pays, and what is said of it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from edgechat import settings
from edgechat.base.errors import DoesNotFit, NotADraft
from edgechat.device.memory import Memory
from edgechat.models.formats.gguf import read_header, read_model
from edgechat.models.local.resolve import entry_of
from edgechat.models.shipped import shipped_header
from edgechat.native import breakdown
from edgechat.native.handles import Context, Model
from edgechat.native.heads import AssistantContext, HeadContext
from edgechat.planner import prepare as planning
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.estimate.dry_run_child import SkeletonLoader
from edgechat.planner.estimate.memory import recurrent_bytes
from edgechat.planner.estimate.speed import Forecast
from edgechat.planner.fallback import reduce_to_fit, step_down
from edgechat.planner.machine import Machine
from edgechat.planner.placement.drafting import ACCEPTED, DRAFTED, HeadedModel, head_costs
from edgechat.planner.placement.model_on_machine import DraftCosts, model_on_machine
from edgechat.planner.plan import as_json
from edgechat.planner.prepare import prepare
from edgechat.planner.request import PlanRequest
from tests.kit import tiny
from tests.kit.heads import gemma4_pair, split_head, with_head
from tests.planner.headers import GIB, cache_of, headed, machine, weights_of
from tests.planner.placement.test_layout import card, with_cards
from tests.planner.planning import plan

MIB = 2**20


def qwen(name="qwen3.5-9b"):
    """Return a hybrid whose recurrent state is large, with a layer that predicts a further token."""
    entry = entry_of(name)
    assert entry is not None
    shipped = shipped_header(entry, "Q4_K_M")
    assert shipped is not None
    return headed(shipped)


def made(gib, request=None, header=None):
    return plan("a", header or qwen(), machine(int(gib * GIB)), request or PlanRequest())


# When it drafts.


def test_it_drafts_where_it_may():
    for wish in ("auto", "mtp"):
        assert head_costs(qwen(), wish) == DraftCosts(DRAFTED, 3, mtp=True)
    for wish in ("none", "ngram", "a-model"):
        assert not head_costs(qwen(), wish).mtp
        assert not made(16, PlanRequest(draft=wish)).mtp


def test_a_hybrid_drafts_by_default_where_memory_is_left():
    rich = made(16)
    assert (rich.mtp, rich.ngrams, rich.n_rs_seq, rich.no_draft) == (True, True, 3, "")
    assert rich.n_outputs_max == rich.n_seq_max + DRAFTED
    assert rich.head is not None
    assert rich.drafters == ("its own layers (MTP)", "n-grams")
    assert any(
        reason.startswith("Drafts: its own layers (MTP), ") and "1.5 times as fast" in reason
        for reason in rich.reasons
    )


def test_its_memory_comes_after_the_comfortable_context():
    poor, alone = made(7), made(7, PlanRequest(draft="none"))
    assert (poor.context, poor.cache_type) == (alone.context, alone.cache_type)
    assert (poor.mtp, poor.head, poor.ngrams, poor.n_rs_seq) == (False, None, False, 0)
    assert poor.total_bytes == alone.total_bytes
    assert (
        "Its own drafting layers (MTP) are not loaded: there is no room for the extra 686 MiB."
        in poor.no_draft
    )
    assert "--draft ngram" in poor.no_draft
    assert poor.no_draft in poor.reasons


def test_some_context_is_given_up_for_much_speed():
    free = next(gib / 20 for gib in range(140, 200) if made(gib / 20).mtp)
    less, alone = made(free), made(free, PlanRequest(draft="none"))
    assert (less.context, less.cache_type) != (alone.context, alone.cache_type)
    assert less.context >= 8192
    (why,) = (reason for reason in less.reasons if reason.startswith("Context"))
    assert "to make room for its own drafting layers (MTP), which should make replies 1.5" in why
    asked = made(free, PlanRequest(context=alone.context, cache_type=alone.cache_type))
    assert (asked.mtp, asked.context) == (False, alone.context)


def test_who_asks_for_it_gets_it_before_context():
    asked = made(7, PlanRequest(draft="mtp"))
    assert asked.mtp
    assert asked.context < made(7).context


def test_it_is_left_out_where_it_is_hardly_faster(monkeypatch):
    """Two rows cost twice as much as one: nothing is won by drafting."""
    seconds = tuple(float(rows) for rows in (1, 2, 4, 8, 16, 64, 512))
    forecast = Forecast(decode=1.0, decode_depth=0.0, prefill=1.0, prefill_depth=0.0, calls=seconds)
    monkeypatch.setattr("edgechat.planner.placement.model_on_machine.forecast", lambda *_args: forecast)
    slow = made(16)
    assert not slow.mtp
    assert slow.no_draft.startswith(
        "Its own drafting layers (MTP) are not loaded: replies would hardly be faster, 1.00 times as fast."
    )
    assert made(16, PlanRequest(draft="mtp")).mtp


def test_the_gain_follows_from_the_forecast(monkeypatch):
    header = qwen()
    model = model_on_machine("a", header, machine(16 * GIB), threads=4, drafting=head_costs(header, "mtp"))
    load = model.load(4096, "f16")
    free = replace(
        load, forecast=Forecast(decode=1, decode_depth=0, prefill=1, prefill_depth=0, calls=(1.0,) * 7)
    )
    made_of_three = 1 + ACCEPTED + ACCEPTED**2 + ACCEPTED**3
    one = made_of_three / HeadedModel(model).expected_gain(free) - 1  # of three snapshots, three drafts
    head, whole = load.params, load.forecast.decode
    assert head.n_rs_seq == 3
    # A layer of 33 and an output matrix that is a tenth of the model.
    assert 0.05 * whole < one / 3 < 0.2 * whole


def test_files_without_the_layer_say_so():
    header = qwen()
    cut = replace(header, tensors=tuple(one for one in header.tensors if "nextn" not in one.name))
    assert "(MTP) are missing from this file." in made(16, header=cut).no_draft
    plain = made(16, header=read_model(tiny()))
    assert (plain.mtp, plain.no_draft) == (False, "")


# What it takes.


@pytest.mark.parametrize("draft", ["none", "mtp"])
@pytest.mark.parametrize("name", ["qwen3.5-9b", "qwen3.6-35b-a3b"])
def test_estimates_are_llama_cpps(name, draft):
    header, profile = qwen(name), machine(40 * GIB)
    request = PlanRequest(context=8192, cache_type="f16", draft=draft)
    guessed = plan("a", header, profile, request)
    with DryRun() as dry:
        exact = plan("a", header, profile, request, Machine(profile, dry=dry).measuring(header))
    assert exact.buffers
    assert guessed.mtp == exact.mtp == (draft == "mtp")
    assert cache_of(guessed) == cache_of(exact)
    assert weights_of(guessed) == pytest.approx(weights_of(exact), abs=MIB)
    assert guessed.total_bytes == pytest.approx(exact.total_bytes, rel=0.01)


def test_it_is_told_what_it_takes():
    request = PlanRequest(context=4096, cache_type="f16")
    with_it = made(32, request)
    alone = made(32, PlanRequest(context=4096, cache_type="f16", draft="none"))
    assert with_it.head is not None
    assert with_it.head.total_bytes == with_it.total_bytes - alone.total_bytes - (
        with_it.checkpoint_bytes - alone.checkpoint_bytes
    )
    header = qwen()
    snapshots = recurrent_bytes(header, 2, 3) - recurrent_bytes(header, 2)
    keys = 2 * 2 * 4 * 256 * 4096
    assert cache_of(with_it) - cache_of(alone) == snapshots + keys
    described = as_json(with_it)
    assert described["mtp"] == {
        "total_bytes": with_it.head.total_bytes,
        "expected_speedup": pytest.approx(with_it.head.gain),
    }
    assert described["drafters"] == list(with_it.drafters)
    assert as_json(alone)["mtp"] is None


def test_plain_decoding_does_not_read_the_layer():
    """With 33 layers of which one drafts a token takes what it takes with 32."""
    entry = entry_of("qwen3.5-9b")
    assert entry is not None
    shipped = shipped_header(entry, "Q4_K_M")
    both = made(32), made(32, header=shipped)
    decode = [one.forecast.decode for one in both if one.forecast]
    assert decode[0] == decode[1]


def test_a_card_holds_it_with_the_output():
    made_here = plan("a", qwen(), with_cards(32, card("A", 12)), PlanRequest(context=8192))
    assert made_here.mtp
    assert made_here.gpu_layers == 34  # with the output
    on_card = next(one for one in made_here.memory if one.name == "A")
    assert on_card.total_bytes <= on_card.budget_bytes


@pytest.mark.slow
@pytest.mark.parametrize("portable", [False, True])
def test_both_ways_of_asking_llama_cpp_agree(portable, tmp_path):
    from edgechat.models.formats.skeleton import write_skeleton
    from edgechat.native.params import LoadParams
    from edgechat.planner.estimate.dry_run import DryRunQuestion

    header = read_model(with_head("qwen35"))
    write_skeleton(header, tmp_path / "a.gguf")
    asker = SkeletonLoader(portable=portable)
    found = {}
    for mtp in (False, True):
        params = LoadParams(context=4096, n_seq_max=2, n_rs_seq=3, mtp=mtp)
        answer = asker.answer(DryRunQuestion(str(tmp_path / "a.gguf"), params))
        assert answer.breakdown is not None, answer.error
        found[mtp] = answer.breakdown
    asker.close()
    layer = sum(one.n_bytes for one in header.tensors if one.name.startswith("blk.4."))
    assert found[True].weights == pytest.approx(header.weights_bytes, abs=1024)
    assert found[False].weights == pytest.approx(header.weights_bytes - layer, abs=1024)
    assert found[True].cache - found[False].cache == pytest.approx(2 * 2 * 2 * 32 * 4096, abs=0.02 * MIB)
    width, rows = 64, 2 + 2 * 512 + 512
    assert found[True].output - found[False].output == 4 * (width * rows + 2 * header.vocab_size)


# Real files.


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGECHAT_HOME", str(tmp_path))


@pytest.mark.slow
def test_a_real_file_is_planned_with_its_layer():
    path = str(with_head("qwen35"))
    made = prepare(path, PlanRequest(draft="mtp"))
    assert made.buffers
    assert (made.mtp, made.ngrams, made.draft) == (True, True, None)
    with pytest.raises(NotADraft, match="no drafting layers") as caught:
        prepare(str(tiny()), PlanRequest(draft="mtp"))
    assert "--draft" in (caught.value.hint or "")
    settings.settings_file().write_text('draft = "mtp"\n')
    assert prepare(path).mtp
    other = prepare(str(tiny()))  # a setting is for all models
    assert (other.mtp, other.ngrams) == (False, True)
    assert "no drafting layers" in other.no_draft


@pytest.mark.slow
def test_no_small_model_is_loaded_beside_it(tmp_path, monkeypatch):
    folder = tmp_path / "data" / "models"
    folder.mkdir(parents=True)
    shutil.copy(with_head("qwen35"), folder / "big.gguf")
    shutil.copy(tiny(), folder / "small.gguf")
    entry = (
        '[[model]]\nname = "{0}"\ndescription = "x"\nlicence = "MIT"\nrepo = "us/{0}"\nfile = "{0}.gguf"\n'
    )
    text = entry.format("big") + 'draft = "small"\n' + entry.format("small")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "models.toml").write_text(text)
    assert prepare("big").draft is not None  # so small a model is no faster with its layer
    monkeypatch.setattr("edgechat.planner.placement.drafting.LEAST_GAIN", 0.0)
    made = prepare("big")
    assert (made.mtp, made.draft, made.no_draft) == (True, None, "")
    named = prepare("big", PlanRequest(draft="small"))
    assert (named.mtp, named.drafters) == (False, ("small", "n-grams"))


@pytest.mark.slow
def test_one_that_is_asked_for_and_does_not_fit(monkeypatch):
    path = str(with_head("qwen35"))
    alone = prepare(path, PlanRequest(context=4096, draft="none"))
    real = planning.current_profile

    def look(*args):
        profile = real(*args)
        return replace(profile, memory=Memory(profile.memory.total, alone.total_bytes))

    monkeypatch.setattr("edgechat.planner.machine.current_profile", look)
    with pytest.raises(DoesNotFit, match=r"MTP\) are not loaded: there is no room for the extra "):
        prepare(path, PlanRequest(context=4096, draft="mtp"))


# In a file of their own.

PAIRS = {
    "qwen35": lambda: split_head("qwen35"),
    "step35": lambda: split_head("step35"),
    "gemma4": gemma4_pair,
}


def laid(kind, folder):
    """Return a model with the file of its drafting layers beside it."""
    target, drafter = PAIRS[kind]()
    shutil.copy(drafter, folder / "mtp-big-Q8_0.gguf")
    return Path(shutil.copy(target, folder / "big-Q4_K_M.gguf"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", PAIRS)
def test_layers_beside_the_file_are_planned(kind, tmp_path):
    path = laid(kind, tmp_path)
    made = prepare(str(path), PlanRequest(draft="mtp", context=2048))
    assert (made.mtp, made.ngrams) == (False, True)
    assert made.head is not None
    assert made.draft is not None
    assert (made.draft.kind, made.draft.mtp, made.draft.n_rs_seq) == ("mtp", True, 0)
    assert (made.draft.model_path, made.draft.context) == (str(tmp_path / "mtp-big-Q8_0.gguf"), made.context)
    assert made.drafters == ("mtp-big-Q8_0.gguf", "n-grams")
    assert made.draft.total_bytes <= made.head.total_bytes
    assert any(
        reason.startswith("Drafts: its own layers (MTP) in mtp-big-Q8_0.gguf") for reason in made.reasons
    )
    assert prepare(str(path), PlanRequest(draft="ngram")).draft is None
    step = step_down(made, read_model(path))
    assert step is not None
    assert (step[0].draft, step[0].head) == (None, None)


@pytest.mark.slow
@pytest.mark.parametrize("kind", PAIRS)
def test_what_they_take_is_what_they_were_planned_for(kind, tmp_path):
    """Of the second model and its context, llama.cpp's own account."""
    path = laid(kind, tmp_path)
    made = prepare(str(path), PlanRequest(draft="mtp", context=2048))
    assert made.draft is not None
    target = Model(path, made)
    context = Context(target, made)
    layers = Model(Path(made.draft.model_path), made.draft)
    assistant = kind == "gemma4"
    head = (
        AssistantContext(layers, made.draft, target, context)
        if assistant
        else HeadContext(layers, made.draft, context)
    )
    real = breakdown.from_map(layers, head)
    for one in (head, layers, context, target):
        one.close()
    weights = read_header(Path(made.draft.model_path)).weights_bytes
    taken = weights + real.cache + real.compute
    assert made.draft.total_bytes == pytest.approx(taken, rel=0.02, abs=4 * MIB)


@pytest.mark.slow
def test_layers_of_another_model_are_told(tmp_path):
    path = laid("qwen35", tmp_path)
    shutil.copy(split_head("step35").drafter, tmp_path / "mtp-big-Q8_0.gguf")
    made = prepare(str(path))
    assert (made.head, made.draft) == (None, None)
    assert any(
        "mtp-big-Q8_0.gguf do not belong to this model: it is for 'step35'" in one for one in made.notes
    )


# What becomes of it.


def test_it_goes_first_where_memory_is_short():
    header, profile = qwen(), machine(16 * GIB)
    full = plan("a", header, profile)
    step = step_down(full, header)
    assert step is not None
    less, why = step
    assert (less.mtp, less.head, less.ngrams, less.n_rs_seq) == (False, None, False, 0)
    assert less.no_draft == why
    fitted, changes = reduce_to_fit(full, header, profile, None, failed=True)
    assert changes == (why,)
    alone = plan("a", header, profile, PlanRequest(draft="none", context=full.context))
    assert weights_of(fitted) == weights_of(alone)
    assert cache_of(fitted) == cache_of(alone)
    assert json.loads(json.dumps(as_json(fitted)))["mtp"] is None
