"""What is said of one model."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from edgechat.models.local.locations import Place
from edgechat.planner.companions import largest_picture
from edgechat.planner.plan import Divergence, HeadPlan
from edgechat.tui.models.descriptions import describe, explain
from edgechat.tui.models.known_models import ModelGroup, ModelItem
from tests.planner.headers import projector_file
from tests.tui import libraries


def said(item):
    return describe(item, 80, "").plain


def test_models_that_see_or_hear():
    of = libraries.entry("some", vision=True, audio=True)
    remote = ModelItem("hub:some", ModelGroup.REMOTE, "some", entry=of)
    assert " · sees and hears · owner/some-GGUF" in said(remote)
    assert "sees" in remote.searchable_text
    here = libraries.row("some", Path("/models/some.gguf"), of=of, modalities=("vision",))
    assert " · sees · own folder" in said(ModelItem("here:some", ModelGroup.HERE, "some", entry=of, row=here))


def test_models_that_draft_with_layers_of_their_own():
    row = libraries.row("some", Path("/models/some.gguf"), mtp=True)
    here = ModelItem("here:some", ModelGroup.HERE, "some", row=row)
    assert "has built-in drafting layers (MTP) · own folder" in said(here)
    base = libraries.plan("some", "Q4_K_M", 4 * libraries.GIB, 20.0)
    plan = msgspec.structs.replace(base, mtp=True, head=HeadPlan(total_bytes=600 * 2**20, gain=1.5))
    option = replace(libraries.option("some"), plan=plan)
    assert "Draft    its own layers (MTP), 600 MiB" in said(replace(here, option=option))


def test_a_loss_that_was_measured_is_told_from_a_published_one():
    base = libraries.plan("some", "Q4_K_M", 4 * libraries.GIB, 20.0)
    item = ModelItem("here:some", ModelGroup.HERE, "some", option=libraries.option("some"))
    assert "Quality  good\n" in said(item)
    loss = Divergence(value=0.0432, source="measured on this machine against F16", measured=True)
    plan = msgspec.structs.replace(base, kl_divergence=loss)
    measured = replace(item, option=replace(libraries.option("some"), plan=plan))
    assert "Quality  good, loses 0.043 nats (measured)\n" in said(measured)
    assert "measured on this machine against F16" in explain(measured).plain


def test_a_projector_that_cannot_be_used_is_named():
    row = libraries.row("some", Path("/models/some.gguf"), no_vision="x\x1b.gguf does not belong to it.")
    item = ModelItem("here:some", ModelGroup.HERE, "some", row=row)
    assert "sees" not in said(item)
    assert "x.gguf does not belong to it." in said(item)


def test_a_projector_that_was_not_pulled_is_told():
    of, path = libraries.entry("some", vision=True), Path("/models/some.gguf")
    row = libraries.row("some", path, of=of, place=Place.HUB)
    here = ModelItem("here:some", ModelGroup.HERE, "some", entry=of, row=row)
    assert "With its projector (not downloaded), it sees: edgechat pull some" in said(here)
    other = libraries.row("some", path, of=of, place=Place.OLLAMA)
    assert "projector" not in said(replace(here, row=other))


@pytest.mark.parametrize("device", ["CUDA0", ""])
def test_a_plan_shows_what_the_projector_takes_and_where(device):
    file, base = projector_file(), libraries.plan("some", "Q4_K_M", 4 * libraries.GIB, 20.0)
    planned = file.plan(largest_picture(file.header, 2560, 8192), 2560, device)
    memory = msgspec.structs.replace(base.memory[0], projector_bytes=900 * 2**20)
    plan = msgspec.structs.replace(base, projector=planned, memory=(memory,))
    option = replace(libraries.option("some"), plan=plan)
    item = ModelItem("here:some", ModelGroup.HERE, "some", option=option)
    assert "▚ projector 900 MiB" in said(item)
    assert f"Vision   mmproj.gguf, {'on CUDA0' if device else 'in RAM'}" in said(item)
    assert all(len(line) <= 80 for line in said(item).splitlines())
