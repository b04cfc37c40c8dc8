"""How adapters are asked for: which, and with what scale."""

from __future__ import annotations

import math

import msgspec

from edgechat.base.errors import NotAnAdapter

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The files of a PEFT folder."""
MAX_SCALE = 100.0


class AdapterUse(msgspec.Struct, frozen=True):
    """A LoRA adapter to compute with."""

    path: str
    """A GGUF file, or a folder that PEFT has saved."""
    scale: float = 1.0
    """1 applies it as it was trained, 0 not at all."""


def parse_scaled(text: str) -> tuple[str, float]:
    """Return name and scale of what a user typed: FILE, or FILE:SCALE. Raises NotAnAdapter."""
    name, colon, number = text.rpartition(":")
    try:
        scale = float(number)
    except ValueError:
        return text.strip(), 1.0
    if not colon or not name.strip():
        return text.strip(), 1.0
    return name.strip(), checked_scale(scale)


def label_of(text: str) -> str:
    """Return what people call an adapter that was typed: the name of a file, without its folder."""
    name = text.replace("\\", "/").rpartition("/")[2]
    is_path = text.startswith((".", "/", "~")) or ".gguf" in name or "\\" in text
    return name.replace(".gguf", "") if is_path else text


def checked_scale(scale: float) -> float:
    """Return the scale of an adapter, if it is one. Raises NotAnAdapter."""
    if not math.isfinite(scale) or abs(scale) > MAX_SCALE:
        raise NotAnAdapter(
            f"{scale:g} is not valid as the scale of an adapter.",
            hint=f"Use a number between -{MAX_SCALE:g} and {MAX_SCALE:g}; 1 applies it as it was trained.",
        )
    return scale
