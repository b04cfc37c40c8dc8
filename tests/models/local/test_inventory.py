"""Finding what other tools keep, in homes laid out as theirs, and the names of it."""

import json
import os
import sys
from pathlib import Path

import pytest

from edgechat.base import paths
from edgechat.base.errors import ModelNotFound
from edgechat.models.catalogue import catalogue
from edgechat.models.formats.gguf import read_model
from edgechat.models.local.inventory import inventory
from edgechat.models.local.locations import Place, llama_cpp_folder, lm_studio_folders, ollama_folders
from edgechat.models.local.resolve import local_files, local_models, resolve
from tests import homes
from tests.kit import Spec, tiny
from tests.kit.build import write

QWEN = "unsloth/Qwen3-4B-Instruct-2507-GGUF"
FILE = "Qwen3-4B-Instruct-2507-Q4_K_M.gguf"


@pytest.fixture(scope="module")
def model():
    return tiny("dense")


@pytest.fixture(scope="module")
def other():
    return tiny("qwen3")


@pytest.fixture
def user(tmp_path, monkeypatch):
    """The home of a user who has no model yet."""
    homes.settle(tmp_path / "user", monkeypatch)
    return tmp_path / "user"


def own(name):
    return paths.data_dir() / "models" / name


def names():
    return {one.name: one.place for one in inventory().models}


def test_only_the_guide_is_on_a_fresh_machine(user):
    assert names() == {"guide": Place.SHIPPED}
    assert inventory().skipped == {}


def test_every_place(user, model, other):
    homes.place(model, own("mine.Q8_0.gguf"))
    homes.in_hub(user, model, "them/Small-GGUF", "Small-Q4_0.gguf")
    homes.in_hub(user, model, QWEN, FILE)
    homes.in_lm_studio(user, model, "lm-community/Mid-GGUF/Mid-Q6_K.gguf")
    homes.place(model, user / ".cache/llama.cpp/ggml-org_tiny-GGUF_tiny-Q8_0.gguf")
    blob = homes.in_ollama(user, other, "llama3.2:3b")
    homes.in_ollama(user, other, "llama3.2")
    homes.in_ollama(user, model, "coder:7b", host="registry.ollama.ai/somebody")
    homes.in_ollama(user, tiny("moe"), "Repo-GGUF:Q8_0", host="hf.co/bartowski")
    assert names() == {
        "guide": Place.SHIPPED,
        "mine.Q8_0": Place.OWN,
        "Small-Q4_0": Place.HUB,
        "qwen3-4b": Place.HUB,
        "Mid-Q6_K": Place.LM_STUDIO,
        "ggml-org_tiny-GGUF_tiny-Q8_0": Place.LLAMA_CPP,
        "ollama/llama3.2:3b": Place.OLLAMA,
        "ollama/somebody/coder:7b": Place.OLLAMA,
        "ollama/hf.co/bartowski/Repo-GGUF:Q8_0": Place.OLLAMA,
    }
    for one in inventory().models:
        found = resolve(one.name)
        assert found.path == one.path
        assert read_model(found.path).file_size == one.size
        assert resolve(one.full_name).path == one.path
    for name in ("ollama/llama3.2", "OLLAMA/llama3.2:latest", str(blob)):
        assert resolve(name).path == blob
    (known,) = local_models(str(blob))
    assert known.found.files[0].digest == homes.sha256(other)


def test_every_tag_of_ollama_is_a_name_where_nothing_else_has_it(user, model, other):
    blob = homes.in_ollama(user, other, "fake:8b")
    homes.in_ollama(user, other, "fake")
    coder = homes.in_ollama(user, model, "coder:7b", host="registry.ollama.ai/them")
    (found,) = [one for one in inventory().models if one.place is Place.OLLAMA and one.path == blob]
    assert (found.name, found.other_tags) == ("ollama/fake:8b", ("fake:latest",))
    for name in ("fake", "fake:latest", "fake:8b", "FAKE", "ollama/fake"):
        assert resolve(name).path == blob, name
    assert resolve("them/coder:7b").path == coder
    # What has the name otherwise keeps it.
    homes.in_ollama(user, model, "guide")
    homes.in_ollama(user, model, "qwen3-4b")
    homes.in_ollama(user, model, "small-q4_0", host="registry.ollama.ai/them")
    here_ = homes.in_hub(user, tiny("moe"), "them/small-q4_0", "Small-Q4_0.gguf")
    mine = homes.place(tiny("moe"), own("fake.gguf"))
    assert resolve("fake").path == mine
    assert resolve("fake:latest").path == blob
    assert resolve("them/small-q4_0").path == here_
    assert resolve("guide").path.name == "guide.gguf"
    assert local_models("qwen3-4b") == []
    with pytest.raises(ModelNotFound) as missing:
        resolve("qwen3-4b")
    assert "edgechat run ollama/qwen3-4b" in missing.value.hint
    assert resolve("ollama/qwen3-4b").path == coder


