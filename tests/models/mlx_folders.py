"""Handmade MLX models, correct or faulty in any way a test wants. Their weights are random bytes."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BYTES = {"F32": 4, "BF16": 2, "F16": 2, "U32": 4, "U8": 1, "I32": 4}
Shapes = Mapping[str, tuple[str, tuple[int, ...]]]

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 64,
    "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "vocab_size": 320, "max_position_embeddings": 4096, "tie_word_embeddings": True, "eos_token_id": [7, 8],
    "bos_token_id": 3, "torch_dtype": "bfloat16",
}  # fmt: skip


def safetensors(tensors: Shapes, *, seed: int = 0, **changes: Any) -> bytes:
    """Return a safetensors file; `changes` replace entries in its table, or remove those that are None."""
    table: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    at = 0
    for name, (dtype, shape) in tensors.items():
        end = at + BYTES[dtype] * math.prod(shape)
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    table = {name: one for name, one in (table | changes).items() if one is not None}
    return raw(json.dumps(table).encode(), random.Random(seed).randbytes(at))


def raw(table: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(table)) + table + data


def shapes(config: Mapping[str, Any], *, bits: int | None = None) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the tensors of a model with this configuration."""
    wide, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    found: dict[str, tuple[str, tuple[int, ...]]] = {}

    def matrix(name: str, rows: int, columns: int) -> None:
        if bits is None:
            found[f"{name}.weight"] = ("BF16", (rows, columns))
            return
        found[f"{name}.weight"] = ("U32", (rows, columns * bits // 32))
        for part in ("scales", "biases"):
            found[f"{name}.{part}"] = ("BF16", (rows, columns // 64))

    matrix("model.embed_tokens", config["vocab_size"], wide)
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            matrix(f"{at}self_attn.{name}", rows, wide)
        matrix(f"{at}self_attn.o_proj", wide, queries)
        matrix(f"{at}mlp.gate_proj", inner, wide)
        matrix(f"{at}mlp.up_proj", inner, wide)
        matrix(f"{at}mlp.down_proj", wide, inner)
        found[f"{at}input_layernorm.weight"] = ("BF16", (wide,))
        found[f"{at}post_attention_layernorm.weight"] = ("BF16", (wide,))
    found["model.norm.weight"] = ("BF16", (wide,))
    return found


def mlx_files(*, bits: int | None = 4, n_files: int = 1, seed: int = 0, **config: Any) -> dict[str, bytes]:
    """Return a model's files; `config` overrides entries of CONFIG."""
    said = CONFIG | ({"quantization": {"bits": bits, "group_size": 64}} if bits else {}) | config
    found = {
        "config.json": json.dumps(said, indent=4).encode(),
        "tokenizer.json": b'{"model": {"type": "BPE"}}',
        "tokenizer_config.json": b'{"add_bos_token": false, "chat_template": "{{ messages }}"}',
    }
    tensors = list(shapes(said, bits=bits).items())
    if n_files == 1:
        return found | {"model.safetensors": safetensors(dict(tensors), seed=seed)}
    index = {"weight_map": {}}
    for i in range(n_files):
        name = f"model-{i + 1:05}-of-{n_files:05}.safetensors"
        mine = dict(tensors[i::n_files])
        index["weight_map"] |= dict.fromkeys(mine, name)
        found[name] = safetensors(mine, seed=seed + i)
    return found | {"model.safetensors.index.json": json.dumps(index).encode()}


def written(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write the files into a folder; return it."""
    for name, data in files.items():
        path = folder.joinpath(*name.split("/"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder
