import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from edgechat import settings
from edgechat.base.errors import DoesNotFit, ModelFileError, ModelNotFound, NotADraft
from edgechat.device.memory import Memory
from edgechat.models.formats.gguf import read_model
from edgechat.models.formats.projector import read_projector
from edgechat.models.formats.skeleton import write_skeleton
from edgechat.native.params import LoadParams
from edgechat.planner import prepare as planning
from edgechat.planner.estimate import dry_run as dry_runs
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.placement.drafting import DRAFTED
from edgechat.planner.prepare import prepare
from edgechat.planner.request import PlanRequest
from tests.kit import HYBRID, Spec, build, corrupt, pair, tiny
from tests.kit.projector_files import projector
from tests.planner.headers import cache_of, dry_run, little

pytestmark = pytest.mark.slow

TRAINED = 4096


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGECHAT_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def model():
    return str(tiny())


@pytest.mark.quick
def test_a_real_file_on_this_machine(model):
    made = prepare(model)
    assert made.backend == "llama.cpp"
    assert (made.model_path, made.context, made.cache_type) == (model, TRAINED, "f16")
    assert 0 < made.total_bytes < made.memory[0].budget_bytes
    assert made.threads >= 1
    assert made.reasons[3] == "Drafts: n-grams of the conversation."
    assert len(made.reasons) == 6


def test_a_projector_beside_the_file_is_in_the_plan(tmp_path):
    path = Path(shutil.copy(tiny(), tmp_path / "a-Q8_0.gguf"))
    blind = prepare(str(path))
    eyes = Path(shutil.copy(projector("gemma4v", image_size=64), tmp_path / "a-mmproj-F16.gguf"))
    seeing = prepare(str(path))
    assert seeing.projector is not None
    assert (seeing.projector.path, seeing.projector.vision) == (str(eyes), True)
    assert seeing.projector.weights_bytes == read_projector(eyes).header.weights_bytes
    assert seeing.projector.image_tokens == 1120
    assert (seeing.n_ubatch, seeing.n_batch) == (1120, 1120)
    assert seeing.buffers, "llama.cpp's allocator was asked with that micro-batch"
    assert seeing.compute_bytes > blind.compute_bytes
    assert sum(memory.projector_bytes for memory in seeing.memory) == seeing.projector.total_bytes
    without = prepare(str(path), PlanRequest(vision=False))
    assert (without.projector, without.no_vision) == (None, "")
    assert without.total_bytes == blind.total_bytes
    shutil.copy(projector(width=128), eyes)
    misfit = prepare(str(path))
    assert misfit.projector is None
    assert misfit.no_vision in misfit.reasons
    assert "128 channels, but the model's have 64" in misfit.no_vision


@pytest.mark.parametrize("kind", ["dense", "windowed", "hybrid", "moe"])
def test_sizes_are_llama_cpps_own(kind):
    path = tiny(kind)
    made = prepare(str(path))
    assert "exact, by llama.cpp's own allocator" in made.reasons[1]
    found = dry_run(read_model(path), [LoadParams.of(made)])[0]
    assert (cache_of(made), made.compute_bytes) == (found.cache, found.compute)
    assert made.buffers == found.buffers


def test_a_hostile_file_is_never_shown(home, monkeypatch):
    shown = []
    monkeypatch.setattr(DryRun, "show", lambda self, header: shown.append(header))
    for path in (corrupt.f64_tensor(home / "a.gguf"), corrupt.truncated(tiny(), home / "b.gguf", keep=-99)):
        with pytest.raises(ModelFileError):
            prepare(str(path))
    assert shown == []


def test_native_code_sees_our_own_writing_only(home, monkeypatch):
    """No text of the file but its name, its licence and what its shape is made of."""
    written = []

    def write(header, path):
        write_skeleton(header, path)
        written.append(path.read_bytes())

    monkeypatch.setattr(dry_runs, "write_skeleton", write)
    made = prepare(
        str(tiny(overrides={"general.description": "SECRET", "tokenizer.chat_template": "SECRET"}))
    )
    assert made.buffers
    assert len(written) == 1
    assert b"SECRET" not in written[0]
    assert b"tokenizer.ggml.tokens" not in written[0]


