"""Projectors beside models, in homes laid out as other tools do it: found, verified, removed and imported."""

import os
from pathlib import Path

import pytest

from edgechat.base import paths
from edgechat.models.local.importing import import_model
from edgechat.models.local.inventory import inventory
from edgechat.models.local.resolve import find_models
from edgechat.models.local.upkeep import removal, verify
from tests import homes
from tests.kit import Spec, tiny
from tests.kit.build import write
from tests.kit.projector_files import projector

REPO = "them/Seeing-GGUF"
FILE = "Seeing-Q4_0.gguf"


@pytest.fixture(scope="module")
def model():
    return tiny("dense")


@pytest.fixture(scope="module")
def other():
    return tiny("qwen3")


@pytest.fixture(scope="module")
def eyes():
    return projector()


@pytest.fixture
def user(tmp_path, monkeypatch):
    homes.settle(tmp_path / "user", monkeypatch)
    return tmp_path / "user"


def own(name):
    return paths.data_dir() / "models" / name


def named(name):
    (model,) = [model for model in inventory().models if model.name == name]
    return model


def sight(name):
    found = named(name).found.projector
    return found.path if found is not None else None


def no_progress(_n, _total):
    pass


def test_every_place(user, model, other, eyes):
    homes.place(model, own("mine-Q8_0.gguf"))
    homes.place(model, own("blind-Q8_0.gguf"))
    homes.place(eyes, own("mmproj-mine-F16.gguf"))
    homes.in_hub(user, model, REPO, FILE)
    homes.in_hub(user, eyes, REPO, "mmproj-F16.gguf")
    homes.in_lm_studio(user, model, "lm/Mid-GGUF/Mid-Q6_K.gguf")
    homes.in_lm_studio(user, eyes, "lm/Mid-GGUF/mmproj-model-f16.gguf")
    cache = user / ".cache/llama.cpp"
    homes.place(model, cache / "ggml-org_tiny-GGUF_tiny-Q8_0.gguf")
    homes.place(eyes, cache / "ggml-org_tiny-GGUF_mmproj-model-f16.gguf")
    homes.in_ollama(user, model, "llava:7b", projector=eyes)
    homes.in_ollama(user, other, "qwen3:4b")
    found = {one.name: one.found.projector for one in inventory().models}
    assert set(found) == {
        "guide",
        "mine-Q8_0",
        "blind-Q8_0",
        "Seeing-Q4_0",
        "Mid-Q6_K",
        "ggml-org_tiny-GGUF_tiny-Q8_0",
        "ollama/llava:7b",
        "ollama/qwen3:4b",
    }
    blind = {name for name, eye in found.items() if eye is None}
    assert blind == {"guide", "blind-Q8_0", "ollama/qwen3:4b"}
    for name in set(found) - blind:
        eye = found[name]
        assert eye is not None
        assert eye.path.read_bytes() == eyes.read_bytes(), name
    assert found["ollama/llava:7b"] is not None
    assert found["ollama/llava:7b"].digest == homes.sha256(eyes)
    assert named("Seeing-Q4_0").size == model.stat().st_size


def test_beside_a_split_model_and_a_file_anywhere(user, model, eyes, tmp_path):
    folder = user / ".lmstudio/models/a/b/Q8_0"
    folder.mkdir(parents=True)
    write(Spec(), folder / "big-Q8_0.gguf", split_max_tensors=10)
    beside = homes.place(eyes, folder.parent / "mmproj-F16.gguf")
    assert sight("big-Q8_0") == beside
    file = homes.place(model, tmp_path / "downloads" / "a-Q4_0.gguf")
    homes.place(model, tmp_path / "downloads" / "b-Q4_0.gguf")
    near = homes.place(eyes, tmp_path / "downloads" / "a-mmproj-F16.gguf")
    found = find_models(str(file))[0].found.projector
    assert found is not None
    assert found.path == near
    assert find_models(str(file.with_name("b-Q4_0.gguf")))[0].found.projector is None


def test_an_ollama_projector_that_is_gone(user, model, eyes):
    homes.in_ollama(user, model, "llava:7b", projector=eyes)
    (user / ".ollama/models/blobs" / f"sha256-{homes.sha256(eyes)}").unlink()
    assert sight("ollama/llava:7b") is None


def test_it_is_verified_with_its_model(user, model, eyes):
    homes.in_hub(user, model, REPO, FILE)
    link = homes.in_hub(user, eyes, REPO, "mmproj-F16.gguf")
    seen = []
    found = verify(named("Seeing-Q4_0"), seen.append)
    assert (found.hashed, found.damage) == (True, "")
    assert seen[-1] == model.stat().st_size + eyes.stat().st_size
    blob = Path(os.path.realpath(link))
    blob.write_bytes(eyes.read_bytes()[:-1] + b"?")
    assert "The hash of mmproj-F16.gguf" in verify(named("Seeing-Q4_0")).damage
    blob.write_bytes(eyes.read_bytes()[:-1])
    assert "truncated" in verify(named("Seeing-Q4_0")).damage


@pytest.mark.parametrize("in_hub", [True, False])
def test_it_goes_with_the_last_model_that_uses_it(user, model, other, eyes, in_hub):
    files = {"Seeing-Q4_0.gguf": model, "Seeing-Q8_0.gguf": other, "mmproj-Seeing-F16.gguf": eyes}
    here = {}
    for name, source in files.items():
        here[name] = homes.in_hub(user, source, REPO, name) if in_hub else homes.place(source, own(name))
    first = removal(named("Seeing-Q4_0"))
    assert first.files == (here["Seeing-Q4_0.gguf"],)
    first.run()
    assert here["mmproj-Seeing-F16.gguf"].exists()
    last = removal(named("Seeing-Q8_0"))
    assert set(last.files) == {here["Seeing-Q8_0.gguf"], here["mmproj-Seeing-F16.gguf"]}
    assert last.frees == other.stat().st_size + eyes.stat().st_size
    last.run()
    assert not any(path.exists() for path in here.values())


def test_it_is_imported_along(user, model, other, eyes, tmp_path):
    file = homes.place(model, tmp_path / "downloads" / "a-Q4_0.gguf")
    homes.place(other, tmp_path / "downloads" / "a-Q8_0.gguf")
    near = homes.place(eyes, tmp_path / "downloads" / "mmproj-F16.gguf")
    import_model(str(file), name="mine-Q4_0", move=True, on_progress=no_progress)
    assert not file.exists()
    assert near.exists()  # the other one needs it
    assert sight("mine-Q4_0") == own("mmproj-mine-F16.gguf")
    homes.place(model, own("stranger-Q4_0.gguf"))
    assert sight("mine-Q4_0") == own("mmproj-mine-F16.gguf")
    assert sight("stranger-Q4_0") is None
    import_model(str(file.with_name("a-Q8_0.gguf")), name="mine-Q8_0", move=True, on_progress=no_progress)
    assert sight("mine-Q8_0") == own("mmproj-mine-F16.gguf")
    assert near.exists()  # the same file was there already
    moved = homes.place(model, tmp_path / "others" / "b-Q4_0.gguf")
    homes.place(eyes, moved.with_name("mmproj-F16.gguf"))
    import_model(str(moved), move=True, on_progress=no_progress)
    assert list(moved.parent.iterdir()) == []
    assert sight("b-Q4_0") == own("mmproj-b-F16.gguf")
