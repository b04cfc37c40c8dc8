"""Adapter names typed by users, and checks of adapters against the model before llama.cpp reads them.

llama.cpp checks much of its input only with assertions, which abort the process, and it accepts some shapes
that fail later, during computation. So each tensor is compared here with the one it modifies:

    W [n_in, n_out]      lora_a [n_in, rank], lora_b [rank, n_out]       in ggml's order
    token_embd.weight    lora_a [rank, n_vocab], lora_b [rank, n_embd]   rows are looked up, not multiplied
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from edgechat.base.errors import NotAnAdapter
from edgechat.models.formats.header import ModelHeader, ModelTensor, show
from edgechat.models.formats.quants import GgmlType

KIND = "adapter"
"""Value of `general.type` in an adapter's metadata."""
EMBEDDING = "token_embd.weight"
INVOCATION = "adapter.alora.invocation_tokens"
MAX_BYTES = 8 << 30
MAX_ALPHA = 1e6
_TYPES = (GgmlType.F32, GgmlType.F16, GgmlType.BF16, GgmlType.Q8_0)
_LAYER = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter that has been checked for compatibility with a model."""

    path: Path
    """Path of the GGUF file, converted if necessary."""
    header: ModelHeader
    pairs: dict[str, tuple[ModelTensor, ModelTensor]]
    """The lora_a and lora_b pairs, keyed by the name of the tensor they modify."""

    @property
    def rank(self) -> int:
        """The largest rank among the pairs."""
        return max(map(_rank, self.pairs.values()))

    @property
    def n_bytes(self) -> int:
        """Size in memory, in bytes."""
        return sum(n for _, _, n in self.parts())

    def parts(self) -> list[tuple[str, int | None, int]]:
        """Return each modified tensor's name, its layer (or None), and the size in bytes of its pair."""
        layers = {name: _LAYER.match(name) for name in self.pairs}
        return [
            (name, int(match[1]) if (match := layers[name]) else None, a.n_bytes + b.n_bytes)
            for name, (a, b) in self.pairs.items()
        ]


def is_adapter(header: ModelHeader) -> bool:
    """Return whether a GGUF file declares itself to be an adapter."""
    return header.text("general.type") == KIND


def checked_pairs(header: ModelHeader, model: ModelHeader) -> dict[str, tuple[ModelTensor, ModelTensor]]:
    """Return the tensor pairs in an adapter's header, if all of them fit the model. Raises NotAnAdapter."""
    _check_metadata(header, model)
    pairs = tensor_pairs(header)
    tensors = {tensor.name: tensor for tensor in model.tensors}
    for name, pair in pairs.items():
        if name not in tensors:
            raise _unfit(header, model, f"it changes {show(name)}, which the model does not have")
        _check_shapes(header, model, name, pair, tensors[name])
    return pairs


def _check_metadata(header: ModelHeader, model: ModelHeader) -> None:
    if model.format != "gguf":
        raise NotAnAdapter(
            f"{model.path} is an MLX model; LoRA adapters are supported only for GGUF models.",
            hint="Use the model as a GGUF file.",
        )
    if model.makes_embeddings:
        raise NotAnAdapter(
            f"{model.path} is an embedding or reranking model; edgechat does not support LoRA "
            "adapters for these."
        )
    if not is_adapter(header):
        raise NotAnAdapter(
            f"{header.path} is not a LoRA adapter.",
            hint="To chat with a model, name it instead of the adapter.",
        )
    if header.text("adapter.type") != "lora":
        raise NotAnAdapter(f"{header.path} is an adapter, but not a LoRA adapter.")
    if INVOCATION in header.metadata:
        raise NotAnAdapter(
            f"{header.path} is an activated adapter (aLoRA), which only applies to part of the prompt; "
            "edgechat supports plain LoRA adapters.",
        )
    if header.text("general.architecture") != model.architecture:
        theirs = show(str(header.metadata.get("general.architecture")))
        raise _unfit(header, model, f"it is for the architecture {theirs}, not {show(model.architecture)}")
    alpha = header.metadata.get("adapter.lora.alpha", 0.0)
    is_float = header.types.get("adapter.lora.alpha", "float32") == "float32"
    if not is_float or not isinstance(alpha, float) or not abs(alpha) <= MAX_ALPHA:
        raise _damaged(header, "its alpha is not a number in a sensible range")


