"""Layers that draft, in files of their own: named behind --draft, and refused where they do not fit."""

import pytest

from tests import homes
from tests.cli.running import complaint, edgechat
from tests.cli.test_mtp import answer, drafted_by
from tests.kit.heads import eagle3_pair, gemma4_pair, split_head, with_head

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured")]

PAIRS = {"eagle3": eagle3_pair, "gemma4": gemma4_pair, "mtp": lambda: split_head("glm4_moe")}


@pytest.fixture(autouse=True)
def user(tmp_path, monkeypatch):
    homes.settle(tmp_path / "user", monkeypatch)


@pytest.mark.parametrize("kind", PAIRS)
def test_a_file_of_layers_drafts(kind):
    pair = PAIRS[kind]()
    told = answer("plan", pair.target, "--draft", pair.drafter, "--json")
    assert told["draft"]["kind"] == ("eagle3" if kind == "eagle3" else "mtp")
    assert told["draft"]["path"] == str(pair.drafter)
    words = ("run", pair.target, "Hello", "--max-tokens", "60", "--temperature", "0", "--json")
    plain = answer(*words, "--draft", "none")
    drafted = drafted_by(pair.drafter.stem, *words, "--draft", pair.drafter)
    assert drafted["text"] == plain["text"]


WRONG = {
    "another architecture": (
        lambda: (with_head("qwen35"), eagle3_pair().drafter),
        "already drafts with layers in its own file",
    ),
    "no inputs handed out": (
        lambda: (split_head("glm4_moe").target, eagle3_pair().drafter),
        "llama.cpp cannot draft for 'glm4moe' models with EAGLE-3",
    ),
    "a drafter of Gemma 4": (
        lambda: (eagle3_pair().target, gemma4_pair().drafter),
        "it is for 'gemma4' models, but this model is 'qwen3'",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_layers_for_another_model_are_refused(what):
    files, why = WRONG[what]
    model, draft = files()
    assert why in complaint(edgechat("run", model, "Hello", "--draft", draft))
