"""The vision tower in an MLX model's folder, as described by the model's config.

The tower's sizes are added to the model's metadata, under the keys that llama.cpp's projectors use. Its
tensors are listed separately from those of the language model. Whether a tower is usable depends on the
backend, which must know how to prepare images for it: see engine/backends/mlx/families.py.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from edgechat.base.errors import ModelFileError
from edgechat.models.formats.header import ModelTensor, Value
from edgechat.models.formats.mlx.config import Config

PROCESSORS = ("preprocessor_config.json", "processor_config.json")
"""Config files of the image processor. Every model folder with vision has one of them."""
MAX_IMAGE, MAX_WIDTH = 1 << 14, 1 << 20
"""Maximum width of an image in pixels, and maximum number of channels or of values in a patch."""
KIND = "mlx.vision"
"""Metadata key for the `model_type` of a model with a tower."""
PROBLEM = "mlx.vision.problem"
"""Metadata key for the reason why the tower cannot be used."""


@dataclass(frozen=True, slots=True)
class TowerKeys:
    """The config keys for a tower, which depend on the model's `model_type`."""

    type: str
    """The projection's name in llama.cpp, if it has one."""
    width: str = "hidden_size"
    heads: str = "num_heads"
    merge: str = "spatial_merge_size"


_SIGLIP = TowerKeys("idefics3", heads="num_attention_heads", merge="scale_factor")
TOWERS = {
    "gemma3": replace(_SIGLIP, type="gemma3", merge="mm_tokens_per_image"),
    "gemma4": replace(_SIGLIP, type="gemma4v", merge="pooling_kernel_size"),
    "idefics3": _SIGLIP,
    "llava": replace(_SIGLIP, type="llava", merge=""),
    "qwen2_5_vl": TowerKeys("qwen2.5vl_merger"),
    "qwen2_vl": TowerKeys("qwen2vl_merger", width="embed_dim"),
    "qwen3_5": TowerKeys("qwen3vl_merger"),
    "qwen3_5_moe": TowerKeys("qwen3vl_merger"),
    "qwen3_vl": TowerKeys("qwen3vl_merger"),
    "qwen3_vl_moe": TowerKeys("qwen3vl_merger"),
    "smolvlm": _SIGLIP,
}
"""Usable towers, keyed by `model_type`."""


def vision_entries(config: Config, tensors: Collection[ModelTensor]) -> dict[str, Value]:
    """Return metadata for the model's tower, given the tower's tensors, or {} if there is no tower."""
    vision, kind = config.whole.get("vision_config"), config.whole.get("model_type")
    if not tensors or not isinstance(vision, dict) or not isinstance(kind, str):
        return {}
    entries: dict[str, Value] = {KIND: kind[:64]}
    tower = TOWERS.get(kind)
    if tower is None:
        return entries
    try:
        return entries | dict(_sizes(Config(config.name, config.whole, vision, kind), tower, tensors))
    except ModelFileError as error:  # the language model is still usable
        return entries | {PROBLEM: error.message}


def _sizes(
    numbers: Config, tower: TowerKeys, tensors: Collection[ModelTensor]
) -> Iterator[tuple[str, Value]]:
    width = _bounded(numbers, tower.width, MAX_WIDTH, default=1152)
    layers = {tensor.name.split(".")[2] for tensor in tensors if tensor.name.startswith("v.blk.")}
    sizes = {
        "embedding_length": width,
        "block_count": len(layers),
        "attention.head_count": _bounded(numbers, tower.heads, width, default=16),
        "feed_forward_length": _bounded(numbers, "intermediate_size", MAX_WIDTH, default=4 * width),
        "patch_size": _bounded(numbers, "patch_size", MAX_IMAGE, default=14),
        "image_size": _bounded(numbers, "image_size", MAX_IMAGE, default=384),
    }
    if tower.merge:
        sizes["spatial_merge_size"] = merge = _merge(numbers, tower, sizes)
        if tokens := numbers.number("vision_soft_tokens_per_image"):  # Gemma 4
            sizes["image_max_pixels"] = min(tokens, MAX_WIDTH) * (merge * sizes["patch_size"]) ** 2
    for key, value in sizes.items():
        yield f"clip.vision.{key}", value


def _merge(numbers: Config, tower: TowerKeys, sizes: dict[str, int]) -> int:
    """Return how many patches along each side are merged into one token."""
    if tower.merge == "mm_tokens_per_image":
        tokens = _bounded(numbers, tower.merge, MAX_WIDTH, default=256)
        return max(1, sizes["image_size"] // sizes["patch_size"] // math.isqrt(tokens))
    return _bounded(numbers, tower.merge, 64, default=2)


def _bounded(numbers: Config, key: str, most: int, default: int | None = None) -> int:
    value = numbers.require(key, default=default)
    if not 0 < value <= most:
        raise ModelFileError(
            f"{numbers.name} has no valid number for {key!r} of its vision tower.",
            hint="Use another copy of this model.",
        )
    return value