def test_a_repository_of_the_hub_by_its_names(user, model, other):
    four = homes.in_hub(user, model, "them/Small-GGUF", "Small-Q4_0.gguf")
    link = homes.in_hub(user, other, "them/Other-GGUF", "sub/Other-BF16.gguf")
    for name in ("them/Small-GGUF", "them/small-gguf:q4_0", "hf.co/them/Small-GGUF", "Small-Q4_0.gguf"):
        assert resolve(name).path == four, name
    address = "https://huggingface.co/them/Other-GGUF/blob/main/sub/Other-BF16.gguf"
    assert resolve(address).path == link
    with pytest.raises(ModelNotFound):
        resolve("them/Small-GGUF:Q8_0")


def test_several_quantizations_of_one_model(user, model, other):
    here_ = homes.in_lm_studio(user, model, f"lm/Qwen3-GGUF/{FILE}")
    assert names()["qwen3-4b"] is Place.LM_STUDIO
    homes.place(other, own(FILE.replace("Q4_K_M", "Q8_0")))
    homes.in_hub(user, other, QWEN, FILE.replace("Q4_K_M", "Q8_0"))
    found = names()
    assert found["qwen3-4b:Q4_K_M"] is Place.LM_STUDIO
    assert found["qwen3-4b:Q8_0"] is Place.OWN
    assert found[f"{QWEN}:Q8_0"] is Place.HUB
    assert "qwen3-4b" not in found
    assert resolve("qwen3-4b").path == here_
    assert resolve("qwen3-4b:q8_0").path == own(FILE.replace("Q4_K_M", "Q8_0"))
    assert len(local_models("qwen3-4b")) == 3
    entry = next(one for one in catalogue() if one.name == "qwen3-4b")
    assert set(local_files(entry)) == {"Q4_K_M", "Q8_0"}


def test_llama_cpp_puts_the_repository_before_the_name(user, model):
    homes.place(model, user / ".cache/llama.cpp" / f"{QWEN.replace('/', '_')}_{FILE}")
    assert names()["qwen3-4b"] is Place.LLAMA_CPP


def test_of_two_files_with_one_name_the_second_has_a_longer_one(user, model):
    homes.place(model, own("same.gguf"))
    homes.in_lm_studio(user, model, "a/b/same.gguf")
    homes.in_lm_studio(user, model, "a/b/guide.gguf")
    assert names() == {
        "guide": Place.SHIPPED,
        "same": Place.OWN,
        "lmstudio/a/b/same": Place.LM_STUDIO,
        "lmstudio/a/b/guide": Place.LM_STUDIO,
    }
    assert resolve("same").path == own("same.gguf")


def test_revisions_of_a_repository(user, model, other):
    """What two revisions share is one model; what one of them has in another version is another."""
    repo = "them/Small-GGUF"
    homes.in_hub(user, model, repo, "Small-Q4_0.gguf")
    homes.in_hub(user, model, repo, "Small-Q4_0.gguf", commit="f" * 40, main=False)
    homes.in_hub(user, other, repo, "Small-Q8_0.gguf")
    homes.in_hub(user, model, repo, "Small-Q8_0.gguf", commit="e" * 40, main=False)
    homes.in_hub(user, tiny("moe"), repo, "Small-Q8_0.gguf", commit="f" * 40, main=False)
    assert set(names()) == {"guide", "Small-Q4_0", "Small-Q8_0", f"{repo}@ffffffff:Q8_0"}
    assert read_model(resolve(f"{repo}:Q8_0").path).architecture == "qwen3"
    assert read_model(resolve(f"{repo}@ffffffff:q8_0").path).architecture != "qwen3"


