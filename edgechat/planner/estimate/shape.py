"""Model shape: each layer's size, how much of it a token reads, and how many operations that takes.

All this comes from the tensor table. Rows of the input embeddings are looked up in RAM. The output matrix is
read in full, even if it is tied to the input embeddings. In a mixture of experts, a token reads only the few
experts that it is routed to.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import NamedTuple

from edgechat.device.speed import AttentionShape
from edgechat.models.formats.header import ModelHeader, ModelTensor
from edgechat.models.formats.mtp import stated_layers
from edgechat.models.formats.quants import GgmlType

_BLOCK = re.compile(r"blk\.(\d+)\.")
_EXPERTS = re.compile(r"_(?:ch)?exps\.")
_LOOKED_UP = ("token_embd.", "per_layer_token_embd.", "position_embd.", "token_types.")
_ALIGNMENT = 32


class Matrices(NamedTuple):
    """Matrices of the same type that tokens are multiplied by."""

    type: GgmlType
    n: int
    """Total number of weights."""
    n_bytes: int


class Layer(NamedTuple):
    """A block of the model, or the output layer, which computes logits."""

    weights: int = 0
    """Size in bytes, excluding routed experts."""
    experts: int = 0
    """Size of the routed experts in bytes."""
    matrices: tuple[Matrices, ...] = ()
    """The matrices in `weights`, grouped by type."""
    experts_matrices: tuple[Matrices, ...] = ()
    """The matrices in `experts`, grouped by type."""


class PlacedPart(NamedTuple):
    """A part of the model and its device; None means the CPU."""

    part: Layer
    device: str | None = None
    experts_in_ram: bool = False


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model's layers, with their sizes and numbers of operations."""

    layers: tuple[Layer, ...]
    output: Layer
    embedding: int
    """Size in bytes of the lookup tables, which are always in RAM."""
    tied: int
    """Size in bytes of the input matrix if it is also the output matrix, so that an accelerator gets a copy;
    otherwise 0.
    """
    main_type: GgmlType
    """The weight type that takes up the most bytes."""
    attention: int
    """Operations per token for each earlier token in its context, in all layers with full attention."""
    window: int
    """Size of the window in tokens, or 0 if no layer has one."""
    routed: float
    """Fraction of the experts that a token is routed to, or 0 if there are none."""
    width: int = 0
    """Size of a token's hidden state."""
    vocabulary: int = 0
    """Number of logits per token."""
    heads: AttentionShape | None = None
    """The shape of one layer's attention, or None if it is of an unusual kind."""
    n_full: int = 0
    """Number of layers with full attention."""
    n_windowed: int = 0
    """Number of layers with a window."""
    n_head: int = 0
    """Number of layers at the end that only predict further tokens (MTP)."""

    @property
    def has_experts(self) -> bool:
        """Whether tokens are routed to experts (MoE)."""
        return any(layer.experts for layer in self.layers)

    @property
    def parts(self) -> tuple[Layer, ...]:
        """The layers and the output, which are distributed among devices."""
        return (*self.layers, self.output)

    @property
    def without_head(self) -> ModelShape:
        """The shape without the layers that only predict further tokens, as if they were not loaded."""
        n = len(self.layers) - self.n_head
        return replace(self, layers=(*self.layers[:n], *[Layer()] * self.n_head)) if self.n_head else self

    def scaled(self, factor: float, main_type: GgmlType | None = None) -> ModelShape:
        """Return the shape at another quantization whose file is `factor` times as large.

        main_type: the new main type, if known.
        """

        def resized(matrices: tuple[Matrices, ...]) -> tuple[Matrices, ...]:
            return tuple(
                Matrices(
                    main_type if main_type is not None and kind is self.main_type else kind,
                    n,
                    round(factor * n_bytes),
                )
                for kind, n, n_bytes in matrices
            )

        def scaled(part: Layer) -> Layer:
            return Layer(
                weights=round(factor * part.weights),
                experts=round(factor * part.experts),
                matrices=resized(part.matrices),
                experts_matrices=resized(part.experts_matrices),
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
    """Return the shape of a model. Raises ModelFileError if it is missing from the header."""
    n = header.n_layers
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
    n_head = len(stated_layers(header))
    attending = sum(1 for kv in header.kv_heads[: n - n_head] if kv)
    full = max(1, attending // 6) if header.sliding_window else attending
    tied: list[ModelTensor] = []
    if not header.is_encoder and not any(tensor.name == "output.weight" for tensor in ends):
        tied = [tensor for tensor in looked_up if tensor.name == "token_embd.weight"]
    return ModelShape(
        layers=tuple(map(_layer, blocks)),
        output=_layer(ends + tied),
        embedding=sum(_padded(tensor.n_bytes) for tensor in looked_up),
        tied=sum(_padded(tensor.n_bytes) for tensor in tied),
        main_type=max(sizes, key=lambda kind: sizes[kind], default=GgmlType.F16),
        heads=_heads(header),
        n_full=full,
        n_windowed=attending - full,
        attention=_attention(header) * full,
        window=header.sliding_window,
        routed=_routed(header),
        width=header.embedding_length,
        vocabulary=header.vocab_size,
        n_head=n_head,
    )


def _routed(header: ModelHeader) -> float:
    experts, used = header.number("expert_count", 0), header.number("expert_used_count", 0)
    return min(1.0, used / experts) if experts else 0.0


def _layer(tensors: list[ModelTensor]) -> Layer:
    weights = experts = 0
    matrices: Counter[GgmlType] = Counter()
    experts_matrices: Counter[GgmlType] = Counter()
    sizes: Counter[tuple[bool, GgmlType]] = Counter()
    for tensor in tensors:
        is_expert = "exps." in tensor.name and bool(_EXPERTS.search(tensor.name))
        if is_expert:
            experts += _padded(tensor.n_bytes)
        else:
            weights += _padded(tensor.n_bytes)
        (experts_matrices if is_expert else matrices)[tensor.type] += tensor.n_elements
        sizes[is_expert, tensor.type] += tensor.n_bytes
    return Layer(
        weights=weights,
        experts=experts,
        matrices=tuple(Matrices(kind, n, sizes[False, kind]) for kind, n in matrices.items()),
        experts_matrices=tuple(Matrices(kind, n, sizes[True, kind]) for kind, n in experts_matrices.items()),
    )


def _attention(header: ModelHeader) -> int:
    """Return how many operations one query takes for one key and value, over all heads in a layer."""
    return 2 * max(header.heads, default=0) * (header.key_length + header.value_length)


def _heads(header: ModelHeader) -> AttentionShape | None:
    """Return the shape of a layer's attention, or None if it has no ordinary KV cache (encoders, MLA)."""
    latent = header.number("attention.key_length_mla", 0)
    heads, kv_heads = max(header.heads, default=0), max(header.kv_heads, default=0)
    if header.is_encoder or latent or not heads or not kv_heads:
        return None
    return AttentionShape(heads=heads, kv_heads=kv_heads, keys=header.key_length, values=header.value_length)


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
