from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgechat import settings
from edgechat.errors import ModelFileError, ModelNotFound
from edgechat.models.gguf import read_model
from edgechat.models.header import GgufHeader
from edgechat.models.skeleton import write_skeleton
from edgechat.native.params import LoadParams
from edgechat.planner import dryrun
from edgechat.planner.dryrun import DryRun, dry_run
from edgechat.planner.prepare import prepare
from edgechat.planner.wishes import Wishes
from tests.kit import corrupt
from tests.kit.build import tiny

TRAINED = 4096


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGECHAT_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def model() -> str:
    return str(tiny())


def test_a_real_file_on_this_machine(model: str) -> None:
    made = prepare(model)
    assert made.backend == "llama.cpp"
    assert (made.model_path, made.context, made.cache_type) == (model, TRAINED, "f16")
    assert 0 < made.total_bytes < made.memory[0].budget_bytes
    assert made.threads >= 1
    assert made.reasons[3] == "Drafts: n-grams of the conversation."
    assert len(made.reasons) == 6


@pytest.mark.parametrize("kind", ["dense", "windowed", "hybrid", "moe"])
def test_sizes_are_llama_cpps_own(kind: str) -> None:
    path = tiny(kind)
    made = prepare(str(path))
    assert "exact, by llama.cpp's own allocator" in made.reasons[1]
    found = dry_run(read_model(path), [LoadParams.of(made)])[0]
    assert (made.cache_bytes, made.compute_bytes) == (found.cache, found.compute)
    assert made.buffers == found.buffers


def test_a_hostile_file_is_never_shown(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[GgufHeader] = []
    monkeypatch.setattr(DryRun, "show", lambda self, header: shown.append(header))
    for path in (corrupt.f64_tensor(home / "a.gguf"), corrupt.truncated(tiny(), home / "b.gguf", keep=-99)):
        with pytest.raises(ModelFileError):
            prepare(str(path))
    assert shown == []


def test_native_code_sees_our_own_writing_only(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No text of the file but its name, its licence and what its shape is made of."""
    written: list[bytes] = []

    def write(header: GgufHeader, path: Path) -> None:
        write_skeleton(header, path)
        written.append(path.read_bytes())

    monkeypatch.setattr(dryrun, "write_skeleton", write)
    made = prepare(
        str(tiny(overrides={"general.description": "SECRET", "tokenizer.chat_template": "SECRET"}))
    )
    assert made.buffers
    assert len(written) == 1
    assert b"SECRET" not in written[0]
    assert b"tokenizer.ggml.tokens" not in written[0]


def test_without_a_dry_run_the_plan_is_estimated(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dryrun, "MEMORY_LIMIT", 2**20)
    made = prepare(model)
    assert "estimated: llama.cpp's dry run gave no answer: its process took" in made.reasons[1]
    assert made.buffers == ()
    assert made.context == TRAINED


def test_wishes_win_over_settings(model: str) -> None:
    settings.settings_file().write_text("context = 1024\nthreads = 7\n")
    made = prepare(model)
    assert (made.context, made.threads) == (1024, 7)
    made = prepare(model, Wishes(context=2048, threads=1))
    assert (made.context, made.threads) == (2048, 1)


def test_a_context_beyond_training_is_cut_and_noted(model: str) -> None:
    settings.settings_file().write_text("context = 100000\n")
    for made in (prepare(model), prepare(model, Wishes(context=200000))):
        assert made.context == TRAINED
        assert "00000" in made.notes[0]


def test_a_file_that_is_no_model(home: Path) -> None:
    path = home / "a.gguf"
    path.write_bytes(b"<html>")
    with pytest.raises(ModelFileError):
        prepare(str(path))
    with pytest.raises(ModelNotFound):
        prepare(str(home / "b.gguf"))


def test_a_script_needs_no_model(home: Path) -> None:
    path = home / "talk.scripted.json"
    path.write_text("{}")
    made = prepare(str(path))
    assert (made.backend, made.context, made.threads, made.model_path) == ("scripted", 4096, 1, str(path))
    assert prepare(str(path), Wishes(context=100)).context == 100


def test_planning_loads_nothing_heavy(model: str) -> None:
    code = (
        "import sys; from edgechat.planner.prepare import prepare; prepare(sys.argv[1]);"
        "print([m for m in ('numpy', 'llama_cpp', 'huggingface_hub', 'psutil') if m in sys.modules])"
    )
    top = Path(__file__).parents[2]
    answer = subprocess.run(
        [sys.executable, "-c", code, model], capture_output=True, text=True, check=True, cwd=top
    )
    assert answer.stdout.strip() == ("[]" if sys.platform == "linux" else "['psutil']")
