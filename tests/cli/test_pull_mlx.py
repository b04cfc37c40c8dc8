"""`edgechat pull` of models for MLX: one folder of several files, from repositories that hold one each."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edgechat.base.errors import BackendMissing, ModelNotFound
from edgechat.models.request import parse_request
from edgechat.planner import machine, prepare
from edgechat.planner.ranking import pulling
from edgechat.planner.ranking.pulling import PullDecision, bring, decide
from edgechat.planner.request import PlanRequest
from tests.cli.pulling import REPO, complaint, found
from tests.cli.running import edgechat
from tests.kit import PAIR, pair, tiny
from tests.models.downloads import Seen
from tests.planner.headers import little
from tests.planner.macs import mac

pytest.importorskip("mlx_lm")
from tests.kit.mlx import mlx_pair, mlx_tiny

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured")]

FOUR, EIGHT, SMALL = "maker/Tiny-4bit", "maker/Tiny-8bit", "maker/Small-4bit"
ENTRIES = f"""
[[model]]
name = "tiny-one"
description = "A model of the tests."
licence = "MIT"
repo = "{REPO}"
file = "tiny-{{quant}}.gguf"
quant = "F32"
mlx = {{ "4bit" = "{FOUR}", "8bit" = "{EIGHT}" }}
draft = "tiny-two"

