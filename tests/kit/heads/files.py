"""A model as arrays and metadata, and the GGUF made of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tests.kit.build import made, typed
from tests.kit.tokenizers import CHATML, KeyValue, byte_tokenizer

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Model:
    """Everything that goes into a file."""

    arch: str
    name: str
    keys: Mapping[str, Any]
    """Metadata of the architecture, without its prefix."""
    tensors: Mapping[str, npt.NDArray[Any]]
    """Float32, or int64 for ids. In NumPy's order: [outputs, inputs], a matrix of each expert before that."""
    tokenizer: bool = True
    """Whether the tokenizer of bytes is in the file, with its chat template."""

    def only(self, keep: Callable[[str], bool], name: str) -> Model:
        """Return the model with those tensors alone whose names `keep` accepts."""
        kept = {key: value for key, value in self.tensors.items() if keep(key)}
        return Model(self.arch, name, self.keys, kept, self.tokenizer)


def save(model: Model, folder: Path) -> Path:
    """Return the path of the model's file in `folder`, writing it if it is not there."""
    digest = hashlib.sha256(repr((model.arch, sorted(model.keys.items()), model.tokenizer)).encode())
    for name, array in model.tensors.items():
        digest.update(f"{name} {array.shape} {array.dtype}".encode())
        digest.update(array.tobytes())
    path = folder / f"{model.name}-F32-{digest.hexdigest()[:12]}.gguf"
    return made(path, lambda path: _write(model, path))


def _write(model: Model, path: Path) -> None:
    writer = gguf.GGUFWriter(path, model.arch)
    for key, value, kind, sub in _key_values(model):
        writer.add_key_value(key, value, kind, sub)
    for name, array in model.tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(array))
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _key_values(model: Model) -> list[KeyValue]:
    plain: dict[str, Any] = {"general.name": model.name, "general.file_type": 0}
    plain |= {f"{model.arch}.{key}": value for key, value in model.keys.items()}
    if model.tokenizer:
        plain["tokenizer.chat_template"] = CHATML
    return [typed(key, value) for key, value in plain.items()] + (byte_tokenizer() if model.tokenizer else [])
