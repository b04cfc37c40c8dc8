"""LoRA adapters on the command line: pulled, listed, shown, planned and applied; never offered as models."""

import json
import shutil
from pathlib import Path

import pytest

from edgechat.models.adapters.local import find_adapter, local_adapters
from edgechat.models.adapters.peft import conversions
from edgechat.models.local.locations import own_folder
from edgechat.planner.listing import rows
from tests.cli.pulling import complaint, found
from tests.cli.running import edgechat
from tests.kit import NOT_PRINTABLE, Spec, build
from tests.kit.adapters import adapter, pairs, peft_folder, write_adapter

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured")]

SPEC = Spec(mute=NOT_PRINTABLE, name="kit")
BASE = {"general.base_model.0.repo_url": "https://huggingface.co/kit/base"}


def gguf(tmp_path, **how):
    path = write_adapter(tmp_path / "a.gguf", pairs(SPEC, **how), SPEC.shape, overrides=BASE)
    return path.read_bytes()


def peft(tmp_path):
    folder = peft_folder(tmp_path / "peft", pairs(SPEC), SPEC.shape)
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture
def own_models(hf_cache):
    """The folder of edgechat's own models; the hub's cache is empty."""
    folder = own_folder()
    folder.mkdir(parents=True)
    return folder


def said(*arguments):
    run = edgechat(*map(str, arguments))
    assert run.returncode == 0, run.stderr
    return str(run.stdout)


def test_a_gguf_repository_is_pulled_as_an_adapter(hub, pull, tmp_path):
    hub.add("me/french", {"lora-F16.gguf": gguf(tmp_path), "lora-F32.gguf": gguf(tmp_path, rank=8)})
    dry = found(pull("me/french", "--dry-run", "--json"))
    assert (dry["kind"], dry["dry_run"], dry["received_bytes"]) == ("adapter", True, 0)
    answer = found(pull("me/french", "--json"))
    assert (answer["base"], answer["rank"], answer["architecture"]) == ("kit/base", 4, "llama")
    assert answer["path"].endswith("lora-F16.gguf")
    assert found(pull("me/french", "--json"))["received_bytes"] == 0
    assert str(find_adapter("me/french").path) == answer["path"]
    assert [row.model.name for row in rows()] == ["guide"]
    assert "--lora me/french" in pull("me/french").stdout


def test_a_peft_repository_is_pulled_as_an_adapter(hub, pull, tmp_path):
    hub.add("me/peft", {**peft(tmp_path), "README.md": b"An adapter."})
    answer = found(pull("me/peft", "--json"))
    assert (answer["format"], answer["base"], answer["rank"]) == ("peft", "kit/base", 4)
    assert {path.name for path in Path(answer["path"]).iterdir()} == set(peft(tmp_path))
    (one,) = local_adapters()
    assert (one.name, one.path) == ("me/peft", Path(answer["path"]))


def test_other_repositories_are_what_they_were(hub, pull):
    hub.add("me/nothing", {"README.md": b"Nothing."})
    assert "no model" in complaint(pull("me/nothing"))


def test_it_is_listed_shown_and_applied(tmp_path, own_models):
    (own_models / "french.gguf").write_bytes(gguf(tmp_path))
    shutil.copytree(peft_folder(tmp_path / "polish", pairs(SPEC, seed=9), SPEC.shape), own_models / "polish")
    listed = json.loads(said("list", "--json"))
    assert [(one["kind"], one["name"]) for one in listed] == [
        ("model", "guide"),
        ("adapter", "french"),
        ("adapter", "polish"),
    ]
    assert "kit/base" in said("list")
    assert "--lora french" in said("show", "french")
    assert json.loads(said("show", "polish", "--json"))["format"] == "peft"
    model = build(SPEC)
    greedy = ("--temperature", 0, "--max-tokens", 16, "--no-store")
    wanted = ([], ["french"], ["french:0"], ["polish"], ["off"])
    texts = [said("run", model, "Hi", *greedy, *(["--lora", *one] if one else [])) for one in wanted]
    assert texts[0] == texts[2] == texts[4]
    assert len(set(texts)) == 3
    plan = json.loads(said("plan", model, "--lora", "french:0.5", "--lora", "polish", "--json"))
    assert [(one["name"], one["scale"], one["rank"]) for one in plan["adapters"]] == [
        ("french", 0.5, 4),
        ("polish", 1.0, 4),
    ]
    ram = next(one for one in plan["devices"] if one["name"] == "RAM")
    assert ram["adapter_bytes"] == sum(one["bytes"] for one in plan["adapters"]) > 0