[[model]]
name = "tiny-two"
description = "Its draft."
licence = "MIT"
repo = "owner/small-GGUF"
file = "small-{{quant}}.gguf"
quant = "F32"
mlx = {{ "4bit" = "{SMALL}" }}
no_draft = "It is one."
"""


def files_of(folder):
    return {path.name: path for path in folder.iterdir()} | {"README.md": b"# tiny"}


@pytest.fixture
def entries(home, hub, hf_cache):
    (home / "config").mkdir(parents=True)
    (home / "config/models.toml").write_text(ENTRIES)
    target, draft = mlx_pair(0.05, weights="4bit")
    hub.add(FOUR, files_of(target))
    hub.add(EIGHT, files_of(mlx_pair(0.05, weights="8bit")[0]))
    hub.add(SMALL, files_of(draft))
    target, draft = pair(0.05, shape=PAIR)
    hub.add(REPO, {"tiny-F32.gguf": target})
    hub.add("owner/small-GGUF", {"small-F32.gguf": little()})


def run(*words):
    return edgechat("run", *words)


def decided(name, backend=None, quant=None, **more):
    reads = {"mlx": "mlx", "llama.cpp": "gguf", None: None}[backend]
    answer = decide(parse_request(name, quant, format=reads), backend=backend, **more)
    assert isinstance(answer, PullDecision)
    return answer


def repos(answer):
    return [part.source.want.hub.repo for part in answer.parts]


def test_a_repository(hub, pull):
    folder = mlx_tiny("dense", weights="4bit")
    hub.add(FOUR, files_of(folder))
    answer = found(pull(FOUR, "--json"))
    names = {file["name"] for file in answer["files"]}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert "README.md" not in names
    assert all(
        Path(file["path"]).read_bytes() == (folder / file["name"]).read_bytes() for file in answer["files"]
    )
    made = answer["plan"]
    assert (made["backend"], made["exact"]) == ("mlx", False)
    assert Path(made["path"]) == Path(answer["files"][0]["path"]).parent
    again = pull(FOUR)
    assert again.returncode == 0
    assert f"{FOUR} is already on this machine" in again.stdout
    assert "files, for MLX" in again.stdout
    ran = run(FOUR, "hi", "--max-tokens", "3", "--json", "--no-store")
    assert (ran.returncode, json.loads(ran.stdout)["plan"]["backend"]) == (0, "mlx"), ran.stderr
    wrong = complaint(run(FOUR, "hi", "--backend", "llama.cpp"))
    assert "is an MLX model, which llama.cpp cannot load" in wrong


@pytest.mark.usefixtures("entries")
def test_a_name_of_the_catalogue_with_its_draft(pull, hub):
    answer = found(pull("tiny-one", "--backend", "mlx", "--quant", "4bit", "--json"))
    assert (answer["repo"], answer["draft"]["repo"]) == (FOUR, SMALL)
    assert answer["plan"]["draft"]["quant"] == "4bit"
    ran = run("tiny-one", "hi", "--max-tokens", "3", "--backend", "mlx", "--json", "--no-store")
    assert ran.returncode == 0, ran.stderr
    made = json.loads(ran.stdout)["plan"]
    assert (made["backend"], made["draft"]["model"]) == ("mlx", "tiny-two")
    hub.stop()
    here = decide(parse_request("tiny-one", format="mlx"), backend="mlx")
    assert isinstance(here, PullDecision)
    assert (repos(here), here.missing) == ([FOUR], ((),))


@pytest.mark.usefixtures("entries")
def test_of_several_repositories_the_better_one(hub):
    answer = decided("tiny-one", "mlx")
    assert repos(answer) == [EIGHT, SMALL]
    assert answer.picked is not None
    assert answer.picked.plan is not None
    assert answer.picked.plan.alternatives[0].quant == "4bit"
    del hub.repos[EIGHT]
    assert repos(decided("tiny-one", "mlx")) == [FOUR, SMALL]


@pytest.mark.usefixtures("entries")
def test_elsewhere_than_on_a_mac_it_is_a_gguf_file(home):
    assert repos(decided("tiny-one")) == [REPO, "owner/small-GGUF"]
    assert repos(decided("tiny-one", quant="4bit"))[0] == FOUR
    (home / "config/settings.toml").write_text('backend = "mlx"\n')
    assert repos(decided("tiny-one"))[0] == EIGHT
    assert repos(decided("tiny-one", "llama.cpp"))[0] == REPO


@pytest.mark.usefixtures("entries")
def test_on_a_mac_both_are_weighed(monkeypatch, hub):
    def look(*_):
        return mac(16)

    monkeypatch.setattr(pulling, "current_profile", look)
    monkeypatch.setattr(machine, "current_profile", look)
    answer = decided("tiny-one")
    assert {seen.path.split("?")[0] for seen in hub.seen if "/api/models/" in seen.path} >= {
        f"/api/models/{repo}" for repo in (REPO, FOUR, EIGHT)
    }
    assert answer.picked is not None
    made = answer.picked.plan
    assert made is not None
    assert {made.backend, *(one.backend for one in made.alternatives)} == {"llama.cpp", "mlx"}
    assert any(" rather than " in one for one in made.reasons)


@pytest.mark.usefixtures("entries")
def test_what_is_here_for_both(home, monkeypatch):
    for backend, quant in (("mlx", "4bit"), ("llama.cpp", None)):
        bring(decided("tiny-one", backend, quant, draft="none"), Seen())
    assert prepare.prepare("tiny-one").backend == "llama.cpp"
    assert prepare.prepare("tiny-one:4bit").backend == "mlx"
    assert prepare.prepare("tiny-one", PlanRequest(backend="mlx")).backend == "mlx"
    (home / "config/settings.toml").write_text('backend = "mlx"\n')
    assert prepare.prepare("tiny-one").backend == "mlx"
    (home / "config/settings.toml").unlink()
    monkeypatch.setattr("edgechat.planner.machine.current_profile", lambda *_: mac(16))
    made = prepare.prepare("tiny-one")
    assert {made.backend, *(one.backend for one in made.alternatives)} == {"llama.cpp", "mlx"}
    assert any(" rather than " in one for one in made.reasons)


def test_what_is_not_there_is_said(hub, hf_cache, monkeypatch):
    hub.add(REPO, {"tiny-F32.gguf": tiny()})
    hub.add(FOUR, files_of(mlx_tiny("dense", weights="4bit")))
    with pytest.raises(ModelNotFound, match="no MLX model"):
        decided(REPO, "mlx")
    with pytest.raises(ModelNotFound, match="no GGUF file"):
        decided(FOUR, "llama.cpp")

    def look(*_):
        return replace(mac(16), mlx=False)

    monkeypatch.setattr(machine, "current_profile", look)
    with pytest.raises(BackendMissing, match="MLX is not available"):
        decided(FOUR)
