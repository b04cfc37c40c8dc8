"""Projector files as found beside models: realistic headers, but tensors of a few numbers.

path = projector("gemma3", width=64)            for a model with 64 channels
path = projector("qwen3vl_merger", audio="")    sees only; with audio="gemma4a" it also hears
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.kit.build import FILE_TYPES, MODELS_DIR, made
from tests.kit.shapes import DENSE

TYPES = {"F16": gguf.GGMLQuantizationType.F16, "F32": gguf.GGMLQuantizationType.F32}


def projector(
    vision: str = "gemma3",
    audio: str = "",
    *,
    width: int = DENSE.n_embd,
    weights: str = "F16",
    image_size: int = 64,
    patch_size: int = 16,
    n_layers: int = 1,
    n_embd: int = 32,
    n_ff: int = 64,
    n_rows: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    folder: Path = MODELS_DIR,
) -> Path:
    """Return the path of a projector; `vision` and `audio` are llama.cpp's names of its types, '' for none.

    width: channels of its output. n_rows: size of its largest matrix, to get a file of a certain size.
    overrides: metadata to set; None removes a key.
    """
    both = [("vision", vision), ("audio", audio)]
    keys: dict[str, Any] = {f"clip.has_{name}_encoder": bool(kind) for name, kind in both if kind}
    keys["general.file_type"] = FILE_TYPES[TYPES[weights]]
    kinds = [kind for _, kind in both if kind]
    for name, kind in both:
        if not kind:
            continue
        keys["clip.projector_type" if len(kinds) == 1 else f"clip.{name}.projector_type"] = kind
        keys |= {
            f"clip.{name}.embedding_length": n_embd,
            f"clip.{name}.feed_forward_length": n_ff,
            f"clip.{name}.block_count": n_layers,
            f"clip.{name}.projection_dim": width,
            f"clip.{name}.attention.head_count": 2,
            f"clip.{name}.attention.layer_norm_epsilon": 1e-6,
        }
    if vision:
        keys |= {
            "clip.vision.image_size": image_size,
            "clip.vision.patch_size": patch_size,
            "clip.vision.image_mean": [0.5, 0.5, 0.5],
            "clip.vision.image_std": [0.5, 0.5, 0.5],
        }
    if audio:
        keys["clip.audio.num_mel_bins"] = 80
    keys = {key: value for key, value in {**keys, **(overrides or {})}.items() if value is not None}
    shapes = {
        "mm.input_projection.weight": (n_embd, width),
        "v.blk.0.ffn_up.weight": (n_rows or n_ff, n_embd),
    }
    digest = hashlib.sha256(repr((sorted(keys.items()), shapes, weights)).encode()).hexdigest()[:12]

    def write(path: Path) -> None:
        writer = gguf.GGUFWriter(path, "clip")
        for key, value in keys.items():
            _add(writer, key, value)
        dtype = np.float16 if weights == "F16" else np.float32
        for tensor, shape in shapes.items():
            writer.add_tensor(tensor, np.full(shape, 0.01, dtype), raw_dtype=TYPES[weights])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    return made(folder / f"projector-{vision or audio}-{weights}-{digest}.gguf", write)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if type(value) is int and value < 0:
        writer.add_int32(key, value)
        return
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    writer.add_array(key, value) if isinstance(value, list) else add[type(value)](key, value)
