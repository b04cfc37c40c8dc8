"""A model as arrays and metadata, and the GGUF file made from them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    """The architecture's metadata, without its prefix."""
    tensors: Mapping[str, npt.NDArray[Any]]
    """float32, or int64 for ids. In NumPy's order: [outputs, inputs], with any experts first."""

    def split(self) -> tuple[Model, Model]:
        """Return the model without its drafting layers, and those layers with the model's ends."""
        n_layers = self.keys["block_count"] - self.keys["nextn_predict_layers"]
        drafting = {name for name in self.tensors if _layer(name) >= n_layers}
        ends = {name for name in self.tensors if _layer(name) < 0}
        keys = {
            key: _cut(value, n_layers) for key, value in self.keys.items() if key != "nextn_predict_layers"
        }
        bare = {name: array for name, array in self.tensors.items() if name not in drafting}
        heads = {name: array for name, array in self.tensors.items() if name in drafting | ends}
        return (
            replace(self, name=f"{self.name}-bare", keys=keys | {"block_count": n_layers}, tensors=bare),
            replace(self, name=f"mtp-{self.name}", tensors=heads),
        )


def _layer(name: str) -> int:
    """Return the number of a tensor's layer, or -1 if it is not in one."""
    return int(name.split(".")[1]) if name.startswith("blk.") else -1


def _cut(value: Any, n_layers: int) -> Any:
    """Return metadata cut to the first layers, if it has an entry per layer."""
    return value[:n_layers] if isinstance(value, list) else value


def save(model: Model, folder: Path) -> Path:
    """Return the path of the model's file in `folder`, writing it first if necessary."""
    digest = hashlib.sha256(repr((model.arch, sorted(model.keys.items()))).encode())
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
    plain["tokenizer.chat_template"] = CHATML
    return [typed(key, value) for key, value in plain.items()] + byte_tokenizer()
