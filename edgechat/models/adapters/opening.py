"""An adapter, whatever it was saved as: the way in."""

from __future__ import annotations

from pathlib import Path

from edgechat.models.adapters.peft import converted
from edgechat.models.adapters.reading import Adapter, checked_pairs
from edgechat.models.formats.gguf import read_header
from edgechat.models.formats.header import ModelHeader


def open_adapter(path: Path, model: ModelHeader) -> Adapter:
    """Return the adapter of a GGUF file, or of a PEFT folder, which is converted the first time.

    model: the header of the model that it is for. Raises NotAnAdapter, ModelFileError; DiskError if what was
    converted cannot be written.
    """
    if path.is_dir():
        path = converted(path, model)
    header = read_header(path)
    return Adapter(path, header, checked_pairs(header, model))
