"""LoRA adapters for the kit's models, as GGUF files and PEFT folders, and models with adapters merged in."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type

from tests.kit import weights
from tests.kit.build import Spec, build, data_of, table_of, typed, write
from tests.kit.shapes import Shape, Tensor

Floats = npt.NDArray[np.float32]
Pairs = dict[str, tuple[Floats, Floats]]
"""lora_a [rank, n_in] and lora_b [n_out, rank], by name of the tensor that they change."""

CHANGED = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_HF = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def pairs(spec: Spec, *, rank: int = 4, seed: int = 7, strength: float = 1.0) -> Pairs:
    """Return random pairs for the matrices in a model's layers, which change them by about `strength`."""
    found: Pairs = {}
    for tensor in table_of(spec):
        if any(f".{name}.weight" in tensor.name for name in CHANGED):
            n_in, n_out = tensor.shape
            rng = weights.generator(seed, tensor.name)
            a = rng.standard_normal((rank, n_in), np.float32) / np.sqrt(n_in)
            b = rng.standard_normal((n_out, rank), np.float32) * np.float32(strength / np.sqrt(rank))
            found[tensor.name] = a.astype(np.float32), b.astype(np.float32)
    return found


def write_adapter(
    path: Path, pairs: Pairs, shape: Shape, *, alpha: float = 0.0, overrides: Mapping[str, Any] = {}
) -> Path:
    """Write an adapter as llama.cpp's converter does. overrides: metadata to set; None removes a key."""
    entries: dict[str, Any] = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": alpha}
    writer = gguf.GGUFWriter(path, str(overrides.get("general.architecture", shape.arch)))
    for key, value in (entries | dict(overrides)).items():
        if value is not None and key != "general.architecture":
            writer.add_key_value(*typed(key, value))
    for name, (a, b) in pairs.items():
        writer.add_tensor(f"{name}.lora_a", a)
        writer.add_tensor(f"{name}.lora_b", b)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
    return path


def adapter(folder: Path, spec: Spec, name: str = "adapter", **how: Any) -> Path:
    """Create an adapter for a model; return its path."""
    return write_adapter(folder / f"{name}.gguf", pairs(spec, **how), spec.shape)


def merged(path: Path, spec: Spec, pairs: Pairs, scale: float = 1.0) -> Path:
    """Write a model in F32, with an adapter merged into its weights."""

    def data(spec: Spec, tensor: Tensor, kind: Type) -> weights.Bytes:
        plain = data_of(spec, tensor, kind)
        if tensor.name not in pairs:
            return plain
        a, b = pairs[tensor.name]
        changed = plain.view(np.float32).reshape(tensor.shape[::-1]) + np.float32(scale) * (b @ a)
        return changed.astype(np.float32).view(np.uint8).reshape(plain.shape)

    write(spec, path, data=data)
    return path


def peft_folder(folder: Path, pairs: Pairs, shape: Shape, *, dtype: str = "F32", **config: Any) -> Path:
    """Write an adapter as PEFT saves it; with alpha = rank, it equals that of `write_adapter`.

    A llama's queries and keys are in the order that transformers uses. config: entries of
    adapter_config.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Floats] = {}
    rank = 0
    for name, (a, b) in pairs.items():
        _, layer, module, _ = name.split(".")
        rank = len(a)
        if shape.arch == "llama" and module in ("attn_q", "attn_k"):
            n_heads = shape.n_heads if module == "attn_q" else shape.n_kv_heads
            b = b.reshape(n_heads, len(b) // n_heads // 2, 2, rank).swapaxes(1, 2).reshape(b.shape)
        path = f"base_model.model.model.layers.{layer}.{_HF[module]}"
        tensors[f"{path}.lora_A.weight"], tensors[f"{path}.lora_B.weight"] = a, b
    write_safetensors(folder / "adapter_model.safetensors", tensors, dtype)
    entries = {"peft_type": "LORA", "r": rank or 8, "lora_alpha": rank, "base_model_name_or_path": "kit/base"}
    (folder / "adapter_config.json").write_text(json.dumps(entries | config))
    return folder


def write_safetensors(path: Path, tensors: Mapping[str, Floats], dtype: str = "F32") -> None:
    """Write a safetensors file."""
    table: dict[str, Any] = {}
    data = b""
    for name, values in tensors.items():
        if dtype == "BF16":
            raw = (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
        else:
            raw = np.ascontiguousarray(values, {"F32": np.float32, "F16": np.float16}[dtype]).tobytes()
        table[name] = {
            "dtype": dtype,
            "shape": list(values.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    head = json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)


def base_of(spec: Spec) -> Path:
    """Return the model that adapters for `spec` belong to."""
    return build(spec)
