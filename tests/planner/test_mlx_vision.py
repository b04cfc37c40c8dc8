"""Plans and lists of MLX models that see, with mlx-vlm and without."""

import json
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from edgechat.device import mlx
from edgechat.models.formats.mlx.contents import read_model
from edgechat.planner import prepare
from edgechat.planner.companions import TOWER
from edgechat.planner.estimate.budget import RAM
from edgechat.planner.fallback import step_down
from edgechat.planner.listing import rows
from edgechat.planner.request import PlanRequest
from tests.cli.running import edgechat
from tests.planner.macs import mac

pytest.importorskip("mlx_lm")
from tests.kit.vision.mlx import mlx_seeing

pytestmark = pytest.mark.slow
INSTALL = f"which is not installed ({sys.executable} -m pip install 'mlx-vlm"


@pytest.fixture
def with_mlx_vlm(monkeypatch):
    monkeypatch.setattr("edgechat.planner.companions.missing_vision", lambda: "")
    monkeypatch.setattr("edgechat.planner.listing.missing_vision", lambda: "")


@pytest.fixture
def without_mlx_vlm(monkeypatch):
    real = mlx.importlib.util.find_spec
    monkeypatch.setattr(
        mlx.importlib.util, "find_spec", lambda name: None if name == "mlx_vlm" else real(name)
    )


def made(kind, **request):
    return prepare.prepare(str(mlx_seeing(kind)), PlanRequest(**request))


@pytest.mark.usefixtures("with_mlx_vlm")
def test_the_tower_is_part_of_the_plan():
    seeing, blind = made("windowed", context=2048), made("windowed", context=2048, vision=False)
    tower = seeing.projector
    assert tower is not None
    assert (tower.path, tower.name, tower.vision) == (str(mlx_seeing("windowed")), TOWER, True)
    assert (tower.image_tokens, tower.image_batch, tower.device) == (16, 16, "")
    assert seeing.total_bytes - blind.total_bytes == tower.total_bytes
    weights = sum(tensor.n_bytes for tensor in read_model(mlx_seeing("windowed")).vision_tensors)
    assert tower.total_bytes > tower.weights_bytes == weights > 0
    said = f"The model sees with {TOWER}, in RAM. A picture takes up to 16 tokens."
    assert said in seeing.reasons
    assert (blind.projector, blind.no_vision) == (None, "")


@pytest.mark.usefixtures("with_mlx_vlm")
def test_on_a_mac_it_lies_where_the_model_does(monkeypatch):
    monkeypatch.setattr("edgechat.planner.machine.current_profile", lambda *_: mac(16))
    plan = made("mrope", context=2048)
    assert plan.projector is not None
    assert plan.devices == (plan.projector.device,) == ("MLX",)
    by_name = {memory.name: memory for memory in plan.memory}
    assert by_name["MLX"].projector_bytes > by_name[RAM].projector_bytes > 0


@pytest.mark.usefixtures("with_mlx_vlm")
def test_the_last_step_down_but_one_leaves_it_out():
    plan, said = made("windowed", context=2048), ""
    header = read_model(mlx_seeing("windowed"))
    while plan.projector is not None:
        step = step_down(plan, header)
        assert step is not None
        plan, said = step
    assert said == "Its vision tower is not loaded, to save memory: the model reads only text."
    assert plan.no_vision == said


@pytest.mark.usefixtures("without_mlx_vlm")
def test_without_mlx_vlm_it_is_said_how_to_get_it():
    plan = made("windowed", context=2048)
    assert plan.projector is None
    assert INSTALL in plan.no_vision
    assert plan.no_vision in plan.reasons


def test_the_version_that_is_named_is_the_extras():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["mlx-vision"] == [mlx._VISION]


def test_lists_say_who_sees_now(home, monkeypatch):
    shutil.copytree(mlx_seeing("windowed"), home / "data" / "models" / "Seeing-bf16")
    for missing in ("", "It is missing."):
        monkeypatch.setattr("edgechat.planner.companions.missing_vision", lambda text=missing: text)
        monkeypatch.setattr("edgechat.planner.listing.missing_vision", lambda text=missing: text)
        (row,) = (row for row in rows() if row.model.found.format == "mlx")
        assert row.glance.modalities == (() if missing else ("vision",))
        assert row.glance.no_vision == missing


def test_list_and_show(home):
    """As it is on this machine, with mlx-vlm or without."""
    shutil.copytree(mlx_seeing("windowed"), home / "data" / "models" / "Seeing-bf16")
    sees = not mlx.missing_vision()
    shown = json.loads(edgechat("show", "Seeing-bf16", "--json").stdout)
    (listed,) = (one for one in json.loads(edgechat("list", "--json").stdout) if one["format"] == "mlx")
    for said in (shown, listed):
        assert (said["vision"], said["projector"], bool(said["no_vision"])) == (sees, None, not sees)
    text = edgechat("show", "Seeing-bf16").stdout
    assert ("of the weights are for images" if sees else "mlx-vlm") in text
