"""LoRA adapters on the command line: pulled, listed, shown, planned and applied; never offered as models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from edgechat.models.adapters.local import find_adapter, local_adapters
from edgechat.models.local.locations import own_folder
from edgechat.planner.listing import rows
from tests.cli.pulling import Pull, complaint, found
from tests.cli.running import edgechat
from tests.hub import Hub
from tests.kit import NOT_PRINTABLE, Spec, build
from tests.kit.adapters import adapter, pairs, peft_folder, write_adapter

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured")]

SPEC = Spec(mute=NOT_PRINTABLE, name="kit")
BASE = {"general.base_model.0.repo_url": "https://huggingface.co/kit/base"}


def gguf(tmp_path: Path, **how: int) -> bytes:
    path = write_adapter(tmp_path / "a.gguf", pairs(SPEC, **how), SPEC.shape, overrides=BASE)
    return path.read_bytes()


def peft(tmp_path: Path) -> dict[str, Path]:
    folder = peft_folder(tmp_path / "peft", pairs(SPEC), SPEC.shape)
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture
def own_models(hf_cache: Path) -> Path:
    """The folder of edgechat's own models; the hub's cache is empty."""
    folder = own_folder()
    folder.mkdir(parents=True)
    return folder


def said(*arguments: object) -> str:
    run = edgechat(*map(str, arguments))
    assert run.returncode == 0, run.stderr
    return str(run.stdout)


def test_a_gguf_repository_is_pulled_as_an_adapter(hub: Hub, pull: Pull, tmp_path: Path) -> None:
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


def test_a_peft_repository_is_pulled_as_an_adapter(hub: Hub, pull: Pull, tmp_path: Path) -> None:
    hub.add("me/peft", {**peft(tmp_path), "README.md": b"An adapter."})
    answer = found(pull("me/peft", "--json"))
    assert (answer["format"], answer["base"], answer["rank"]) == ("peft", "kit/base", 4)
    assert {path.name for path in Path(answer["path"]).iterdir()} == set(peft(tmp_path))
    (one,) = local_adapters()
    assert (one.name, one.path) == ("me/peft", Path(answer["path"]))


def test_other_repositories_are_what_they_were(hub: Hub, pull: Pull) -> None:
    hub.add("me/nothing", {"README.md": b"Nothing."})
    assert "no model" in complaint(pull("me/nothing"))


def test_it_is_listed_shown_and_applied(tmp_path: Path, own_models: Path) -> None:
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
    ],
)
def test_what_cannot_be_applied_is_refused(tmp_path: Path, own_models: Path, lora: str, why: str) -> None:
    (own_models / "french.gguf").write_bytes(gguf(tmp_path))
    other = Spec(shape=SPEC.shape.sized(arch="qwen3"))
    shutil.copy(adapter(tmp_path, other, "wrong"), own_models)
    run = edgechat("run", str(build(SPEC)), "Hi", "--lora", lora)
    assert run.returncode == 1
    assert why in run.stderr


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    run = edgechat("run", str(adapter(tmp_path, SPEC)), "Hi")
    assert "is a LoRA adapter, not a model" in run.stderr
    assert "--lora" in run.stderr
