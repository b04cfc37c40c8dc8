"""The header of a model that is here, in whatever format."""

from __future__ import annotations

from pathlib import Path

from edgechat.models.formats import gguf
from edgechat.models.formats.header import ModelHeader
from edgechat.models.formats.mlx.contents import read_folder


def read_model(path: Path) -> ModelHeader:
    """Read the header of the model that a backend would load from `path`: a GGUF file, or an MLX folder.

    Raises ModelFileError, also for what holds no language model.
    """
    return read_folder(path) if path.is_dir() else gguf.read_model(path)
