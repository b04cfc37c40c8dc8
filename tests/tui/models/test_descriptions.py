"""What is said of one model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgechat.models.local.locations import Place
from edgechat.tui.models.descriptions import describe
from edgechat.tui.models.items import ModelGroup, ModelItem
from tests.tui import libraries


def said(item: ModelItem) -> str:
    return describe(item, 80, "").plain


def test_models_that_see_or_hear() -> None:
    of = libraries.entry("some", vision=True, audio=True)
    remote = ModelItem("hub:some", ModelGroup.REMOTE, "some", entry=of)
    assert " · sees and hears · owner/some-GGUF" in said(remote)
    assert "sees" in remote.searchable_text
    here = libraries.row("some", Path("/models/some.gguf"), of=of, modalities=("vision",))
    assert " · sees · own folder" in said(ModelItem("here:some", ModelGroup.HERE, "some", entry=of, row=here))


def test_a_projector_that_cannot_be_used_is_named() -> None:
    row = libraries.row("some", Path("/models/some.gguf"), no_vision="x\x1b.gguf does not belong to it.")
    item = ModelItem("here:some", ModelGroup.HERE, "some", row=row)
    assert "sees" not in said(item)
    assert "x.gguf does not belong to it." in said(item)


def test_a_projector_that_was_not_pulled_is_told() -> None:
    of, path = libraries.entry("some", vision=True), Path("/models/some.gguf")
    row = libraries.row("some", path, of=of, place=Place.HUB)
    here = ModelItem("here:some", ModelGroup.HERE, "some", entry=of, row=row)
    assert "With its projector, which is not here, it sees: edgechat pull some" in said(here)
    other = libraries.row("some", path, of=of, place=Place.OLLAMA)
    assert "projector" not in said(replace(here, row=other))
