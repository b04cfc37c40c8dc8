"""MLX models on this machine: found wherever they are, named, resolved, verified, imported and removed."""

import json
import os
import shutil

import pytest

from edgechat.base.errors import ModelFileError, ModelNotFound, NotImported, NotRemovable
from edgechat.models.catalogue import catalogue
from edgechat.models.formats.mlx.contents import read_model
from edgechat.models.local import locations
from edgechat.models.local.files import hash_for
from edgechat.models.local.importing import import_model
from edgechat.models.local.inventory import inventory
from edgechat.models.local.locations import Place
from edgechat.models.local.resolve import (
    entry_of,
    find_models,
    local_file,
    local_files,
    local_models,
    resolve,
)
from edgechat.models.local.stores import fingerprint_of, found_at, is_model_folder
from edgechat.models.local.upkeep import removal, single_model, verify
from tests import homes
from tests.kit import tiny
from tests.models.mlx_folders import mlx_files, written

QWEN = "mlx-community/Qwen3-8B-4bit"
TINY = "owner/Tiny-8bit"


@pytest.fixture(autouse=True)
def user(tmp_path, monkeypatch):
    homes.settle(tmp_path / "user", monkeypatch)
    return tmp_path / "user"


def in_hub(user, repo, files, commit=homes.COMMIT):
    """Leave a model as huggingface_hub does; return its snapshot."""
    folder = user / ".cache/huggingface/hub" / ("models--" + repo.replace("/", "--"))
    snapshot = folder / "snapshots" / commit
    for name, data in files.items():
        large = name.endswith(".safetensors")
        made = hash_for("0" * (64 if large else 40), len(data))
        made.update(data)
        written(folder / "blobs", {made.hexdigest(): data})
        link = snapshot.joinpath(*name.split("/"))
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(folder / "blobs" / made.hexdigest(), link.parent))
    written(folder, {"refs/main": commit.encode()})
    return snapshot


def mlx_models():
    return {one.name: one for one in inventory().models if one.found.format == "mlx"}


def test_everywhere_they_are_kept(user):
    written(locations.own_folder() / "mine", mlx_files(seed=1))
    in_hub(user, TINY, mlx_files(bits=8, seed=2) | {"README.md": b"#"})
    written(user / ".lmstudio/models/maker/Theirs-MLX-6bit", mlx_files(bits=6, seed=3))
    found = mlx_models()
    assert {name: one.place for name, one in found.items()} == {
        "mine": Place.OWN,
        "Tiny-8bit": Place.HUB,
        "Theirs-MLX-6bit": Place.LM_STUDIO,
    }
    assert [one.quant for one in found.values()] == ["4bit", "8bit", "6bit"]
    assert [one.full_name for one in found.values()] == [
        "edgechat/mine",
        TINY,
        "lmstudio/maker/Theirs-MLX-6bit",
    ]
    for name, one in found.items():
        header = read_model(one.path)
        assert header.quant == one.quant
        assert one.size == sum(file.path.stat().st_size for file in one.found.files)
        for said in (name, one.full_name, str(one.path)):
            assert resolve(said).path == one.path, said
            assert [every.path for every in local_models(said)] == [one.path]


def test_what_is_no_language_model_is_not_listed(user):
    def left(name, **config):
        files = mlx_files(bits=None)
        said = json.loads(files["config.json"]) | config
        written(locations.own_folder() / name, files | {"config.json": json.dumps(said).encode()})

    left("plain")
    left("bert", architectures=["BertModel"])
    left("clip", architectures=["CLIPModel"], text_config={"model_type": "clip_text"})
    left("t5", architectures=["T5ForConditionalGeneration"])
    left("gptq", quantization_config={"quant_method": "gptq", "bits": 4})
    left("program", model_file="a.py")
    written(locations.own_folder() / "damaged", mlx_files() | {"config.json": b"{"})
    written(locations.own_folder() / "half", {"config.json": mlx_files()["config.json"]})
    assert list(mlx_models()) == ["plain"]
    assert mlx_models()["plain"].quant == "bf16"
    # Who names one is told why not.
    for name, why in (("gptq", "'gptq'"), ("bert", "not a language model: 'BertModel'"), ("t5", "'T5For")):
        with pytest.raises(ModelFileError, match=why):
            read_model(resolve(str(locations.own_folder() / name)).path)


