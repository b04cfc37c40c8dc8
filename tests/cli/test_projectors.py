"""`edgechat list`, `show`, `rm` and `verify` of models that see or hear."""

import json
import re

import pytest

from edgechat.base import paths
from edgechat.cli.commands import plan
from edgechat.models.catalogue import catalogue
from edgechat.models.local.inventory import inventory
from edgechat.planner import listing as planner_listing
from tests import homes
from tests.cli.running import edgechat
from tests.cli.transcripts import transcript
from tests.kit import tiny
from tests.kit.projector_files import projector

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured", "user")]

REPO, FILE = "ggml-org/gemma-4-E4B-it-GGUF", "gemma-4-E4B-it-Q4_0.gguf"
EYES = "mmproj-gemma-4-E4B-it-F16.gguf"


def own(name):
    return paths.data_dir() / "models" / name


def said(*words):
    run = edgechat(*words)
    assert (run.returncode, run.stderr) == (0, ""), run
    return run.stdout


def unknown_projector(world, path):
    """Put the projector of a later llama.cpp somewhere."""
    homes.place(projector("gemma3", overrides={"clip.projector_type": "next"}), world.folder / path)


test_what_is_printed = transcript("extras.txt", unknown_projector)


def test_a_projector_that_comes_later_is_noticed(user):
    homes.place(tiny(), own("mine-Q8_0.gguf"))
    (mine,) = (one for one in inventory().models if one.name == "mine-Q8_0")
    assert planner_listing.glances([mine])[0].modalities == ()
    homes.place(projector(width=128), own("mmproj-mine-F16.gguf"))
    (mine,) = (one for one in inventory().models if one.name == "mine-Q8_0")
    (seen,) = planner_listing.glances([mine])
    assert seen.modalities == ()
    assert "128 channels, but the model's have 64" in seen.no_vision
    homes.place(projector(n_rows=80), own("mmproj-mine-F16.gguf"))
    (mine,) = (one for one in inventory().models if one.name == "mine-Q8_0")
    assert planner_listing.glances([mine])[0].modalities == ("vision",)


def test_the_catalogue_says_which_models_see():
    entries = {entry.name: entry for entry in catalogue()}
    assert entries["gemma-4-e4b"].modalities == ("vision", "audio")
    assert entries["gemma-3-4b"].modalities == ("vision",)
    assert entries["gemma-3-1b"].modalities == ()
    seeing = [entry for entry in catalogue() if entry.vision]
    assert len(seeing) >= 14
    assert all(entry.vision for entry in catalogue() if entry.audio)


# plan, run


def test_the_plan_has_it_before_the_download(user, hub):
    hub.add("owner/tiny-GGUF", {"tiny-F32.gguf": tiny(), "mmproj-F16.gguf": projector("qwen3vl_merger")})
    found = json.loads(said("plan", "owner/tiny-GGUF", "--json"))
    assert all(re.search(rf"\b{field}\b", plan.__doc__ or "") for field in (*found, *found["projector"]))
    assert (found["projector"]["path"], found["projector"]["name"]) == (None, "mmproj-F16.gguf")
    assert found["projector"]["image_tokens"] == found["context"] // 2
    assert found["devices"][0]["projector_bytes"] == found["projector"]["total_bytes"]
    text = said("plan", "owner/tiny-GGUF")
    assert re.search(r"SEES +TOKENS/S", text)
    assert "The model sees with mmproj-F16.gguf" in text
    blind = json.loads(said("plan", "owner/tiny-GGUF", "--no-vision", "--json"))
    assert (blind["projector"], blind["no_vision"]) == (None, None)
    assert blind["devices"][0]["total_bytes"] < found["devices"][0]["total_bytes"]
    assert "SEES" not in said("plan", "owner/tiny-GGUF", "--no-vision")
    pulled = json.loads(said("pull", "owner/tiny-GGUF", "--dry-run", "--json"))["plan"]
    assert pulled["projector"] == found["projector"]


def test_a_header_that_was_read_is_kept_for_plans_without_the_network(user, hub):
    hub.add("owner/tiny-GGUF", {"tiny-F32.gguf": tiny(), "mmproj-F16.gguf": projector()})
    before = json.loads(said("plan", "owner/tiny-GGUF", "--json"))["projector"]
    hub.stop()
    run = edgechat("plan", "owner/tiny-GGUF", "--offline", "--json")
    assert json.loads(run.stdout)["projector"] == before
    assert before is not None
