"""Models that draft with layers of their own (MTP), on the command line."""

import json

import pytest

from edgechat.base import paths
from edgechat.cli.commands import pull as pull_command
from tests import homes
from tests.cli import pulling
from tests.cli.pulling import REPO, found
from tests.cli.running import edgechat
from tests.kit import tiny
from tests.kit.heads import split_head, with_head

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured", "user")]

OWN = "its own layers (MTP)"


def answer(*words):
    run = edgechat(*words)
    assert run.returncode == 0, run
    return json.loads(run.stdout)


def drafted_by(drafter, *words):
    """Return an answer with an accepted draft: for a tiny model, a call may take less time than a draft."""
    for _ in range(20):
        reply = answer(*words)
        assert reply["plan"]["drafters"] == [drafter, "n-grams"]
        if reply["speculation"] is not None and reply["speculation"]["accepted_tokens"]:
            break
    assert reply["speculation"]["drafters"] == [drafter, "n-grams"]
    assert reply["speculation"]["accepted_tokens"] > 0
    return reply


def test_it_drafts_for_a_reply(user):
    words = ("run", with_head("qwen35", eps=0.0), "Hello", "--max-tokens", "60", "--json")
    drafted = drafted_by(OWN, *words, "--temperature", "0", "--draft", "mtp")
    plain = answer(*words, "--temperature", "0", "--draft", "none")
    assert (plain["speculation"], plain["plan"]["drafters"]) == (None, [])
    assert drafted["text"] == plain["text"]


def test_no_draft_model_is_pulled_for_it(hub, pull):
    hub.add(REPO, {"tiny-F32.gguf": with_head("qwen35")})
    one = found(pull(REPO, "--draft", "mtp", "--json"))
    assert (one["draft"], one["plan"]["drafters"]) == (None, [OWN, "n-grams"])
    assert f"{OWN}, in the same file" in pull(REPO, "--draft", "mtp", "--dry-run").stdout


def test_a_pull_of_a_model_without_them_is_refused(hub, pull):
    hub.add(REPO, {"tiny-F32.gguf": tiny()})
    assert "no drafting layers (MTP)" in pulling.complaint(pull(REPO, "--draft", "mtp"))


def test_layers_in_a_file_of_their_own_are_found_and_draft(user):
    target, drafter = split_head("qwen35", eps=0.0)
    folder = paths.data_dir() / "models"
    homes.place(target, folder / "big-Q8_0.gguf")
    homes.place(drafter, folder / "mtp-big-Q8_0.gguf")
    assert {one["name"]: one["mtp"] for one in answer("list", "--json")} == {"big-Q8_0": True, "guide": False}
    assert "mtp-big-Q8_0.gguf" in edgechat("show", "big-Q8_0").stdout
    words = ("run", "big-Q8_0", "Hello", "--max-tokens", "60", "--temperature", "0", "--json")
    drafted, plain = (
        drafted_by("mtp-big-Q8_0.gguf", *words, "--draft", "mtp"),
        answer(*words, "--draft", "none"),
    )
    assert drafted["text"] == plain["text"]
    assert edgechat("rm", "big-Q8_0", "--yes").returncode == 0
    assert not list(folder.iterdir())


def test_layers_in_a_file_of_their_own_are_pulled_with_the_model(hub, pull):
    target, drafter = split_head("qwen35")
    hub.add(REPO, {"big-F32.gguf": target, "mtp-big-F32.gguf": drafter})
    text = pull(REPO, "--draft", "mtp", "--dry-run").stdout
    assert f"{OWN}: mtp-big-F32.gguf" in text
    assert "would download mtp-big-F32.gguf" in text
    one = found(pull(REPO, "--draft", "mtp", "--json"))
    assert pulling.sound({"files": [one["head"]]})
    assert one["plan"]["draft"]["kind"] == "mtp"
    assert one["plan"]["draft"]["path"] == one["head"]["path"]
    plain = found(pull(REPO, "--draft", "none", "--json"))
    assert (plain["head"], plain["plan"]["draft"]) == (None, None)
    assert "head" in (pull_command.__doc__ or "")
