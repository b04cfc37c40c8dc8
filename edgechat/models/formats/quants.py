"""Weight types: their numbers in a GGUF file, their block sizes, and their common names."""

from __future__ import annotations

from enum import IntEnum


class GgmlType(IntEnum):
    """Types of tensors in model files.

    ggml's other types are omitted on purpose: F64 passes llama.cpp's loader but crashes the first decode,
    Q8_1 and Q8_K exist only inside kernels, no model uses other integer types, and types that ggml has
    removed (Q4_2, Q4_0_4_4, ...) do not load.
    """

    block: tuple[int, int]
    """Number of weights and number of bytes in a block."""

    def __new__(cls, number: int, weights: int = 1, size: int = 1) -> GgmlType:
        """Create the member with this number."""
        kind = int.__new__(cls, number)
        kind._value_ = number
        kind.block = weights, size
        return kind

    # Number in a GGUF file, weights per block, bytes per block.
    F32 = 0, 1, 4
    F16 = 1, 1, 2
    Q4_0 = 2, 32, 18
    Q4_1 = 3, 32, 20
    Q5_0 = 6, 32, 22
    Q5_1 = 7, 32, 24
    Q8_0 = 8, 32, 34
    Q2_K = 10, 256, 84
    Q3_K = 11, 256, 110
    Q4_K = 12, 256, 144
    Q5_K = 13, 256, 176
    Q6_K = 14, 256, 210
    IQ2_XXS = 16, 256, 66
    IQ2_XS = 17, 256, 74
    IQ3_XXS = 18, 256, 98
    IQ1_S = 19, 256, 50
    IQ4_NL = 20, 32, 18
    IQ3_S = 21, 256, 110
    IQ2_S = 22, 256, 82
    IQ4_XS = 23, 256, 136
    I32 = 26, 1, 4
    I64 = 27, 1, 8
    IQ1_M = 29, 256, 56
    BF16 = 30, 1, 2
    TQ1_0 = 34, 256, 54
    TQ2_0 = 35, 256, 66
    MXFP4 = 39, 32, 17
    NVFP4 = 40, 64, 36
    Q1_0 = 41, 128, 18
    Q2_0 = 42, 64, 18

    def row_bytes(self, n: int) -> int:
        """Return the size in bytes of n weights, where n is a multiple of the block size."""
        weights, size = self.block
        return n // weights * size


MLX_TYPES = {
    2: GgmlType.Q2_K,
    3: GgmlType.Q3_K,
    4: GgmlType.Q4_0,
    5: GgmlType.Q5_0,
    6: GgmlType.Q6_K,
    8: GgmlType.Q8_0,
}
"""A ggml type for each bit width of MLX's affine quantization, with similar read and compute costs."""


def canonical(label: str) -> str:
    """Return the common spelling of a quantization: 'Q4_K_M' for 'q4_k_m', 'F16' for 'fp16'.

    Labels that only MLX uses are in lowercase: '4bit', '8bit'. Labels that it shares with GGUF are in
    uppercase: 'BF16', 'MXFP4'.
    """
    upper = label.upper()
    if is_mlx_bits(upper):
        return upper.lower()
    return {"FP16": "F16", "FP32": "F32"}.get(upper, upper)


def is_mlx_bits(label: str) -> bool:
    """Return whether this is a label that only MLX models use, such as '4bit'."""
    return len(label) == 4 and label[0] in "234568" and label[1:].upper() == "BIT"


def type_of(label: str | None) -> GgmlType | None:
    """Return the type of most weights in a file with this quantization, or None if it is unknown."""
    name = canonical(label or "").removeprefix("UD-")
    if is_mlx_bits(name):
        return MLX_TYPES[int(name[0])]
    matches = [kind for kind in GgmlType if name == kind.name or name.startswith(f"{kind.name}_")]
    return max(matches, key=lambda kind: len(kind.name), default=None)


REFUSED = {
    4: "Q4_2",
    5: "Q4_3",
    9: "Q8_1",
    15: "Q8_K",
    24: "I8",
    25: "I16",
    28: "F64",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
"""Past and present ggml types that are not valid in a model file."""

FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
    39: "NVFP4",
    40: "Q1_0",
    41: "Q2_0",
}
"""Names for the values of `general.file_type`, which specifies how a file was quantized."""
