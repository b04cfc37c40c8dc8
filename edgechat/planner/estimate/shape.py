"""A model layer by layer: the bytes that lie in each, those that a token reads, and its arithmetic.

From the table of tensors alone. The input embeddings are rows that are looked up, in the machine's memory;
the output matrix, tied to them or not, is read whole. Of the experts (MoE) a token reads the few it is
routed to.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import NamedTuple

from edgechat.models.formats.header import ModelHeader, ModelTensor
from edgechat.models.formats.quants import GgmlType

_BLOCK = re.compile(r"blk\.(\d+)\.")
_EXPERTS = re.compile(r"_(?:ch)?exps\.")
_LOOKED_UP = ("token_embd.", "per_layer_token_embd.", "position_embd.", "token_types.")
_ALIGNMENT = 32


class Layer(NamedTuple):
    """One block, or what makes logits of the last block's output."""

    weights: int = 0
    """Bytes, without the experts that are chosen among."""
    experts: int = 0
    """Bytes of those."""
    read: int = 0
    """Bytes of `weights` that one token reads."""
    experts_read: int = 0
    """Bytes of `experts` that one token reads."""
    operations: int = 0
    """Floating-point operations for one token in `weights`: two for each number."""
    experts_operations: int = 0


class PlacedPart(NamedTuple):
    """A part of the model on a device: None is the processor."""

    part: Layer
    device: str | None = None
    experts_in_ram: bool = False


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What lies where."""

    layers: tuple[Layer, ...]
    output: Layer
    embedding: int
    """Bytes that are looked up, in the machine's memory whatever the split."""
    tied: int
    """Bytes of the input's matrix where the output reads it too: an accelerator gets a copy of it; else 0."""
    main_type: GgmlType
    """The type of most of the weights."""
    attention: int
    """Operations for one token and one token of context before it, in all layers that see everything."""

    @property
    def has_experts(self) -> bool:
        """Whether tokens are routed to experts (MoE)."""
        return any(layer.experts for layer in self.layers)

    @property
    def parts(self) -> tuple[Layer, ...]:
        """The layers and after them the output: what is split over devices."""
        return (*self.layers, self.output)

    def scaled(self, factor: float, main_type: GgmlType | None = None) -> ModelShape:
        """Return the shape of the same model in another quantization, its file so many times as large.

        main_type: of that one, where it is known.
        """

        def scaled(part: Layer) -> Layer:
            return part._replace(
                weights=round(factor * part.weights),
                experts=round(factor * part.experts),
                read=round(factor * part.read),
                experts_read=round(factor * part.experts_read),
            )

        return replace(
            self,
            layers=tuple(map(scaled, self.layers)),
            output=scaled(self.output),
            embedding=round(factor * self.embedding),
            tied=round(factor * self.tied),
            main_type=self.main_type if main_type is None else main_type,
        )


def shape_of(header: ModelHeader) -> ModelShape:
    """Return the shape. Raises ModelFileError where the header lacks it."""
    n, routed = header.n_layers, _routed(header)
    blocks: list[list[ModelTensor]] = [[] for _ in range(n)]
    ends: list[ModelTensor] = []
    looked_up: list[ModelTensor] = []
    sizes: Counter[GgmlType] = Counter()
    for tensor in header.tensors:
        sizes[tensor.type] += tensor.n_bytes
        match = _BLOCK.match(tensor.name)
        if match and int(match[1]) < n:
            blocks[int(match[1])].append(tensor)
        elif tensor.name.startswith(_LOOKED_UP):
            looked_up.append(tensor)
        else:
            ends.append(tensor)
    tied: list[ModelTensor] = []
    if not header.is_encoder and not any(tensor.name == "output.weight" for tensor in ends):
        tied = [tensor for tensor in looked_up if tensor.name == "token_embd.weight"]
    return ModelShape(
        layers=tuple(_layer(tensors, routed) for tensors in blocks),
        output=_layer(ends + tied, routed),
        embedding=sum(_padded(tensor.n_bytes) for tensor in looked_up),
        tied=sum(_padded(tensor.n_bytes) for tensor in tied),
        main_type=max(sizes, key=lambda kind: sizes[kind], default=GgmlType.F16),
        attention=_attention(header),
    )


def _routed(header: ModelHeader) -> float:
    """Return the share of the experts that a token is routed to."""
    experts, used = header.number("expert_count", 0), header.number("expert_used_count", 0)
    return min(1.0, used / experts) if experts else 1.0


def _layer(tensors: list[ModelTensor], routed: float) -> Layer:
    weights = experts = read = n_bytes = numbers = experts_numbers = 0
    for tensor in tensors:
        if "exps." in tensor.name and _EXPERTS.search(tensor.name):
            experts += _padded(tensor.n_bytes)
            n_bytes += tensor.n_bytes
            experts_numbers += tensor.n_elements
        else:
            weights += _padded(tensor.n_bytes)
            read += tensor.n_bytes
            numbers += tensor.n_elements
    return Layer(
        weights=weights,
        experts=experts,
        read=read,
        experts_read=round(n_bytes * routed),
        operations=2 * numbers,
        experts_operations=round(2 * experts_numbers * routed),
    )


def _attention(header: ModelHeader) -> int:
    """Return the operations of one query with one key and its value, over all heads and layers."""
    heads = max(header.heads, default=0)
    full = sum(1 for kv in header.kv_heads if kv)
    if header.sliding_window:
        full = max(1, full // 6)
    return 2 * full * heads * (header.key_length + header.value_length)


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
