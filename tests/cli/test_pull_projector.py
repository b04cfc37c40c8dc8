"""`edgechat pull` of models with a projector: it comes too, unless it is unusable or not wanted."""

import hashlib

import pytest

from edgechat.models.local.inventory import inventory
from edgechat.models.request import parse_request
from edgechat.planner.ranking.pulling import PullDecision, decide
from tests.cli.pulling import REPO, found, sized, sound
from tests.kit import tiny
from tests.kit.projector_files import projector

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured")]

MODEL, EYES = "tiny-F32.gguf", "mmproj-F16.gguf"


def eyes():
    return projector("gemma4v", "gemma4a", n_rows=20_000)


def blobs(hf_cache):
    return {path.name for path in hf_cache.glob("*/blobs/*")}


def test_it_comes_along(hub, pull, hf_cache):
    repo = hub.add(REPO, {MODEL: tiny(), EYES: eyes(), "mmproj-F32.gguf": projector(weights="F32")})
    text = pull(REPO, "--dry-run").stdout
    size = eyes().stat().st_size
    assert f"Projector  {EYES}, 1 MiB: with it the model sees and hears" in text
    assert f"would download {EYES}, 1 MiB" in text
    assert not hf_cache.exists()
    of_it = [one for one in hub.requests("store") if repo.sha256(EYES) in one.path]
    assert len(of_it) == 1, "its header is read once"
    assert of_it[0].range is not None
    assert of_it[0].range[1] < size / 2
    answer = found(pull(REPO, "--json"))
    assert sound(answer)
    assert sound({"files": [answer["projector"]]})
    assert (answer["vision"], answer["audio"], answer["no_vision"]) == (True, True, None)
    assert answer["plan"]["projector"]["path"] == answer["projector"]["path"]
    assert answer["received_bytes"] == tiny().stat().st_size + size
    assert blobs(hf_cache) == {repo.sha256(MODEL), repo.sha256(EYES)}
    (model,) = [one for one in inventory().models if one.found.repo == REPO]
    assert model.found.projector is not None
    assert str(model.found.projector.path) == answer["projector"]["path"]
    again = pull(REPO).stdout
    assert f"{EYES} is already on this machine" in again


def test_without_it_and_later_only_it(hub, pull, hf_cache):
    repo = hub.add(REPO, {MODEL: tiny(), EYES: eyes()})
    blind = found(pull(REPO, "--no-vision", "--json"))
    assert (blind["projector"], blind["vision"], blind["no_vision"]) == (None, False, None)
    assert blobs(hf_cache) == {repo.sha256(MODEL)}
    later = found(pull(REPO, "--json"))
    assert [file["here"] for file in later["files"]] == [True]
    assert later["projector"]["here"] is False
    assert later["received_bytes"] == eyes().stat().st_size
    assert found(pull(REPO, "--json"))["received_bytes"] == 0
    hub.stop()
    assert found(pull(REPO, "--json", "--offline"))["projector"]["here"] is True


def test_it_is_resumed_and_its_size_counts(hub, pull, hf_cache):
    repo = hub.add(REPO, {MODEL: tiny(), EYES: eyes()})
    both = tiny().stat().st_size + eyes().stat().st_size
    decided = decide(parse_request(REPO))
    assert isinstance(decided, PullDecision)
    assert decided.total == both
    assert sum(part.needed() for part in decided.parts) == both
    folder = hf_cache / f"models--{REPO.replace('/', '--')}" / "blobs"
    folder.mkdir(parents=True)
    (folder / f"{repo.sha256(EYES)}.incomplete").write_bytes(eyes().read_bytes()[:1000])
    assert sum(part.needed() for part in decided.parts) == both - 1000
    answer = found(pull(REPO, "--json"))
    assert answer["resumed_bytes"] == 1000
    assert sound({"files": [answer["projector"]]})


def test_what_is_here_already_is_taken_rather_than_a_better_one(hub, pull, hf_cache):
    large = projector(weights="F32")
    repo = hub.add(REPO, {MODEL: tiny(), EYES: projector(), "mmproj-F32.gguf": large})
    folder = hf_cache / f"models--{REPO.replace('/', '--')}" / "blobs"
    folder.mkdir(parents=True)
    (folder / repo.sha256("mmproj-F32.gguf")).write_bytes(large.read_bytes())
    answer = found(pull(REPO, "--json"))
    assert answer["projector"]["name"] == "mmproj-F32.gguf"
    assert repo.sha256(EYES) not in blobs(hf_cache)


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (b"GGUF", "is truncated"),
        (
            projector("gemma3", overrides={"clip.projector_type": "next"}).read_bytes(),
            "does not know: 'next'",
        ),
        (projector(width=128).read_bytes(), "its embeddings have 128 channels, but the model's have 64"),
    ],
)
def test_one_that_cannot_be_used(hub, pull, hf_cache, file, says):
    hub.add(REPO, {MODEL: tiny(), EYES: file})
    answer = found(pull(REPO, "--json"))
    assert sound(answer)
    assert (answer["projector"], answer["vision"]) == (None, False)
    assert says in answer["no_vision"]
    assert hashlib.sha256(file).hexdigest() not in blobs(hf_cache)
    assert says.split()[0] in pull(REPO).stdout


def test_the_model_is_chosen_as_without_one(hub, pull):
    files = {"a-F32.gguf": tiny(), "a-Q8_0.gguf": sized(500_000)}
    hub.add(REPO, files)
    alone = found(pull(REPO, "--dry-run", "--json"))["quant"]
    hub.add(REPO, {**files, EYES: eyes()})
    assert found(pull(REPO, "--dry-run", "--json"))["quant"] == alone
