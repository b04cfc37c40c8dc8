"""What a model of the catalogue would take as an MLX model, before its repository was asked.

From the shapes that come with edgechat (shipped.py) and MLX's own rule: matrices are quantized in groups of
64, each with a scale and a bias of 16 bits; norms and the like stay in 16 bits. Which matrices are left in
more bits a converter decides, so this may be some per cent off; the header on the hub says exactly.
"""

from __future__ import annotations

from dataclasses import replace

from edgechat.models.catalogue import CatalogueEntry
from edgechat.models.formats.header import ModelHeader, ModelTensor
from edgechat.models.formats.quants import MLX_TYPES, GgmlType, canonical, is_mlx_bits
from edgechat.models.shipped import shipped_header, shipped_quants

GROUP = 64
"""Weights that share a scale and a bias."""
_SCALE_AND_BIAS = 4
"""Bytes of those."""


def mlx_header_of(entry: CatalogueEntry, quant: str) -> ModelHeader | None:
    """Return about the header of a model's MLX repository in this quantization, its sizes estimated.

    quant: '4bit', 'mxfp4', 'bf16'. None where the catalogue names no such repository, or no shapes of the
    model are shipped. Raises ModelFileError where what is shipped is damaged.
    """
    repo, quants = entry.mlx_repo(quant), shipped_quants(entry)
    base = shipped_header(entry, quants[0]) if repo and quants else None
    if base is None or repo is None:
        return None
    label = next(name for name in entry.mlx if canonical(name) == canonical(quant))
    tensors = tuple(_to_mlx(tensor, label) for tensor in base.tensors)
    metadata = {key: value for key, value in base.metadata.items() if key != "general.file_type"}
    header = replace(
        base, path=repo, metadata=metadata | {"mlx.quantization": label}, tensors=tensors, format="mlx"
    )
    return replace(header, file_size=header.weights_bytes)


def _to_mlx(tensor: ModelTensor, label: str) -> ModelTensor:
    """Return a tensor as it would be in an MLX model."""
    n = tensor.n_elements
    kind = _mlx_type(tensor, label)
    if kind is GgmlType.MXFP4:
        return replace(tensor, type=kind, n_bytes=kind.row_bytes(n))
    if kind is GgmlType.BF16:
        return replace(tensor, type=kind, n_bytes=2 * n)
    bits = next(bits for bits, mlx_type in MLX_TYPES.items() if mlx_type is kind)
    return replace(tensor, type=kind, n_bytes=n * bits // 8 + n // GROUP * _SCALE_AND_BIAS)


def _mlx_type(tensor: ModelTensor, label: str) -> GgmlType:
    # What llama.cpp leaves whole, norms, convolutions and small gates, MLX does too.
    whole = tensor.type in (GgmlType.F32, GgmlType.F16, GgmlType.BF16)
    if whole or len(tensor.shape) < 2 or tensor.shape[0] % GROUP:
        return GgmlType.BF16
    if is_mlx_bits(label):
        return MLX_TYPES[int(label[0])]
    if canonical(label) == "MXFP4":  # experts only; the rest is in 8 bits
        return GgmlType.MXFP4 if "_exps." in tensor.name else GgmlType.Q8_0
    return GgmlType.BF16