@pytest.mark.parametrize(
    ("lora", "why"),
    [
        ("frech", "no adapter 'frech'"),
        ("wrong", "for the architecture 'qwen3'"),
        ("french:1e9", "not valid as the scale"),
        ("french:0,5", "'0,5' is not valid as the scale"),
    ],
)
def test_what_cannot_be_applied_is_refused(tmp_path, own_models, lora, why):
    (own_models / "french.gguf").write_bytes(gguf(tmp_path))
    other = Spec(shape=SPEC.shape.sized(arch="qwen3"))
    shutil.copy(adapter(tmp_path, other, "wrong"), own_models)
    run = edgechat("run", str(build(SPEC)), "Hi", "--lora", lora)
    assert run.returncode == 1
    assert why in run.stderr


def test_an_adapter_is_no_model(tmp_path, own_models):
    folder = peft_folder(own_models / "polish", pairs(SPEC), SPEC.shape)
    for name in (adapter(tmp_path, SPEC), folder, "Polish"):
        run = edgechat("run", str(name), "Hi")
        assert "is a LoRA adapter, not a model" in run.stderr
        assert "--lora" in run.stderr
    assert "Did you mean polish?" in edgechat("rm", "polsh").stderr


def damaged(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_adapters_of_the_hubs_cache_are_verified_and_removed(hub, pull, tmp_path):
    hub.add("me/peft", peft(tmp_path))
    hub.add("me/french", {"lora-F16.gguf": gguf(tmp_path)})
    folder, file = (Path(found(pull(name, "--json"))["path"]) for name in ("me/peft", "me/french"))
    lines = said("verify").splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        ["ok", "lora-F16:"],
        ["ok", "me/peft:"],
        ["3", "models"],
    ]
    assert all("hashes match" in line for line in lines[1:3])
    assert "none damaged" in lines[3]
    damaged((folder / "adapter_model.safetensors").resolve())
    run = edgechat("verify", "me/peft")
    assert run.returncode == 1
    assert "edgechat rm me/peft && edgechat pull me/peft" in run.stdout
    for name, path in (("me/peft", folder), ("me/french", file)):
        assert "freed" in said("rm", name, "--yes")
        assert not path.exists()
        assert not path.parents[1].exists()
    assert local_adapters() == []


def test_what_an_adapter_was_converted_to_goes_with_it(tmp_path, own_models):
    shutil.copytree(peft_folder(tmp_path / "polish", pairs(SPEC, seed=9), SPEC.shape), own_models / "polish")
    shutil.copytree(own_models / "polish", own_models / "other")
    for name in ("polish", "other"):
        said("run", build(SPEC), "Hi", "--max-tokens", 1, "--no-store", "--lora", name)
    (kept,) = conversions(own_models / "other")
    (gone,) = conversions(own_models / "polish")
    text = said("rm", own_models / "polish", "--yes")
    assert str(gone) in text
    assert (gone.exists(), kept.exists()) == (False, True)
    assert [path.name for path in own_models.iterdir()] == ["other"]


def test_adapters_in_the_own_folder_are_verified_by_their_format(tmp_path, own_models):
    (own_models / "french.gguf").write_bytes(gguf(tmp_path))
    peft_folder(own_models / "polish", pairs(SPEC), SPEC.shape)
    assert "3 models and adapters checked, none damaged" in said("verify")
    for path in (own_models / "french.gguf", own_models / "polish/adapter_model.safetensors"):
        path.write_bytes(path.read_bytes()[:-64])
    run = edgechat("verify")
    assert run.returncode == 1
    assert run.stdout.count("DAMAGED") == 2
    assert "edgechat rm polish" in run.stdout
    for name in ("french", "polish"):
        assert "freed" in said("rm", name, "--yes")
    assert list(own_models.iterdir()) == []


def test_a_model_with_the_name_of_an_adapter_comes_first(tmp_path, own_models):
    folder = peft_folder(own_models / "polish", pairs(SPEC), SPEC.shape)
    model = Path(shutil.copy(build(SPEC), own_models / "polish.gguf"))
    assert "Architecture  llama, " in said("show", "polish")
    said("rm", "polish", "--yes")
    assert (model.exists(), folder.exists()) == (False, True)


def test_an_adapter_elsewhere_is_verified_and_not_removed(tmp_path, own_models):
    folder = peft_folder(tmp_path / "polish", pairs(SPEC), SPEC.shape)
    assert said("verify", folder).startswith("ok       polish: ")
    run = edgechat("rm", str(folder), "--yes")
    assert run.returncode == 1
    assert f"rm -r {folder}" in run.stderr
    assert folder.exists()


def test_a_folder_that_cannot_be_converted_says_why(tmp_path, own_models):
    peft_folder(own_models / "dora", pairs(SPEC), SPEC.shape, use_dora=True)
    assert "it uses DoRA" in said("show", "dora")
