"""Estimated headers of the catalogue's MLX models, before their repositories are asked.

From the shapes that come with edgechat (shipped.py) and MLX's own rule: matrices are quantized in groups of
64, each with a scale and a bias of 16 bits; norms and the like stay in 16 bits. A converter decides which
matrices keep more bits, so this may be off by some per cent; the header on the hub is exact.
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
    """Return the header of a model's MLX repository in this quantization, with estimated sizes.

    quant: '4bit', 'mxfp4', 'bf16'. None if the catalogue names no such repository, or if no shapes of the
    model are shipped. Raises ModelFileError if the shipped file is damaged.
    """
    repo, quants = entry.mlx_repo(quant), shipped_quants(entry)
    base = shipped_header(entry, quants[0]) if repo and quants else None
    if base is None or repo is None:
        return None
    label = next(name for name in entry.mlx if canonical(name) == canonical(quant))
    tensors = tuple(_to_mlx(tensor, label) for tensor in base.tensors)
    metadata = {key: value for key, value in base.metadata.items() if key != "general.file_type"}
    metadata["mlx.quantization"] = label
    n_bytes = sum(tensor.n_bytes for tensor in tensors)
    return replace(base, path=repo, metadata=metadata, tensors=tensors, format="mlx", file_size=n_bytes)


def _to_mlx(tensor: ModelTensor, label: str) -> ModelTensor:
    n = tensor.n_elements
    kind = _mlx_type(tensor, label)
    if kind in (GgmlType.MXFP4, GgmlType.BF16):
        return replace(tensor, type=kind, n_bytes=kind.row_bytes(n))
    bits = next(bits for bits, mlx_type in MLX_TYPES.items() if mlx_type is kind)
    return replace(tensor, type=kind, n_bytes=n * bits // 8 + n // GROUP * _SCALE_AND_BIAS)


def _mlx_type(tensor: ModelTensor, label: str) -> GgmlType:
    # Like llama.cpp, MLX does not quantize norms, convolutions and small gates.
    unquantized = tensor.type in (GgmlType.F32, GgmlType.F16, GgmlType.BF16)
    if unquantized or len(tensor.shape) < 2 or tensor.shape[0] % GROUP:
        return GgmlType.BF16
    if is_mlx_bits(label):
        return MLX_TYPES[int(label[0])]
    if canonical(label) == "MXFP4":  # experts only; the rest is in 8 bits
        return GgmlType.MXFP4 if "_exps." in tensor.name else GgmlType.Q8_0
    return GgmlType.BF16