def tensor_pairs(header: ModelHeader) -> dict[str, tuple[ModelTensor, ModelTensor]]:
    """Return the lora_a and lora_b pairs in an adapter's header, keyed by the tensor they modify.

    Raises NotAnAdapter.
    """
    if header.file_size > MAX_BYTES:
        raise _damaged(header, f"it has {header.file_size} bytes; the limit is {MAX_BYTES}")
    halves: tuple[dict[str, ModelTensor], dict[str, ModelTensor]] = ({}, {})
    for tensor in header.tensors:
        base, _, suffix = tensor.name.rpartition(".")
        if suffix in ("lora_a", "lora_b"):
            halves[suffix == "lora_b"][base] = tensor
        elif not tensor.name.endswith("_norm.weight"):  # llama.cpp does not apply these
            raise _damaged(header, f"its tensor {show(tensor.name)} is not part of a LoRA adapter")
    first, second = halves
    if lone := first.keys() ^ second.keys():
        raise _damaged(header, f"it has only one of lora_a and lora_b for {show(min(lone))}")
    if not first:
        raise _damaged(header, "it changes nothing")
    return {name: (a, second[name]) for name, a in first.items()}


def _check_shapes(
    header: ModelHeader,
    model: ModelHeader,
    name: str,
    pair: tuple[ModelTensor, ModelTensor],
    weight: ModelTensor,
) -> None:
    (n_in, n_out, *more), rank = _padded(weight.shape), _rank(pair)
    a, b = (_padded(tensor.shape) for tensor in pair)
    fitting = (n_in, rank, *more), (rank, n_out, *more)
    if name == EMBEDDING:
        fitting = (rank, n_out, *more), (rank, n_in, *more)
    if (a, b) != fitting or len(weight.shape) < 2:
        raise _unfit(
            header,
            model,
            f"its shapes {list(pair[0].shape)} and {list(pair[1].shape)} do not fit {show(name)} "
            f"{list(weight.shape)}",
        )
    if not 0 < rank <= max(n_in, n_out):
        raise _damaged(header, f"its rank of {rank} for {show(name)} is not possible")
    for tensor in pair:
        if tensor.type not in _TYPES:
            raise _damaged(header, f"its tensor {show(tensor.name)} is in {tensor.type.name}")


def _rank(pair: tuple[ModelTensor, ModelTensor]) -> int:
    return _padded(pair[1].shape)[0]


def _padded(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape, 1, 1, 1, 1)[:4]


def _unfit(header: ModelHeader, model: ModelHeader, why: str) -> NotAnAdapter:
    return NotAnAdapter(
        f"The adapter {header.path} does not fit {model.path}: {why}.",
        hint="Use it with the model that it was trained for.",
    )


def _damaged(header: ModelHeader, why: str) -> NotAnAdapter:
    return NotAnAdapter(f"{header.path} is not a valid LoRA adapter: {why}.", hint="Use another copy of it.")


CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""Files in a PEFT folder."""
MAX_SCALE = 100.0


def parse_scaled(text: str) -> tuple[str, float]:
    """Parse FILE or FILE:SCALE into a name and a scale. Raises NotAnAdapter."""
    name, colon, number = text.rpartition(":")
    try:
        scale = float(number)
    except ValueError:
        return text.strip(), 1.0
    if not colon or not name.strip():
        return text.strip(), 1.0
    return name.strip(), checked_scale(scale)


def label_of(text: str) -> str:
    """Return an adapter's label: the text as typed or, for a path, its last part without '.gguf'."""
    name = text.replace("\\", "/").rpartition("/")[2]
    is_path = text.startswith((".", "/", "~")) or ".gguf" in name or "\\" in text
    return name.replace(".gguf", "") if is_path else text


def checked_scale(scale: float) -> float:
    """Return `scale` if it is a valid scale for an adapter. Raises NotAnAdapter."""
    if not math.isfinite(scale) or abs(scale) > MAX_SCALE:
        raise NotAnAdapter(
            f"{scale:g} is not a valid scale for an adapter.",
            hint=f"Use a number between -{MAX_SCALE:g} and {MAX_SCALE:g}; 1 applies it as it was trained.",
        )
    return scale
