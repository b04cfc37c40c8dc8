"""GGUF files that hold a vision tower beside the text model, as Ollama made them until May 2026.

llama.cpp refuses tensors that a text model does not have, so such a file is no model here; its text part is,
in a file of its own (`models/local/rewriting.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from edgechat.base.errors import ModelFileError
from edgechat.base.text import mebibytes, one_line
from edgechat.models.formats.header import ModelHeader, ModelTensor

_BEGINNINGS = ("v.", "a.", "s.", "mm.", "mm_", "resampler.", "vision.", "vision_tower.")
"""Of the names of tensors for pictures and sound; no text model has any like them."""


class VisionInside(ModelFileError):
    """A file that holds more than the text model."""


def is_for_text(tensor: ModelTensor) -> bool:
    """Return whether a tensor belongs to the text model."""
    return not tensor.name.startswith(_BEGINNINGS)


def check_text_only(header: ModelHeader) -> None:
    """Raise VisionInside for a file that is a text model, and more."""
    others = [tensor for tensor in header.tensors if not is_for_text(tensor)]
    if others and len(others) < len(header.tensors):
        raise VisionInside(
            f"{one_line(header.path)} holds a vision tower ({_bytes(others)}) beside the text model, which "
            "llama.cpp does not load.",
            hint=f"To make a copy that reads text ({_bytes(filter(is_for_text, header.tensors))}): "
            "edgechat import MODEL",
        )


def _bytes(tensors: Iterable[ModelTensor]) -> str:
    return mebibytes(sum(tensor.n_bytes for tensor in tensors))
