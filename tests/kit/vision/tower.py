"""The vision tower and projector of a model that sees: two random layers that pass colors through.

Seven channels of the tower are reserved, and its layers write to none of them. Three pairs hold the mean red,
green and blue of a patch and the opposite, whose difference no norm can shift; one channel is zero. What the
last norm makes of the zero, or a bias in the projector, marks this as a picture. The rest is random, as is
what it adds to the other channels of the text model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tests.kit.vision import ear as ears
from tests.kit.vision.ear import Ear
from tests.kit.vision.text import COLOUR, IMAGE, LEVEL, RESERVED
from tests.kit.weights import generator

Floats = npt.NDArray[np.float32]

N_EMBD, N_HEADS, N_FF, N_LAYERS, PATCH = 32, 2, 64, 2, 8
_PLUS, _MINUS, _FLAG, _FREE = slice(0, 6, 2), slice(1, 6, 2), 6, 7


@dataclass(frozen=True, slots=True)
class Tower:
    """What varies between projectors."""

    type: str
    """Its name in clip.cpp."""
    image_size: int
    """Side of a picture, or of a tile of it, in pixels."""
    merge: int
    """Side, in patches, of the square that becomes one token."""
    n_text: int = 64
    """Number of channels in the text model."""
    longest_edge: int = 0
    """Size in pixels to which idefics3 enlarges a picture's longest edge before cutting it into tiles."""
    seed: int = 1
    size: int = 1
    """Factor for the tower's channels; larger ones take a measurable amount of time and memory."""

    @property
    def n_embd(self) -> int:
        """Number of channels in the tower."""
        return N_EMBD * self.size


def write(tower: Tower | None, path: Path, ear: Ear | None = None) -> None:
    """Write a projector file that sees, hears, or does both."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_name(f"tiny {tower.type if tower is not None else 'ear'}")
    keys = _metadata(tower) if tower is not None else {}
    arrays = list(tensors(tower)) if tower is not None else []
    if ear is not None:
        keys |= ears.metadata(ear)
        arrays += ears.tensors(ear)
        if "projector_type" in keys:  # otherwise it would apply to both
            keys["vision.projector_type"] = keys.pop("projector_type")
    for key, value in keys.items():
        match value:
            case bool():
                writer.add_bool(f"clip.{key}", value)
            case int():
                writer.add_uint32(f"clip.{key}", value)
            case float():
                writer.add_float32(f"clip.{key}", value)
            case str():
                writer.add_string(f"clip.{key}", value)
            case _:
                writer.add_array(f"clip.{key}", value)
    for name, values in arrays:
        kind = np.float16 if values.dtype == np.float16 else np.float32
        writer.add_tensor(name, np.ascontiguousarray(values, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _metadata(tower: Tower) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "projector_type": tower.type,
        "has_vision_encoder": True,
        "use_gelu": True,
        "vision.embedding_length": tower.n_embd,
        "vision.attention.head_count": N_HEADS,
        "vision.feed_forward_length": N_FF * tower.size,
        "vision.block_count": N_LAYERS,
        "vision.projection_dim": tower.n_text,
        "vision.attention.layer_norm_epsilon": 1e-6,
        "vision.image_size": tower.image_size,
        "vision.patch_size": PATCH,
        "vision.image_mean": [0.5, 0.5, 0.5],
        "vision.image_std": [0.5, 0.5, 0.5],
    }
    if tower.type in ("qwen2vl_merger", "qwen3vl_merger"):
        keys["vision.spatial_merge_size"] = tower.merge
    else:
        keys["vision.projector.scale_factor"] = tower.merge
    if tower.longest_edge:
        keys["vision.preproc_image_size"] = tower.longest_edge
    return keys


def tensors(tower: Tower) -> Iterator[tuple[str, Floats]]:
    """Yield the tensors' names and values, [outputs, inputs]."""
    e, f, qwen = tower.n_embd, N_FF * tower.size, tower.type.startswith("qwen")

    def rand(name: str, *shape: int, gain: float = 1.0) -> Floats:
        values = generator(tower.seed, name).standard_normal(shape, np.float32)
        return values * np.float32(gain / np.sqrt(shape[-1]))

    def free(name: str, *shape: int, gain: float = 1.0) -> Floats:
        values = rand(name, *shape, gain=gain)
        values[:_FREE] = 0
        return values

    patches = 1 + qwen  # one for each of two moments
    for name in ("v.patch_embd.weight", "v.patch_embd.weight.1")[:patches]:
        values = rand(name, e, 3 * PATCH * PATCH, gain=8.0).reshape(e, 3, PATCH, PATCH)
        values[:_FREE] = 0
        for channel in range(3):
            values[2 * channel, channel] = 2.0 / PATCH**2 / patches
            values[2 * channel + 1, channel] = -2.0 / PATCH**2 / patches
        yield name, values
    if tower.type != "qwen2vl_merger":
        side = tower.image_size // PATCH
        yield "v.patch_embd.bias", free("v.patch_embd.bias", e, gain=0.5 * np.sqrt(e))
        positions = rand("v.position_embd.weight", side * side, e, gain=0.5 * np.sqrt(e))
        positions[:, :_FREE] = 0
        yield "v.position_embd.weight", positions
    for layer in range(N_LAYERS):
        p = f"v.blk.{layer}."
        for norm in ("ln1", "ln2"):
            yield f"{p}{norm}.weight", np.ones(e, np.float32)
            yield f"{p}{norm}.bias", np.zeros(e, np.float32)
        if tower.type == "qwen3vl_merger":
            yield f"{p}attn_qkv.weight", rand(f"{p}attn_qkv", 3 * e, e)
            yield f"{p}attn_qkv.bias", np.zeros(3 * e, np.float32)
        else:
            for part in "qkv":
                yield f"{p}attn_{part}.weight", rand(f"{p}attn_{part}", e, e)
                yield f"{p}attn_{part}.bias", np.zeros(e, np.float32)
        yield f"{p}attn_out.weight", free(f"{p}attn_out", e, e)
        yield f"{p}ffn_up.weight", rand(f"{p}ffn_up", f, e)
        yield f"{p}ffn_down.weight", free(f"{p}ffn_down", e, f)
    scale, bias = np.ones(e, np.float32), np.zeros(e, np.float32)
    scale[_FLAG], bias[_FLAG] = 0, 1
    yield "v.post_ln.weight", scale
    yield "v.post_ln.bias", bias
    yield from _perceptron(tower, rand) if qwen else _linear(tower, rand)