def test_a_link_out_of_the_cache_is_not_followed(user):
    outside = written(user / "private", mlx_files())
    snapshot = in_hub(user, TINY, mlx_files(bits=8))
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(outside / "config.json")
    assert not mlx_models()


def test_a_model_of_the_catalogue(user):
    entry = entry_of("qwen3-8b")
    assert entry is not None
    snapshot = in_hub(user, QWEN, mlx_files())
    (found,) = inventory().of(entry)
    assert (found.name, found.quant, found.path) == ("qwen3-8b", "4bit", snapshot)
    assert local_file(entry) == resolve("qwen3-8b").path == resolve("qwen3-8b:4bit").path == snapshot
    gguf = homes.in_hub(user, tiny("qwen3"), entry.repo or "", entry.file_for("Q4_K_M"))
    assert local_files(entry) == {"Q4_K_M": gguf, "4bit": snapshot}
    assert local_file(entry) == gguf
    assert {one.name for one in local_models("qwen3-8b")} == {"qwen3-8b:Q4_K_M", "qwen3-8b:4bit"}
    assert [one.path for one in local_models(QWEN)] == [snapshot]
    assert [one.path for one in local_models(f"{QWEN}:4BIT")] == [snapshot]
    link = f"https://huggingface.co/{QWEN}/blob/main/"
    assert [one.path for one in local_models(f"{link}config.json")] == [snapshot]
    assert local_models(f"{link}other.gguf") == []


@pytest.mark.parametrize("folder", ["mlx-community/Qwen3-8B-4bit", "Qwen3-8B-4bit", "x/qwen3-8b-4BIT"])
def test_a_model_of_the_catalogue_that_another_tool_keeps(folder, user):
    written(user / ".lmstudio/models" / folder, mlx_files())
    assert list(mlx_models()) == ["qwen3-8b"]


def test_one_that_is_only_called_alike_is_none_of_the_catalogue(user):
    written(user / ".lmstudio/models/someone/My-Qwen3-8B-4bit", mlx_files())
    in_hub(user, "someone/Qwen3-8B-4bit", mlx_files(bits=8))
    assert {one.entry for one in mlx_models().values()} == {None}


def test_names_in_the_catalogue_lead_to_one_model():
    repos = [repo.lower() for entry in catalogue() for repo in entry.mlx.values()]
    assert len(set(repos)) == len(repos)


def test_a_folder_anywhere(user, monkeypatch):
    folder = written(user / "some where" / "modèle", mlx_files(n_files=2))
    assert is_model_folder(folder)
    (one,) = find_models(str(folder))
    assert (one.path, one.place, one.quant, one.name) == (folder, Place.ELSEWHERE, "4bit", "modèle")
    monkeypatch.chdir(folder.parent)
    assert resolve("./modèle").path == folder
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert not is_model_folder(folder)
    assert found_at(folder) is None
    with pytest.raises(ModelNotFound, match=r"neither a \.gguf file nor a complete MLX model"):
        resolve(str(folder))


def test_a_newer_revision_with_another_template(user):
    newer = "f" * 40
    in_hub(user, TINY, mlx_files(bits=8))
    in_hub(user, TINY, mlx_files(bits=8) | {"chat_template.jinja": b"new"}, newer)
    assert sorted(one.full_name for one in mlx_models().values()) == [TINY, f"{TINY}@{homes.COMMIT[:8]}"]
    assert read_model(resolve(TINY).path).chat_template == "new"


