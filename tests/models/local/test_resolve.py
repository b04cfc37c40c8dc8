import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgechat.base.errors import ModelFileError, ModelNotFound, NotRemovable
from edgechat.models.catalogue import catalogue
from edgechat.models.local.inventory import inventory
from edgechat.models.local.locations import Place, hub_cache
from edgechat.models.local.resolve import find_models, local_file, local_files, resolve
from edgechat.models.local.upkeep import removal

REPO = "models--unsloth--Qwen3-4B-Instruct-2507-GGUF"
FILE = "Qwen3-4B-Instruct-2507-Q4_K_M.gguf"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An empty machine: its own home, data folder and hub cache, and an empty folder to stand in."""
    monkeypatch.setenv("EDGECHAT_HOME", str(tmp_path / "edgechat"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return tmp_path


def put(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF")
    return path


def refusal(name):
    with pytest.raises(ModelNotFound) as caught:
        resolve(name)
    return caught.value.message, caught.value.hint or ""


def test_a_path(home):
    path = put(home / "here" / "My Model.gguf")
    for name in ("My Model.gguf", "./My Model.gguf", str(path), "~/here/My Model.gguf"):
        found = resolve(name)
        assert (found.path, found.name, found.entry) == (path, "My Model", None)


def test_a_split_model_is_its_first_part(home):
    first = put(home / "here" / "big-00001-of-00003.gguf")
    put(home / "here" / "big-00003-of-00003.gguf")
    assert resolve("big-00003-of-00003.gguf").path == first


def test_a_folder_names_what_it_holds(home):
    for letter in "abcdefgh":
        put(home / "here" / "models" / f"{letter}.gguf")
    message, hint = refusal("models")
    assert message == (
        "models is a folder, not a model. It contains a.gguf, b.gguf, c.gguf, d.gguf, e.gguf, f.gguf and 2 "
        "more."
    )
    assert hint == f"Give the path of the file: {os.path.join('models', 'a.gguf')}"
    assert "neither a .gguf file nor a complete MLX model" in refusal(str(home))[0]


def test_the_standing_folder_does_not_shadow_the_catalogue(home):
    (home / "here" / "qwen3-4b").mkdir()
    message, _ = refusal("qwen3-4b")
    assert "is in the catalogue" in message
    assert "is a folder" in refusal("./qwen3-4b")[0]


def test_a_catalogue_name_without_its_file_says_where_to_get_it(home):
    message, hint = refusal("qwen3-4b")
    assert "qwen3-4b is in the catalogue, but not on this machine" in message
    assert "edgechat pull qwen3-4b" in hint
    put(home / "edgechat" / "data" / "models" / FILE)
    assert resolve("qwen3-4b").path.name == FILE


@pytest.mark.parametrize("name", ["qwen3-4b", "Qwen3-4B", " qwen3-4b-instruct-2507 "])
def test_names_and_aliases_find_the_hub_cache(home, name):
    path = put(home / ".cache/huggingface/hub" / REPO / "snapshots" / "abc" / FILE)
    found = resolve(name)
    assert found.path == path
    assert found.name == "qwen3-4b"
    assert found.entry is not None
    assert found.entry.sampling.top_k == 20


def test_main_wins_over_newer_revisions(home):
    repo = home / ".cache/huggingface/hub" / REPO
    main, other = put(repo / "snapshots/aaa" / FILE), put(repo / "snapshots/bbb" / FILE)
    os.utime(other.parent, (2_000_000_000, 2_000_000_000))
    assert resolve("qwen3-4b").path == other
    put(repo / "refs/main").write_text("aaa\n")
    assert resolve("qwen3-4b").path == main


def test_another_quantization_is_taken_where_the_recommended_one_is_not(home):
    snapshot = home / ".cache/huggingface/hub" / REPO / "snapshots/aaa"
    put(snapshot / FILE.replace("Q4_K_M", "Q8_0"))
    assert resolve("qwen3-4b").path.name == FILE.replace("Q4_K_M", "Q8_0")
    put(snapshot / FILE)
    assert resolve("qwen3-4b").path.name == FILE


def test_a_link_to_a_removed_blob_is_not_a_model(home):
    path = home / ".cache/huggingface/hub" / REPO / "snapshots/aaa" / FILE
    path.parent.mkdir(parents=True)
    path.symlink_to(home / "gone")
    assert "not on this machine" in refusal("qwen3-4b")[0]
    with pytest.raises(ModelFileError, match="not a readable file"):
        resolve(str(path))


def test_a_file_in_a_folder_that_may_not_be_read_is_not_called_absent(home):
    folder = home / "theirs"
    folder.mkdir(parents=True)
    folder.chmod(0)
    if os.access(folder, os.X_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(ModelFileError, match="may not be read"):
        resolve(str(folder / "model.gguf"))


def test_the_guide(home, monkeypatch):
    monkeypatch.setattr("edgechat.base.paths.shipped", lambda name: home / "shipped" / name)
    # The catalogue itself was read already, or is read from its own place.
    assert "missing from this installation" in refusal("guide")[0]
    path = put(home / "shipped" / "guide.gguf")
    assert resolve("guide").path == path


def test_the_guides_draft(home, monkeypatch):
    monkeypatch.setattr("edgechat.base.paths.shipped", lambda name: home / "shipped" / name)
    assert "missing from this installation" in refusal("guide-draft")[0]
    path = put(home / "shipped" / "guide-draft.gguf")
    assert resolve("guide-draft").path == path


@pytest.mark.parametrize("by_path", [False, True])
def test_the_guides_draft_is_edgechats_own_and_not_listed(by_path):
    path = resolve("guide-draft").path
    (one,) = find_models(str(path) if by_path else "guide-draft")
    assert (one.name, one.path, one.place) == ("guide-draft", path, Place.SHIPPED)
    assert path not in {other.path for other in inventory().models}
    with pytest.raises(NotRemovable, match="guide-draft is part of edgechat"):
        removal(one)


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("qwen3-4", "qwen3-4b"),
        ("llama-3.2-3", "llama-3.2-3b"),
        ("Mistral-7B.Q4_K_N.gguf", "Mistral-7B.Q4_K_M.gguf"),
        ("mistral-7b.q4_k_m", "Mistral-7B.Q4_K_M.gguf"),
        ("sub/phi4.guf", os.path.join("sub", "phi4.gguf")),
    ],
)
def test_near_misses(home, name, suggested):
    put(home / "here" / "Mistral-7B.Q4_K_M.gguf")
    put(home / "here" / "sub" / "phi4.gguf")
    assert suggested in refusal(name)[1]


@pytest.mark.parametrize("name", ["", "  ", "\0", "a\0b", "x" * 5000, "~nobody/x.gguf", "a/b/c/d.gguf"])
def test_strange_names(name):
    message, hint = refusal(name)
    assert "no file" in message
    assert len(message) < 400
    assert "`edgechat plan`" in hint
    assert len(hint) < 100


def test_names_are_harmless_for_a_terminal(home):
    put(home / "here" / "evil" / "\x1b[31m.gguf")
    for name in ("\x1b]0;x\x07", "evil", "\udcff"):
        message, hint = refusal(name)
        assert "\x1b" not in message + hint
        (message + hint).encode("utf-8")
    assert "\x1b" not in resolve(os.path.join("evil", "\x1b[31m.gguf")).name


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux only")
def test_a_name_that_is_no_text(home):
    path = os.fsencode(home) + b"/\xff.gguf"
    with open(path, "wb"):
        pass
    with pytest.raises(ModelFileError, match="not valid Unicode"):
        resolve(os.fsdecode(path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in this file system")
def test_a_pipe_is_not_opened(home):
    os.mkfifo(home / "pipe.gguf")
    with pytest.raises(ModelFileError):
        resolve(str(home / "pipe.gguf"))


@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"HF_HOME": "~/hf"},
        {"HF_HUB_CACHE": "$HOME/hub", "HF_HOME": "/nowhere"},
        {"HUGGINGFACE_HUB_CACHE": "/old"},
        {"XDG_CACHE_HOME": "/xdg"},
    ],
)
def test_the_cache_is_where_the_library_keeps_it(monkeypatch, setting):
    pytest.importorskip("huggingface_hub")
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    code = "from huggingface_hub.constants import HF_HUB_CACHE; print(HF_HUB_CACHE)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert str(hub_cache()) == answer.stdout.strip()


def test_looking_takes_no_network_library():
    code = (
        "import sys; import edgechat.models.local.resolve;"
        "print([m for m in ('huggingface_hub', 'numpy', 'socket', 'llama_cpp') if m in sys.modules])"
    )
    top = Path(__file__).parents[3]
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=top)
    assert answer.stdout.strip() == "[]"


def test_local_files_by_quantization(home):
    entry = next(entry for entry in catalogue() if entry.name == "qwen3-4b")
    folder = home / "edgechat" / "data" / "models"
    snapshot = home / ".cache/huggingface/hub" / REPO / "snapshots/aaa"
    here = put(folder / FILE.lower().replace("q4_k_m", "q8_0"))
    put(snapshot / FILE.replace("Q4_K_M", "Q8_0"))
    there = put(snapshot / FILE)
    split = put(snapshot / FILE.replace("Q4_K_M", "F16-00001-of-00002"))
    put(snapshot / FILE.replace("Q4_K_M", "F16-00002-of-00002"))
    put(snapshot / "mmproj-F16.gguf")
    put(snapshot / FILE.replace("Q4_K_M", "imatrix"))
    assert local_files(entry) == {"Q8_0": here, "F16": split, "Q4_K_M": there}
    assert local_file(entry) == there


def test_a_file_of_one_quantization_only(home):
    (home / "edgechat" / "config").mkdir(parents=True)
    (home / "edgechat" / "config" / "models.toml").write_text(
        '[[model]]\nname = "mine"\ndescription = "Mine."\nlicence = "MIT"\n'
        'repo = "me/mine"\nfile = "mine.gguf"\n'
    )
    assert "not on this machine" in refusal("mine")[0]
    path = put(home / ".cache/huggingface/hub/models--me--mine/snapshots/aaa/mine.gguf")
    assert resolve("mine").path == path