@pytest.mark.fresh
def test_without_a_dry_run_the_plan_is_estimated(model, monkeypatch):
    monkeypatch.setattr(dry_runs, "MEMORY_LIMIT", 2**20)
    made = prepare(model)
    assert "estimated: llama.cpp's dry run failed: its process took" in made.reasons[1]
    assert made.buffers == ()
    assert made.context == TRAINED


def test_wishes_win_over_settings(model):
    settings.settings_file().write_text("context = 1024\nthreads = 7\n")
    made = prepare(model)
    assert (made.context, made.threads) == (1024, 7)
    made = prepare(model, PlanRequest(context=2048, threads=1))
    assert (made.context, made.threads) == (2048, 1)


def test_a_context_beyond_training_is_cut_and_noted(model):
    settings.settings_file().write_text("context = 100000\n")
    for made in (prepare(model), prepare(model, PlanRequest(context=200000))):
        assert made.context == TRAINED
        assert "00000" in made.notes[0]


def test_a_file_that_is_no_model(home):
    path = home / "a.gguf"
    path.write_bytes(b"<html>")
    with pytest.raises(ModelFileError):
        prepare(str(path))
    with pytest.raises(ModelNotFound):
        prepare(str(home / "b.gguf"))


def test_planning_loads_nothing_heavy(model):
    code = (
        "import sys; from edgechat.planner.prepare import prepare; prepare(sys.argv[1]);"
        "print([m for m in ('numpy', 'llama_cpp', 'huggingface_hub', 'psutil') if m in sys.modules])"
    )
    top = Path(__file__).parents[2]
    answer = subprocess.run(
        [sys.executable, "-c", code, model], capture_output=True, text=True, check=True, cwd=top
    )
    assert answer.stdout.strip() == ("[]" if sys.platform == "linux" else "['psutil']")


# Who drafts.

ENTRIES = """
[[model]]
name = "large"
description = "A model of the tests."
licence = "MIT"
repo = "owner/large-GGUF"
file = "large-{quant}.gguf"
quant = "F32"
draft = "small"

[[model]]
name = "small"
description = "Its draft."
licence = "MIT"
repo = "owner/small-GGUF"
file = "small-{quant}.gguf"
quant = "F32"
no_draft = "It is one."
"""


@pytest.fixture
def large(home):
    """Put the model of a catalogue on this machine, and its draft."""
    (home / "config").mkdir()
    (home / "config/models.toml").write_text(ENTRIES)
    (home / "data/models").mkdir(parents=True)

    def put(draft):
        shutil.copy(tiny(), home / "data/models/large-F32.gguf")
        if draft is not None:
            shutil.copy(draft, home / "data/models/small-F32.gguf")

    return put


Put = Callable[[Path | None], None]


def test_the_catalogues_draft_where_it_is_here(large):
    large(little())
    made = prepare("large")
    assert made.draft is not None
    assert made.draft.model_name == "small"
    assert made.draft.model_path.endswith("small-F32.gguf")
    assert (made.ngrams, made.no_draft, made.draft.context) == (True, "", made.context)
    assert made.reasons[0] == "A model of the tests."
    beside = made.for_draft()
    assert beside is not None
    found = dry_run(read_model(little()), [LoadParams.of(beside)])[0]
    alone = dry_run(read_model(tiny()), [LoadParams.of(made)])[0]
    assert cache_of(made) == found.cache + alone.cache
    assert sum("Drafts: small, " in reason for reason in made.reasons) == 1


def test_why_no_model_drafts(large):
    large(None)
    made = prepare("large")
    assert (made.draft, made.ngrams) == (None, True)
    assert made.no_draft == "Its draft model is not on this machine. To download it: edgechat pull small"
    assert f"Drafts: n-grams of the conversation. {made.no_draft}" in made.reasons
    large(pair(0.05)[1])
    assert "its weights are more than half the size of the model's" in prepare("large").no_draft


