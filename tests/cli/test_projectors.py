"""`edgechat list`, `show`, `rm` and `verify` of models that see or hear."""

import json
import re

import pytest

from edgechat.base import paths
from edgechat.cli.commands import listing, plan, show
from edgechat.models.catalogue import catalogue
from edgechat.models.local.inventory import inventory
from edgechat.planner import listing as planner_listing
from tests import homes
from tests.cli.running import edgechat
from tests.kit import tiny
from tests.kit.projector_files import projector

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured")]

REPO, FILE = "ggml-org/gemma-4-E4B-it-GGUF", "gemma-4-E4B-it-Q4_0.gguf"
EYES = "mmproj-gemma-4-E4B-it-F16.gguf"


@pytest.fixture
def user(tmp_path, monkeypatch):
    homes.settle(tmp_path / "user", monkeypatch)
    return tmp_path / "user"


def own(name):
    return paths.data_dir() / "models" / name


def said(*words):
    run = edgechat(*words)
    assert (run.returncode, run.stderr) == (0, ""), run
    return run.stdout


def listed():
    return {one["name"]: one for one in json.loads(said("list", "--json"))}


def test_the_list_says_what_models_take(user):
    homes.place(tiny(), own("blind-Q8_0.gguf"))
    assert "INPUT" not in said("list")
    homes.in_hub(user, tiny(), REPO, FILE)
    eyes = homes.in_hub(user, projector("gemma4v", "gemma4a"), REPO, EYES)
    lines = {line.split()[0]: line.split()[-2:] for line in said("list").splitlines()}
    assert lines["NAME"] == ["WHERE", "INPUT"]
    assert "text," in said("list")
    assert re.search(r"^gemma-4-e4b .* hub cache +text, images, sound$", said("list"), re.MULTILINE)
    assert re.search(r"^blind-Q8_0 .* own folder +text$", said("list"), re.MULTILINE)
    found = listed()
    assert all(re.search(rf"\b{field}\b", listing.__doc__ or "") for field in found["gemma-4-e4b"])
    assert {key: found["gemma-4-e4b"][key] for key in ("vision", "audio", "projector", "no_vision")} == {
        "vision": True,
        "audio": True,
        "projector": str(eyes),
        "no_vision": None,
    }
    assert found["gemma-4-e4b"]["size"] == tiny().stat().st_size
    assert (found["blind-Q8_0"]["vision"], found["blind-Q8_0"]["projector"]) == (False, None)


def test_a_projector_that_comes_later_is_noticed(user):
    homes.place(tiny(), own("mine-Q8_0.gguf"))
    (mine,) = (one for one in inventory().models if one.name == "mine-Q8_0")
    assert planner_listing.glances([mine])[0].modalities == ()
    homes.place(projector(width=128), own("mmproj-mine-F16.gguf"))
    (mine,) = (one for one in inventory().models if one.name == "mine-Q8_0")
    (seen,) = planner_listing.glances([mine])
    assert seen.modalities == ()
    assert "128 channels, and the model has 64" in seen.no_vision
    homes.place(projector(n_rows=80), own("mmproj-mine-F16.gguf"))
    (mine,) = (one for one in inventory().models if one.name == "mine-Q8_0")
    assert planner_listing.glances([mine])[0].modalities == ("vision",)


def test_a_model_is_shown_with_its_projector(user):
    homes.in_hub(user, tiny(), REPO, FILE)
    text = said("show", "gemma-4-e4b")
    assert "Projector     not here; with it the model sees and hears" in text
    assert "edgechat pull gemma-4-e4b" in text
    eyes = homes.in_hub(user, projector(), REPO, EYES)
    text = said("show", "gemma-4-e4b")
    assert re.search(r"Projector     \d+ KiB: with it the model sees\n", text)
    assert str(eyes) in text
    found = json.loads(said("show", "gemma-4-e4b", "--json"))
    assert (found["vision"], found["audio"], found["projector"]) == (True, False, str(eyes))
    assert set(found) <= set(re.findall(r"\b[a-z_]+\b", (show.__doc__ or "").split("\n\n")[2]))
    homes.place(projector("gemma3", overrides={"clip.projector_type": "next"}), eyes)
    found = json.loads(said("show", "gemma-4-e4b", "--json"))
    assert found["vision"] is False
    assert "does not know: 'next'" in found["no_vision"]


def test_it_is_verified_and_removed(user):
    homes.in_hub(user, tiny(), REPO, FILE)
    eyes = homes.in_hub(user, projector(), REPO, EYES)
    assert re.search(
        r"ok +gemma-4-e4b: \d+ KiB, with its projector \d+ KiB, hashes match", said("verify", FILE)
    )
    text = said("rm", "gemma-4-e4b", "--yes")
    assert str(eyes) in text
    assert not eyes.parents[2].exists()


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


def test_a_model_of_the_catalogue_says_that_it_would_see(user):
    found = json.loads(said("plan", "gemma-3-4b", "--json"))
    assert found["projector"] is None
    assert "sees with its projector, which is downloaded with it" in found["no_vision"]
    homes.in_hub(user, tiny(), REPO, FILE)
    assert (
        "edgechat pull gemma-4-e4b" in json.loads(said("show", "gemma-4-e4b", "--json"))["plan"]["no_vision"]
    )


def test_a_run_is_planned_with_it(user):
    homes.place(tiny(), own("mine-Q8_0.gguf"))
    homes.place(projector(), own("mmproj-mine-F16.gguf"))
    for words, seen in (((), "mmproj-mine-F16.gguf"), (("--no-vision",), None)):
        run = edgechat("run", "mine-Q8_0", "hi", "--max-tokens", "2", "--json", *words)
        assert run.returncode == 0, run.stderr
        found = json.loads(run.stdout)["plan"]["projector"]
        assert (found and found["name"]) == seen
    run = edgechat("--no-vision", "list")
    assert run.returncode == 2
    assert "must follow the command" in run.stderr


def test_a_header_that_was_read_is_kept_for_plans_without_the_network(user, hub):
    hub.add("owner/tiny-GGUF", {"tiny-F32.gguf": tiny(), "mmproj-F16.gguf": projector()})
    before = json.loads(said("plan", "owner/tiny-GGUF", "--json"))["projector"]
    hub.stop()
    run = edgechat("plan", "owner/tiny-GGUF", "--offline", "--json")
    assert json.loads(run.stdout)["projector"] == before
    assert before is not None
