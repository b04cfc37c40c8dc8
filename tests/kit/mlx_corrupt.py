"""Folders that are not MLX models, or only look like one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def copied(folder: Path, out: Path) -> Path:
    """Copy a valid model, for damaging."""
    shutil.copytree(folder, out)
    return out


def truncated(folder: Path, out: Path, *, keep: int = -1000, name: str = WEIGHTS) -> Path:
    """Copy, with only the first `keep` bytes of a file; if negative, leave out that many at the end."""
    path = copied(folder, out) / name
    path.write_bytes(path.read_bytes()[:keep])
    return out


def without(folder: Path, out: Path, *names: str) -> Path:
    """Copy, leaving out some files."""
    copied(folder, out)
    for name in names:
        (out / name).unlink()
    return out


def configured(folder: Path, out: Path, **changes: Any) -> Path:
    """Copy, with other values in config.json; None removes a key."""
    path = copied(folder, out) / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return out


def without_model_type(folder: Path, out: Path) -> Path:
    """Copy, without the type of the model."""
    return configured(folder, out, model_type=None, architectures=None)


def custom_code(folder: Path, out: Path) -> Path:
    """Copy, asking for its own Python to be run, which would leave a file `ran` beside it."""
    configured(folder, out, model_file="model.py")
    (out / "model.py").write_text(f"open({str(out / 'ran')!r}, 'w').close()\n")
    return out


def absurd(folder: Path, out: Path, size: int = 2**40) -> Path:
    """Copy, with a config.json that claims far more layers, channels and tokens than there are."""
    keys = ("hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads", "intermediate_size")
    return configured(folder, out, **dict.fromkeys(keys, size))


def nested(folder: Path, out: Path, depth: int = 100_000) -> Path:
    """Copy, with a config.json nested too deep for any parser."""
    copied(folder, out)
    (out / "config.json").write_text("[" * depth + "]" * depth)
    return out


def of_shards(folder: Path, out: Path, *, n_shards: int = 2) -> Path:
    """Copy, with the weights spread over several files, as in large models."""
    copied(folder, out)
    arrays = mx.load(str(out / WEIGHTS))
    (out / WEIGHTS).unlink()
    names = sorted(arrays)
    files = [f"model-{i + 1:05}-of-{n_shards:05}.safetensors" for i in range(n_shards)]
    for i, file in enumerate(files):
        mx.save_safetensors(
            str(out / file), {name: arrays[name] for name in names[i::n_shards]}, metadata={"format": "mlx"}
        )
    index = json.loads((out / INDEX).read_text())
    index["weight_map"] = {name: files[i % n_shards] for i, name in enumerate(names)}
    (out / INDEX).write_text(json.dumps(index))
    return out


def missing_shard(folder: Path, out: Path) -> Path:
    """Copy in two files, one of which is missing."""
    of_shards(folder, out)
    (out / "model-00002-of-00002.safetensors").unlink()
    return out


def shard_elsewhere(folder: Path, out: Path, name: str = "../model.safetensors") -> Path:
    """Copy, with an index that points to an existing file outside the folder."""
    copied(folder, out)
    shutil.copy(folder / WEIGHTS, out / name)
    index = json.loads((out / INDEX).read_text())
    index["weight_map"] = dict.fromkeys(index["weight_map"], name)
    (out / INDEX).write_text(json.dumps(index))
    (out / WEIGHTS).unlink()
    return out


def header_changed(folder: Path, out: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Copy, with a safetensors header modified by `change`; the tensors' data stay where they are."""
    path = copied(folder, out) / WEIGHTS
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    change(header)
    new = json.dumps(header).encode()
    path.write_bytes(len(new).to_bytes(8, "little") + new + raw[8 + size :])
    return out


def huge_header(folder: Path, out: Path, size: int = 2**62) -> Path:
    """Copy, with a safetensors file that claims a header of this many bytes."""
    path = copied(folder, out) / WEIGHTS
    path.write_bytes(size.to_bytes(8, "little") + path.read_bytes()[8:])
    return out


def beyond_the_end(folder: Path, out: Path) -> Path:
    """Copy, with every tensor located after the end of the file."""

    def move(header: dict[str, Any]) -> None:
        for name, entry in header.items():
            if name != "__metadata__":
                entry["data_offsets"] = [at + (1 << 40) for at in entry["data_offsets"]]

    return header_changed(folder, out, move)


def huge_tensor(folder: Path, out: Path) -> Path:
    """Copy, with a tensor whose shape is far larger than its data."""

    def grow(header: dict[str, Any]) -> None:
        next(entry for name, entry in header.items() if name != "__metadata__")["shape"] = [2**31, 2**31]

    return header_changed(folder, out, grow)


def not_a_number(folder: Path, out: Path, value: Any = 1.5) -> Path:
    """Copy, with a number of layers that is not one."""
    return configured(folder, out, num_hidden_layers=value)


ALL: dict[str, Callable[[Path, Path], Path]] = {
    "truncated": truncated,
    "no weights": lambda folder, out: without(folder, out, WEIGHTS, INDEX),
    "no config": lambda folder, out: without(folder, out, "config.json"),
    "no tokenizer": lambda folder, out: without(folder, out, "tokenizer.json"),
    "truncated config": lambda folder, out: truncated(folder, out, keep=40, name="config.json"),
    "truncated tokenizer": lambda folder, out: truncated(folder, out, keep=400, name="tokenizer.json"),
    "no model_type": without_model_type,
    "unknown model_type": lambda folder, out: configured(folder, out, model_type="nonesuch"),
    "model_type with a path": lambda folder, out: configured(folder, out, model_type="../llama"),
    "custom code": custom_code,
    "absurd sizes": absurd,
    "a million layers": lambda folder, out: configured(folder, out, num_hidden_layers=10**6),
    "nested config": nested,
    "missing shard": missing_shard,
    "a shard elsewhere": shard_elsewhere,
    "huge header": huge_header,
    "beyond the end": beyond_the_end,
    "huge tensor": huge_tensor,
    "not a number": not_a_number,
    "a text for a number": lambda folder, out: not_a_number(folder, out, "two"),
    "no heads": lambda folder, out: configured(folder, out, num_attention_heads=0),
}
"""Every way to break a model: none of these may be loaded, run code, or crash a process."""