def test_split_models_and_what_is_no_model(user, model):
    folder = user / ".lmstudio/models/a/b"
    folder.mkdir(parents=True)
    write(Spec(), folder / "big-Q8_0.gguf", split_max_tensors=10)
    parts = sorted(folder.iterdir())
    assert len(parts) > 1
    for name in ("mmproj-F16.gguf", "mtp-big.gguf", "big-imatrix.gguf", "lost-00001-of-00002.gguf"):
        homes.place(model, folder / name)
    (folder / "empty.gguf").touch()
    (folder / "readme.txt").write_text("GGUF")
    (one,) = [one for one in inventory().models if one.place is Place.LM_STUDIO]
    assert (one.name, one.path, len(one.found.files)) == ("big-Q8_0", parts[0], len(parts))
    assert one.size == sum(part.stat().st_size for part in parts)
    assert resolve("big-Q8_0").path == parts[0]
    assert local_models(str(parts[1])) == [one]


def test_where_other_tools_were_told_to_keep_models(user, model, monkeypatch, tmp_path):
    (user / ".lmstudio-home-pointer").write_text(f"{tmp_path / 'studio'}\n")
    homes.place(model, tmp_path / "elsewhere/a/b/told.gguf")
    homes.place(model, tmp_path / "studio/models/a/b/home.gguf")
    settings = tmp_path / "studio/settings.json"
    settings.write_text(json.dumps({"downloadsFolder": str(tmp_path / "elsewhere")}))
    homes.place(model, tmp_path / "cache/cached.gguf")
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "cache"))
    assert set(names()) == {"guide", "told", "home", "cached"}
    (user / ".lmstudio").symlink_to(tmp_path / "studio")  # the same folder again
    assert set(names()) == {"guide", "told", "home", "cached"}


def test_the_folders_of_other_systems(user, monkeypatch):
    monkeypatch.delenv("OLLAMA_MODELS")
    assert Path("/usr/share/ollama/.ollama/models") in ollama_folders() or sys.platform != "linux"
    monkeypatch.setattr("sys.platform", "darwin")
    assert llama_cpp_folder() == user / "Library/Caches/llama.cpp"
    assert ollama_folders() == [user / ".ollama/models"]
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(user / "Local"))
    assert llama_cpp_folder() == user / "Local" / "llama.cpp"


@pytest.mark.parametrize(
    "text", ["", "{", '{"downloadsFolder": 3}', '{"downloadsFolder": "../.."}', "[" * 9999]
)
def test_settings_of_lm_studio_that_make_no_sense(user, text):
    (user / ".lmstudio").mkdir()
    (user / ".lmstudio/settings.json").write_text(text)
    (user / ".lmstudio-home-pointer").write_text("relative\0")
    assert lm_studio_folders() == [user / ".lmstudio/models", user / ".cache/lm-studio/models"]


DIGEST = "sha256:" + "a" * 64
MODEL = "application/vnd.ollama.image.model"


@pytest.mark.parametrize(
    "manifest",
    [
        "",
        "null",
        "[" * 9999,
        {"layers": 3},
        {"layers": [{"mediaType": MODEL, "digest": "sha256:../../../../etc/passwd"}]},
        {"layers": [{"mediaType": MODEL, "digest": "sha256:" + "a" * 63}]},
        {"layers": [{"mediaType": MODEL, "digest": DIGEST}]},
        {"layers": [{"mediaType": MODEL, "digest": DIGEST}] * 2},
        {"layers": [{"mediaType": "application/vnd.ollama.image.tensor", "digest": DIGEST}]},
        {"layers": [], "manifests": [{"digest": DIGEST}]},
        {"mediaType": "application/vnd.ollama.manifest.list.v2+json", "manifests": [{"digest": "../x"}]},
    ],
)
def test_manifests_of_ollama_that_name_no_file(user, model, manifest):
    homes.in_ollama(user, model, "good:1b")
    homes.write_manifest(user, "registry.ollama.ai/library/bad/latest", manifest)
    assert set(names()) == {"guide", "ollama/good:1b"}


