"""The vision tower in an MLX model's folder, read as the header of a projector."""

from __future__ import annotations

from dataclasses import replace

from edgechat.models.formats.header import ModelHeader
from edgechat.models.formats.limits import show
from edgechat.models.formats.mlx.vision import KIND, PROBLEM, TOWERS
from edgechat.models.formats.projector import Encoder, ProjectorHeader


def tower_of(header: ModelHeader) -> tuple[ProjectorHeader | None, str]:
    """Return the tower of an MLX model, or None and why it cannot be used, as a sentence; '' without one."""
    kind = header.text(KIND)
    if kind is None:
        return None, ""
    tower = TOWERS.get(kind)
    if tower is None:
        return None, f"edgechat cannot show images to models of this kind with MLX: {show(kind)}."
    if problem := header.text(PROBLEM):
        return None, problem

    def number(key: str) -> int:
        value = header.metadata[f"clip.vision.{key}"]
        assert isinstance(value, int)
        return value

    encoder = Encoder(
        tower.type,
        n_layers=number("block_count"),
        embedding_length=number("embedding_length"),
        feed_forward_length=number("feed_forward_length"),
        image_size=number("image_size"),
        patch_size=number("patch_size"),
    )
    return ProjectorHeader(replace(header, tensors=header.vision_tensors), encoder, None), ""