def _linear(tower: Tower, rand: Any) -> Iterator[tuple[str, Floats]]:
    """Yield the projection of gemma3, which pools patches, or of idefics3, which concatenates them."""
    side_by_side = tower.merge**2 if tower.type == "idefics3" else 1
    values = rand("mm", tower.n_text, side_by_side, tower.n_embd, gain=2.0)
    values /= np.sqrt(side_by_side)
    values[:RESERVED] = 0
    values[COLOUR, :, _PLUS] = LEVEL / 2 / side_by_side * np.eye(3)[:, None]
    values[COLOUR, :, _MINUS] = -LEVEL / 2 / side_by_side * np.eye(3)[:, None]
    values[IMAGE, :, _FLAG] = LEVEL / side_by_side
    if tower.type == "idefics3":
        yield "mm.model.fc.weight", values.reshape(tower.n_text, -1)
    else:
        yield "mm.input_projection.weight", values[:, 0].T
        yield "mm.soft_emb_norm.weight", np.ones(tower.n_embd, np.float32)


def _perceptron(tower: Tower, rand: Any) -> Iterator[tuple[str, Floats]]:
    """Yield the projection of Qwen's models: concatenation, then two layers with a GELU in between.

    A number passes through two units, as gelu(x) - gelu(-x) = x.
    """
    side_by_side = tower.merge**2
    hidden = side_by_side * tower.n_embd
    first = rand("mm.0", hidden, side_by_side, tower.n_embd) / np.sqrt(side_by_side)
    first[:_FREE] = 0
    first[_PLUS, :, _PLUS] = first[_MINUS, :, _MINUS] = 0.5 / side_by_side * np.eye(3)[:, None]
    first[_PLUS, :, _MINUS] = first[_MINUS, :, _PLUS] = -0.5 / side_by_side * np.eye(3)[:, None]
    second = rand("mm.2", tower.n_text, hidden, gain=4.0)
    second[:RESERVED] = 0
    second[COLOUR, _PLUS] = LEVEL * np.eye(3)
    second[COLOUR, _MINUS] = -LEVEL * np.eye(3)
    bias = np.zeros(tower.n_text, np.float32)
    bias[IMAGE] = LEVEL
    yield "mm.0.weight", first.reshape(hidden, hidden)
    yield "mm.0.bias", np.zeros(hidden, np.float32)
    yield "mm.2.weight", second
    yield "mm.2.bias", bias