def test_a_list_of_manifests(user, model):
    """As Ollama writes since 2026: one manifest for each engine, each by its own hash."""
    blob = homes.in_ollama(user, model, "old:1b")
    single = user / ".ollama/models/manifests/registry.ollama.ai/library/old/1b"
    child = homes.place(single, user / ".ollama/models/blobs" / f"sha256-{homes.sha256(single)}")
    tensors = {"layers": [{"mediaType": "application/vnd.ollama.image.tensor", "digest": DIGEST}]}
    listed = {
        "mediaType": "application/vnd.ollama.manifest.list.v2+json",
        "manifests": [{"runner": "mlx", **tensors}, {"digest": f"sha256:{homes.sha256(child)}"}],
    }
    path = homes.write_manifest(user, "registry.ollama.ai/library/new/1b", listed, folder="manifests-v2")
    assert resolve("ollama/new:1b").path == blob
    path.unlink()
    path.symlink_to(child)
    assert resolve("ollama/new:1b").path == blob


def test_names_that_could_do_harm(user, model):
    homes.place(model, own("good.gguf"))
    for name in ("evil\x1b[31m.gguf", "back\\slash.gguf", "c:drive.gguf", ".hidden.gguf"):
        homes.place(model, own(name))
    if sys.platform == "linux":
        homes.place(model, Path(os.fsdecode(os.fsencode(own("no-text")) + b"\xff.gguf")))
    hub = user / ".cache/huggingface/hub"
    for repo in ("models--..--..", "models--a--b--c", "datasets--a--b", "models--x"):
        homes.place(model, hub / repo / "snapshots" / "abc" / "m.gguf")
    homes.place(model, hub / "models--a--b" / "snapshots" / "a b" / "m.gguf")
    homes.place(model, user / ".ollama/models/manifests/registry.ollama.ai/library/..x/latest")
    assert set(names()) == {"guide", "good"}


def test_links_that_lead_out(user, model, tmp_path):
    secret = homes.place(model, tmp_path / "secret/private.gguf")
    link = homes.in_hub(user, model, "a/good-GGUF", "good-Q4_0.gguf")
    (link.parent / "out-Q8_0.gguf").symlink_to(secret)
    (link.parent / "up-Q8_0.gguf").symlink_to("../../../../../../../../secret/private.gguf")
    (link.parent / "folder").symlink_to(secret.parent)
    (link.parents[2] / "refs/main").write_text("../../../../../../../secret")
    (user / ".lmstudio/models/a").mkdir(parents=True)
    (user / ".lmstudio/models/a/b").symlink_to(secret.parent)
    assert set(names()) == {"guide", "good-Q4_0"}
    loop = user / ".lmstudio/models/a/loop.gguf"
    loop.symlink_to(loop)
    (user / ".lmstudio/models/a/link.gguf").symlink_to(secret)  # as `lms import --symbolic-link` makes it
    assert set(names()) == {"guide", "good-Q4_0", "link"}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in this file system")
def test_pipes_are_not_opened(user):
    own("x").parent.mkdir(parents=True)
    os.mkfifo(own("pipe.gguf"))
    (user / ".lmstudio").mkdir()
    os.mkfifo(user / ".lmstudio/settings.json")
    (user / ".ollama/models/manifests/a/b/c").mkdir(parents=True)
    os.mkfifo(user / ".ollama/models/manifests/a/b/c/d")
    assert set(names()) == {"guide"}


def test_depth_is_bounded(user, model):
    homes.in_lm_studio(user, model, "a/b/c/in.gguf")
    homes.in_lm_studio(user, model, "a/b/c/d/out.gguf")
    homes.place(model, user / ".cache/llama.cpp/sub/out.gguf")
    assert set(names()) == {"guide", "in"}


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_skipped_and_noted(user, model):
    homes.place(model, own("good.gguf"))
    homes.in_lm_studio(user, model, "theirs/b/out.gguf")
    theirs = user / ".lmstudio/models/theirs"
    theirs.chmod(0)
    try:
        found = inventory()
    finally:
        theirs.chmod(0o700)
    assert {one.name for one in found.models} == {"guide", "good"}
    assert list(found.skipped) == [theirs]


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        ("ollama/llama3.2:3", "ollama/llama3.2:3b"),
        ("olama/llama3.2:3b", "ollama/llama3.2:3b"),
        ("Smal-Q4_0", "Small-Q4_0"),
        ("guid", "guide"),
    ],
)
def test_near_misses(user, model, typed, suggested):
    homes.in_ollama(user, model, "llama3.2:3b")
    homes.in_hub(user, model, "them/Small-GGUF", "Small-Q4_0.gguf")
    with pytest.raises(ModelNotFound) as caught:
        resolve(typed)
    assert suggested in (caught.value.hint or "")
