"""Models whose draft heads are as wide as real ones: those from tests/kit/heads, padded with zeros.

They generate the same text as the originals. Normalizing 64 channels among zeros scales them up, which the
weights of the norms compensate for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from gguf.quants import quantize

from tests.kit.build import typed
from tests.kit.heads.models import MTP
from tests.kit.heads.stream import N_EMBD
from tests.kit.tokenizers import byte_tokenizer

WIDTH, N_FF, N_EXPERT_FF, N_VOCAB = 1024, 3072, 1024, 32768
N_LAYERS = {"qwen35": 24, "glm4_moe": 16}
_EVERY = {"qwen35": 4, "glm4_moe": 1000}
"""One in this many layers is like the last one."""
_ROWS = re.compile(
    r"(ffn_(gate|up)(_shexp|_exps)?|ffn_gate_inp|attn_(q|k|v|qkv|gate)|ssm_(beta|alpha))\.weight$"
)
_COLUMNS = re.compile(r"(attn_output|ssm_out|ffn_down(_shexp|_exps)?)\.weight$")
_NORM = re.compile(r"(output_norm|attn_norm|post_attention_norm|enorm|hnorm|shared_head_norm)\.weight$")

Array = npt.NDArray[np.float32]


def wide(kind: str, folder: Path, *, eps: float) -> Path:
    """Return the path of a model in Q8_0 with N_LAYERS layers, writing it first if necessary."""
    path = folder / f"wide-{kind}-{eps:g}-Q8_0.gguf"
    if path.exists():
        return path
    model = MTP[kind](eps, 1)
    n_old = int(model.keys["block_count"]) - 1
    layers = _deepened(model.tensors, n_old, N_LAYERS[kind], _EVERY[kind])
    keys = dict(model.keys) | {
        "block_count": N_LAYERS[kind] + 1,
        "embedding_length": WIDTH,
        "feed_forward_length": N_FF,
    }
    if "expert_feed_forward_length" in keys:
        keys["expert_feed_forward_length"] = N_EXPERT_FF
        keys["leading_dense_block_count"] = N_LAYERS[kind] - n_old + 1
    writer = gguf.GGUFWriter(path, model.arch)
    plain = {"general.name": path.stem, "general.file_type": int(gguf.LlamaFileType.MOSTLY_Q8_0)}
    plain |= {f"{model.arch}.{key}": value for key, value in keys.items()}
    for key, value, value_type, sub in [*(typed(*one) for one in plain.items()), *byte_tokenizer(N_VOCAB)]:
        writer.add_key_value(key, value, value_type, sub)
    for name, array in layers.items():
        _add(writer, name, _widened(name, array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, name: str, array: Array) -> None:
    if array.ndim > 1 and array.shape[-1] % 32 == 0 and array.size > 4096:
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, quantize(np.ascontiguousarray(array), kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, np.ascontiguousarray(array))


def _deepened(tensors: Mapping[str, Array], n_old: int, n: int, every: int) -> dict[str, Array]:
    """Return tensors for n layers and the head; copies that add nothing come before the old layers."""
    found = {name: array for name, array in tensors.items() if not name.startswith("blk.")}
    for layer in range(n + 1):
        old = layer - (n - n_old)
        copied = old if old >= 0 else n_old - 1 if (layer + 1) % every == 0 else 0
        for name, array in tensors.items():
            if not name.startswith(f"blk.{copied}."):
                continue
            rest = name.split(".", 2)[2]
            found[f"blk.{layer}.{rest}"] = np.zeros_like(array) if old < 0 and _COLUMNS.match(rest) else array
    return found


def _widened(name: str, array: Array) -> Array:
    if name in ("token_embd.weight", "output.weight"):
        return _padded(array, N_VOCAB, WIDTH)
    if name.endswith("eh_proj.weight"):
        return np.hstack([_padded(half, WIDTH, WIDTH) for half in np.hsplit(array, 2)])
    if _NORM.search(name):
        return _padded(array, WIDTH) * np.float32(math.sqrt(N_EMBD / WIDTH))
    n_ff = N_EXPERT_FF if "exp" in name else N_FF
    inner = n_ff if re.search(r"ffn_(gate|up|down)(_shexp|_exps)?\.", name) else 0
    if _ROWS.search(name):
        return _padded(array, *array.shape[:-2], inner or array.shape[-2], WIDTH)
    if _COLUMNS.search(name):
        return _padded(array, *array.shape[:-2], WIDTH, inner or array.shape[-1])
    return array


def _padded(array: Array, *shape: int) -> Array:
    wide = np.zeros(shape, np.float32)
    wide[tuple(slice(size) for size in array.shape)] = array
    return wide
