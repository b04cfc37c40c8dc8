"""The families of models that see, as mlx-vlm has them: how each one's pictures are cut and shown.

Only those whose pictures are shown here as their makers meant it: which tokens see each other, at which
positions. The names are those of `models/formats/mlx/vision.py`, which tells who sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[np.generic]]
"""What a processor made of a picture, by the names that mlx-vlm gives it."""


@dataclass(frozen=True, slots=True)
class Family:
    """What is peculiar to the models of one `model_type`."""

    module: str
    """mlx-vlm's folder with what cuts pictures ..."""
    processor: str
    """... and the class there."""
    stands_for: str
    """The text that its processor takes for a picture."""
    piece: Callable[[Arrays, int], Arrays]
    """Gives the pixels of one run of a picture's cells, by its number."""
    sees_itself: bool = False
    """A run's cells see each other, the later ones too, unless the config says otherwise."""
    turns_thrice: bool = False
    """M-RoPE: positions have a time, a row and a column."""


def _of_batch(arrays: Arrays, number: int) -> Arrays:
    return {"pixel_values": arrays["pixel_values"][number : number + 1]}


def _of_tiles(arrays: Arrays, number: int) -> Arrays:
    names = [name for name in ("pixel_values", "pixel_attention_mask") if name in arrays]
    return {name: arrays[name][:, number : number + 1] for name in names}


def _of_patches(arrays: Arrays, number: int) -> Arrays:
    grids = arrays["image_grid_thw"].astype(np.int64)
    start = int(grids[:number].prod(axis=1).sum())
    stop = start + int(grids[number].prod())
    return {
        "pixel_values": arrays["pixel_values"][start:stop],
        "image_grid_thw": grids[number : number + 1].astype(np.int32),
    }


_QWEN = "<|vision_start|><|image_pad|><|vision_end|>"
FAMILIES: Mapping[str, Family] = {
    "gemma3": Family("gemma3", "Gemma3Processor", "<start_of_image>", _of_batch, sees_itself=True),
    "gemma4": Family("gemma4", "Gemma4Processor", "<|image|>", _of_batch, sees_itself=True),
    "idefics3": Family("idefics3", "Idefics3Processor", "<image>", _of_tiles),
    "llava": Family("llava", "LlavaProcessor", "<image>", _of_batch),
    "qwen2_5_vl": Family("qwen2_5_vl", "Qwen2_5_VLProcessor", _QWEN, _of_patches, turns_thrice=True),
    "qwen2_vl": Family("qwen2_vl", "Qwen2VLProcessor", _QWEN, _of_patches, turns_thrice=True),
    "qwen3_5": Family("qwen3_vl", "Qwen3VLProcessor", _QWEN, _of_patches, turns_thrice=True),
    "qwen3_5_moe": Family("qwen3_vl", "Qwen3VLProcessor", _QWEN, _of_patches, turns_thrice=True),
    "qwen3_vl": Family("qwen3_vl", "Qwen3VLProcessor", _QWEN, _of_patches, turns_thrice=True),
    "qwen3_vl_moe": Family("qwen3_vl", "Qwen3VLProcessor", _QWEN, _of_patches, turns_thrice=True),
    "smolvlm": Family("smolvlm", "SmolVLMProcessor", "<image>", _of_tiles),
}
"""By mlx-vlm's name, which is the `model_type` of config.json."""