def test_verifying(user):
    snapshot = in_hub(user, TINY, mlx_files(bits=8))
    (one,) = mlx_models().values()
    heard = []
    assert verify(one, heard.append).hashed
    assert verify(one).damage == ""
    assert heard[-1] == one.size
    for name in ("tokenizer.json", "model.safetensors"):
        path = (snapshot / name).resolve()
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + b"?")
        assert f"The hash of {name} does not match" in verify(one).damage
        path.write_bytes(whole)
    written(locations.own_folder() / "mine", mlx_files())
    mine = mlx_models()["mine"]
    assert (verify(mine).hashed, verify(mine).damage) == (False, "")
    path = mine.path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert "truncated" in verify(mine).damage


def test_removing_from_the_hubs_cache(user):
    snapshot = in_hub(user, TINY, mlx_files(bits=8, n_files=2))
    # Renamed repositories are there twice, with the same commit.
    others = [homes.in_hub(user, tiny(), f"other/repo{i}-GGUF", "a-F32.gguf") for i in range(4)]
    found = removal(single_model(TINY))
    assert len(found.files) == 6
    assert found.frees == sum(len(data) for data in mlx_files(bits=8, n_files=2).values())
    found.run()
    assert not snapshot.parent.parent.exists()
    assert all(other.exists() for other in others)


def test_removing_an_old_revision_leaves_the_new_one_whole(user):
    """Most of its small files are the same ones."""
    old = in_hub(user, TINY, mlx_files(bits=8, seed=1), commit="a" * 40)
    new = in_hub(user, TINY, mlx_files(bits=8, seed=2), commit="b" * 40)
    removal(single_model(f"{TINY}@aaaaaaaa")).run()
    assert not list(old.glob("*.safetensors"))
    (left,) = mlx_models().values()
    assert left.path == new
    assert verify(left).damage == ""


def test_removing_what_is_ours(user):
    folder = written(locations.own_folder() / "mine", mlx_files())
    removal(single_model("mine")).run()
    assert not folder.exists()
    written(folder, mlx_files() | {"notes.txt": b"mine"})
    removal(single_model("mine")).run()
    assert os.listdir(folder) == ["notes.txt"]
    elsewhere = written(user / "elsewhere", mlx_files())
    with pytest.raises(NotRemovable) as caught:
        removal(single_model(str(elsewhere)))
    assert caught.value.hint == f"Remove the folder yourself: rm -r {elsewhere}"


def imported(source, name=None, move=False):
    return import_model(str(source), name=name, move=move, on_progress=lambda *_: None).path


def test_importing(user):
    source = written(user / "Mine-4bit", mlx_files(n_files=2) | {"README.md": b"#", "evil.py": b""})
    ours = imported(source)
    assert ours == locations.own_folder() / "Mine-4bit"
    assert set(os.listdir(ours)) == set(mlx_files(n_files=2))
    assert read_model(ours).tensors == read_model(source).tensors
    assert imported(source, name="other").name == "other"
    with pytest.raises(NotImported, match="A model with that name already"):
        imported(source)
    with pytest.raises(NotImported, match="is not a valid name for a model"):
        imported(source, name="../up")
    assert imported(source, name="moved", move=True).name == "moved"
    assert sorted(os.listdir(source)) == ["README.md", "evil.py"]


def test_an_import_that_fails_leaves_nothing(user, monkeypatch):
    source = written(user / "Mine-4bit", mlx_files())

    def no_link(*_):
        raise OSError("no links here")

    def full(*_):
        raise OSError("free disk space")

    monkeypatch.setattr(os, "link", no_link)
    monkeypatch.setattr(shutil, "copystat", full)
    with pytest.raises(NotImported):
        imported(source)
    assert list(locations.own_folder().iterdir()) == []


def test_fingerprints(user):
    one = written(user / "one", mlx_files())
    same = written(user / "same", mlx_files() | {"README.md": b"#"})
    other = written(user / "other", mlx_files(seed=1))
    prints = [fingerprint_of(folder, "x") for folder in (one, same, other)]
    assert prints[0] == prints[1] != prints[2]
    assert fingerprint_of(one, "y") != prints[0]
    template = written(user / "template", mlx_files() | {"chat_template.jinja": b"x"})
    assert fingerprint_of(template, "x") != prints[0]
