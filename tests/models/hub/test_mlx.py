"""MLX models on the hub: told from what lies beside them, read before a download, downloaded and verified."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from edgechat.base.errors import HubAnswerError, ModelFileError, ModelNotFound, RemoteFileChanged, WrongBytes
from edgechat.models.choices import RemoteFile, mlx_label, model_choices
from edgechat.models.formats.mlx.contents import read_model
from edgechat.models.hub import remote_headers
from edgechat.models.hub.cache import HubStore
from edgechat.models.hub.download import download
from edgechat.models.hub.listing import list_repo, resolve_remote
from edgechat.models.hub.names import HubName, parse_model_name
from edgechat.models.request import matching_choices, parse_request
from tests.hub import Fault
from tests.kit import tiny
from tests.models.downloads import Seen
from tests.models.mlx_folders import mlx_files, written

REPO = "mlx-community/Tiny-4bit"
BESIDE = {
    "README.md": b"# tiny", ".gitattributes": b"*", "modeling.py": b"import os", "pytorch_model.bin": b"x",
    "consolidated.safetensors": b"x", "original/model.pth": b"x", "special_tokens_map.json": b"{}",
}  # fmt: skip


@pytest.fixture(autouse=True)
def hub_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    return tmp_path / "hub-cache"


def listed(*names, repo=REPO):
    files = [RemoteFile(name, 10 + i, f"{i:064x}") for i, name in enumerate(names)]
    return [(one.name, one.quant, one.format) for one in model_choices(files, repo)]


def on_hub(hub, files=None, repo=REPO):
    hub.add(repo, mlx_files() if files is None else files)
    return resolve_remote(HubName(repo), offline=False)


def only(found):
    (choice,) = found.choices
    return choice


def test_what_makes_a_model():
    base = ("config.json", "tokenizer.json")
    assert listed(*base, "model.safetensors") == [("", "4bit", "mlx")]
    assert listed(*base, "model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors")
    assert not listed(*base, "model-00001-of-00002.safetensors")
    assert not listed(*base, "consolidated.safetensors", "adapters.safetensors", "pytorch_model.bin")
    assert not listed("config.json", "model.safetensors")
    assert not listed("tokenizer.json", "model.safetensors")
    assert listed(*(f"8bit/{name}" for name in (*base, "model.safetensors"))) == [("8bit", "8bit", "mlx")]
    assert not listed("a/config.json", "a/tokenizer.json", "b/model.safetensors")


def test_a_repository_with_both():
    found = listed("config.json", "tokenizer.json", "model.safetensors", "a-Q4_0.gguf", repo="owner/Tiny")
    assert found == [("a-Q4_0", "Q4_0", "gguf"), ("", None, "mlx")]


def test_only_what_is_needed_is_taken(hub):
    files = mlx_files(n_files=3)
    names = only(on_hub(hub, BESIDE | files)).file_names
    assert set(names) == {*files, "special_tokens_map.json"}
    assert names[0] == "config.json"
    assert [name.endswith(".safetensors") for name in names] == [False, True, True, True] + [False] * 4


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("mlx-community/Qwen3-4B-4bit", "4bit"),
        ("lmstudio-community/Qwen3-4B-MLX-8bit", "8bit"),
        ("mlx-community/Qwen3-4B-6-bit", "6bit"),
        ("mlx-community/Llama-3.2-1B-Instruct-4bit-DWQ", "4bit"),
        ("mlx-community/gpt-oss-20b-MXFP4-Q8", "mxfp4"),
        ("mlx-community/SmolLM-bf16", "bf16"),
        ("mlx-community/SmolLM-fp16", "f16"),
        ("mlx-community/SmolLM-mlx-q8", "8bit"),
        ("Qwen/Qwen3-8B", None),
        ("someone-4bit/Qwen3-8B", None),
    ],
)
def test_labels_in_names(name, label):
    assert mlx_label(name) == label


def test_the_header_on_the_hub_is_that_of_the_folder(hub, tmp_path):
    files = mlx_files(n_files=2, tie_word_embeddings=False)
    found = on_hub(hub, files)
    header, here = found.header(only(found)), read_model(written(tmp_path / "Tiny-4bit", files))
    assert header.path == REPO
    assert (header.tensors, header.quant, header.file_size) == (here.tensors, "4bit", here.file_size)
    assert header.chat_template is None
    without = {key: one for key, one in here.metadata.items() if not key.startswith("tokenizer.")}
    assert without.items() <= header.metadata.items()


def test_only_tables_are_read_and_once(hub, monkeypatch):
    monkeypatch.setattr(remote_headers, "FIRST_TABLE", 1000)
    found = on_hub(hub)
    first = found.header(only(found))
    assert [one.range for one in hub.requests("store")] == [(0, 999), (1000, 8 + first_table(found) - 1)]
    asked = len(hub.seen)
    assert found.header(only(found)) == first
    hub.stop()
    again = resolve_remote(HubName(REPO), offline=False)
    assert again.header(only(again)) == first
    assert len(hub.seen) == asked


def first_table(found):
    return int.from_bytes(mlx_files()["model.safetensors"][:8], "little")


def test_a_kept_header_that_is_damaged_is_read_anew(hub, home):
    found = on_hub(hub)
    header = found.header(only(found))
    (entry,) = (home / "cache/hub/headers").iterdir()
    for damage in (b"", b"nonsense", entry.read_bytes()[:-9]):
        entry.write_bytes(damage)
        assert found.header(only(found)) == header


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("model.safetensors", b"PK\x03\x04 and so on", "is not a safetensors file"),
        ("model.safetensors", b"x", "too short"),
        ("config.json", b"{" + b" " * (1 << 20) + b"}", "more than 1048576 bytes"),
        ("config.json", b"nonsense", "not valid JSON"),
        ("config.json", b'{"model_type": "llama", "model_file": "a.py"}', "its own code"),
    ],
)
def test_what_is_unfit_on_the_hub(name, data, words, hub):
    found = on_hub(hub, mlx_files() | {name: data})
    with pytest.raises(ModelFileError, match=words) as caught:
        found.header(only(found))
    assert "Download it again" not in str(caught.value.hint)
    assert not list(Path(os.environ["EDGECHAT_HOME"]).glob("**/headers/*"))


def test_a_small_file_that_is_another_one_now(hub):
    found = on_hub(hub)
    hub.fail("resolve", Fault(headers={"X-Repo-Commit": "f" * 40}))
    with pytest.raises(RemoteFileChanged):
        found.header(only(found))


def test_a_download_is_verified_and_lies_as_the_hubs_own(hub):
    from huggingface_hub import hf_hub_download

    found = on_hub(hub, BESIDE | mlx_files(n_files=2))
    choice, store = only(found), HubStore(found.listing)
    done = download(found.listing, choice.files, "main", Seen())
    assert sum(one.received for one in done) == choice.total_bytes
    folder = store.path(choice.files[0]).parent
    assert read_model(folder).path == REPO
    assert set(os.listdir(folder)) == {file.name for file in choice.files}
    for file in choice.files:
        assert store.blob(file).name == file.digest
        theirs = hf_hub_download(REPO, file.name, local_files_only=True, cache_dir=store.root)
        assert Path(theirs).samefile(store.path(file))
    small = next(file for file in choice.files if file.name == "config.json")
    data = store.path(small).read_bytes()
    assert small.sha256 is None
    assert small.digest == hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    asked = len(hub.seen)
    assert not any(one.received for one in download(found.listing, choice.files, "main", Seen()))
    assert len(hub.seen) == asked


def test_a_small_file_that_was_cut_goes_on(hub):
    found = on_hub(hub)
    (config, *_), store = only(found).files, HubStore(found.listing)
    store.make_folders(config)
    store.partial(config).write_bytes(mlx_files()["config.json"][:100])
    (done,) = download(found.listing, [config], "main", Seen())
    assert (done.resumed, done.received) == (100, config.size - 100)
    assert store.path(config).read_bytes() == mlx_files()["config.json"]


def test_a_small_file_with_other_bytes_is_thrown_away(hub):
    found = on_hub(hub)
    config = only(found).files[0]
    hub.fail("resolve", Fault(body=b"x" * config.size))
    with pytest.raises(WrongBytes, match="its hash does not match"):
        download(found.listing, [config], "main", Seen())
    assert not HubStore(found.listing).path(config).exists()


def test_a_model_is_found_only_when_all_of_it_is_here(hub):
    found = on_hub(hub)
    choice, store = only(found), HubStore(found.listing)
    placed = []
    put = HubStore.put

    def note(self, file, *, new):
        put(self, file, new=new)
        placed.append(file.name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HubStore, "put", note)
        download(found.listing, choice.files, "main", Seen())
    assert placed[-1] == "config.json"
    assert store.path(choice.files[0]).is_file()


def test_nothing_comes_that_cannot_be_verified(hub):
    repo = hub.add(REPO, mlx_files())
    plain = [{"rfilename": name, "size": len(data)} for name, data in repo.files.items()]
    for odd in (None, "0" * 64, "main", 5):
        repo.info["siblings"] = [one | ({"blobId": odd} if odd else {}) for one in plain]
        if odd == 5:
            with pytest.raises(HubAnswerError):
                list_repo(REPO, None)
            continue
        listing = list_repo(REPO, None)
        assert [file.digest for file in listing.files] == [None] * len(plain)
        with pytest.raises(HubAnswerError, match="no hash"):
            download(listing, listing.files, "main", Seen())


def test_the_hash_of_a_pointer_is_not_the_files(hub):
    listing = on_hub(hub).listing
    weights = next(file for file in listing.files if file.name == "model.safetensors")
    assert (weights.git_sha1, weights.digest) == (None, weights.sha256)
    assert replace(weights, sha256=None).digest is None


def test_a_quantization_is_asked_for_in_any_case(hub):
    hub.add(REPO, mlx_files())
    name = parse_model_name(f"{REPO}:4bit")
    assert name is not None
    assert only(resolve_remote(name, offline=False)).quant == "4bit"
    with pytest.raises(ModelNotFound, match="has no 8bit"):
        resolve_remote(replace(name, quant="8BIT"), offline=False)


def test_a_repository_whose_name_tells_no_quantization(hub):
    hub.add("owner/Tiny", mlx_files())
    want = parse_request("owner/Tiny:8bit")
    with pytest.raises(ModelNotFound, match="has no 8bit") as caught:
        matching_choices(want, resolve_remote(want.hub, offline=False))
    assert "an MLX model" in str(caught.value.hint)
    found = resolve_remote(HubName("owner/Tiny"), offline=False)
    assert (only(found).quant, found.header(only(found)).quant) == (None, "4bit")


def test_a_repository_without_either(hub):
    hub.add(REPO, {"README.md": b"", "pytorch_model.bin": b"x"})
    with pytest.raises(ModelNotFound, match="neither a GGUF file nor an MLX model") as caught:
        resolve_remote(HubName(REPO), offline=False)
    assert "-4bit" in str(caught.value.hint)


def test_what_is_wanted(hub):
    both = "owner/Both"
    hub.add(both, mlx_files() | {"both-F32.gguf": tiny().read_bytes()})

    def formats(**asked):
        want = parse_request(both, **asked)
        return [one.format for one in matching_choices(want, resolve_remote(want.hub, offline=False))]

    assert formats() == ["gguf", "mlx"]
    assert formats(format="mlx") == ["mlx"]
    assert formats(format="gguf") == ["gguf"]
    want = parse_request(REPO, format="gguf")
    hub.add(REPO, mlx_files())
    with pytest.raises(ModelNotFound, match="contains no GGUF file"):
        matching_choices(want, resolve_remote(want.hub, offline=False))


def test_a_model_of_the_catalogue_for_mlx():
    want = parse_request("qwen3-8b", format="mlx")
    assert (want.hub.repo, want.format, want.quant) == ("mlx-community/Qwen3-8B-4bit", "mlx", None)
    assert parse_request("qwen3-8b", "4BIT").hub.repo == "mlx-community/Qwen3-8B-4bit"
    assert parse_request("qwen3-8b", "Q4_K_M").format == "gguf"
    assert parse_request("gpt-oss-20b", "mxfp4").format == "gguf"
    assert (
        parse_request("gpt-oss-20b", "mxfp4", format="mlx").hub.repo == "mlx-community/gpt-oss-20b-MXFP4-Q8"
    )
    with pytest.raises(ModelNotFound, match="has no 8bit MLX repository for qwen3-8b") as caught:
        parse_request("qwen3-8b", "8bit")
    assert caught.value.hint == "It has: 4bit."
    with pytest.raises(ModelNotFound, match="no MLX repository for smollm2-360m"):
        parse_request("smollm2-360m", format="mlx")
    with pytest.raises(ModelNotFound, match="is part of edgechat"):
        parse_request("guide", format="mlx")