def test_the_catalogue_says_why(large, home):
    large(little())
    assert prepare("small").no_draft == "No draft model is known. It is one."
    nobody = prepare("large", PlanRequest(draft="none"))
    assert (nobody.draft, nobody.ngrams, nobody.no_draft) == (
        None,
        False,
        "Drafting is off, as requested.",
    )
    only = prepare("large", PlanRequest(draft="ngram"))
    assert (only.draft, only.ngrams, only.no_draft) == (None, True, "")


def test_a_draft_by_its_path(model):
    target, draft = pair(0.05)
    made = prepare(str(target), PlanRequest(draft=str(draft)))
    assert made.draft is not None
    assert (made.draft.model_path, made.ngrams) == (str(draft), True)
    assert made.n_outputs_max == made.n_seq_max + DRAFTED


def test_what_cannot_draft_is_an_error_for_who_names_it(model, home):
    target, draft = (str(one) for one in pair(0.05))
    known = {
        "the same model": (target, target, NotADraft),
        "not smaller": (draft, target, NotADraft),
        "recurrent": (target, str(build(Spec(shape=HYBRID.sized(n_embd=16, n_ff=32), name="h"))), NotADraft),
        "no file": (target, str(home / "nothing.gguf"), NotADraft),
    }
    for words, (one, other, kind) in known.items():
        with pytest.raises(kind, match=words) as caught:
            prepare(one, PlanRequest(draft=other))
        assert caught.value.hint
        settings.settings_file().write_text(f"draft = {json.dumps(other)}\n")
        made = prepare(one)  # a setting is for all models, and not for each
        assert (made.draft, made.ngrams) == (None, True)
        assert words in made.no_draft
        settings.settings_file().unlink()


def test_a_draft_that_does_not_fit(monkeypatch):
    target, draft = (str(one) for one in pair(0.05))
    alone = prepare(target, PlanRequest(context=4096))
    real = planning.current_profile

    def look(*args):
        profile = real(*args)
        return replace(profile, memory=Memory(profile.memory.total, alone.total_bytes))

    monkeypatch.setattr("edgechat.planner.machine.current_profile", look)
    assert prepare(target, PlanRequest(context=4096)).total_bytes == alone.total_bytes
    with pytest.raises(DoesNotFit, match=r"with draft-.* as its draft model"):
        prepare(target, PlanRequest(context=4096, draft=draft))


def test_settings_say_who_drafts(model):
    target, draft = (str(one) for one in pair(0.05))
    settings.settings_file().write_text(f"draft = {json.dumps(draft)}\n")
    assert prepare(target).draft is not None
    assert prepare(target, PlanRequest(draft="ngram")).draft is None
    settings.settings_file().write_text('draft = "none"\n')
    assert not prepare(target).ngrams
    assert prepare(target, PlanRequest(draft="auto")).ngrams


def test_switched_thinking_has_its_own_sampling(model, home):
    (home / "data" / "models").mkdir(parents=True)
    shutil.copy(model, home / "data" / "models" / "thinker.gguf")
    (home / "config").mkdir()
    (home / "config" / "models.toml").write_text(
        '[[model]]\nname = "thinker"\ndescription = "Thinks."\nlicence = "MIT"\nrepo = "us/thinker"\n'
        'file = "thinker.gguf"\nthinking = "default-on"\n'
        "sampling = {temperature = 0.6, top_k = 20}\nswitched_sampling = {temperature = 0.7}\n"
    )
    (home / "config" / "settings.toml").write_text("[sampling]\ntop_k = 7\n")
    made = prepare("thinker")
    found = {think: made.sampling_for(think).given() for think in (None, True, False)}
    assert found[None] == found[True] == {"temperature": 0.6, "top_k": 7}
    assert found[False] == {"temperature": 0.7, "top_k": 7}
