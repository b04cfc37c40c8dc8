"""The text model of a model that sees: how the weights that are not random are set.

Nine channels of its residual stream are reserved, and written only by what is named here:

    COLOUR   a picture's tokens provide the signs of red, green and blue
    IMAGE    they also mark themselves as a picture's
    TEXT     ... and text tokens mark themselves as text
    DONE     set by an answer's token: the answer has been given
    SEEN     the color that the last attention layer found

In that layer, the first head attends from text to pictures: a picture's key and a text's query are in the
same pair of channels, which a position rotates by a thousandth, so that the nearest picture wins, as far as
1,500 tokens back. It copies COLOUR to SEEN. The output turns SEEN into the token of a color, DONE into the
end token, and neither into " nothing". The text model should normalize queries and keys; otherwise the length
of a key outweighs its distance, and with several pictures any one may win.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type

from tests.kit import weights
from tests.kit.build import Spec, data_of
from tests.kit.shapes import Shape, Tensor
from tests.kit.tokenizers import END, KeyValue, byte_tokenizer
from tests.kit.vision.pictures import COLOURS

COLOUR, IMAGE, TEXT, DONE, SEEN = slice(0, 3), 3, 4, 5, slice(6, 9)
RESERVED = 9
LEVEL = 8.0
"""Magnitude of COLOUR, IMAGE, TEXT and DONE; other channels have a standard deviation of 1."""

NOTHING = "nothing"
_ANSWERS = (*COLOURS, NOTHING)
_CONTROL, _NORMAL = 3, 1

_NEAR, _OTHER = 12, 4
"""Channels of a head of 32, paired with those 16 further on: for pictures' keys, and for texts' keys."""
_ATTENTION = 3000.0
"""Attention score of a picture's token directly before a text's; other texts score 0."""


def tokenizer(marks: tuple[str, ...]) -> list[KeyValue]:
    """Return the byte tokenizer plus the answers, an empty line, and the marks around pictures."""
    words = [f"Ġ{word}" for word in _ANSWERS] + ["ĊĊ"]
    extended: list[KeyValue] = []
    for key, value, kind, sub in byte_tokenizer():
        if key == "tokenizer.ggml.tokens":
            value = [*value, *words, *marks]
        elif key == "tokenizer.ggml.token_type":
            value = [*value, *[_NORMAL] * len(words), *[_CONTROL] * len(marks)]
        extended.append((key, value, kind, sub))
    return extended


def data(spec: Spec, tensor: Tensor, kind: Type) -> weights.Bytes:
    """Return a tensor as raw bytes, uint8 [rows, bytes per row], including the weights set by hand."""
    if kind is not Type.F32:
        return data_of(spec, tensor, kind)
    values = data_of(spec, tensor, kind).view(np.float32).reshape(tensor.shape[::-1]).copy()
    set_by_hand(spec.shape, tensor.name, values)
    return values.reshape(-1, tensor.shape[0]).view(np.uint8)


def set_by_hand(shape: Shape, name: str, values: npt.NDArray[np.float32]) -> None:
    """Set weights [outputs, inputs] by hand, in place."""
    first = END + 2  # after <|endoftext|>
    if name == "token_embd.weight":
        scale = 1 / np.sqrt(shape.n_embd) if shape.arch == "gemma3" else 1.0  # gemma3 multiplies by it
        values[:, :RESERVED] = 0
        values[:, TEXT] = LEVEL * scale
        values[first : first + len(_ANSWERS), DONE] = LEVEL * scale
        if shape.tied:  # as little as the output needs, since these are also inputs
            for row, rgb in enumerate(COLOURS.values(), first):
                values[row, SEEN] = 3.0 * _signs(rgb)
            values[first + len(COLOURS), TEXT] = 3.0
            values[END, DONE] = 100.0
    elif name == "output.weight":
        values[:, :RESERVED] = 0
        for row, rgb in enumerate(COLOURS.values(), first):
            values[row, SEEN] = 12.0 * _signs(rgb)
        values[first + len(COLOURS), TEXT] = 6.0
        values[END, DONE] = 200.0
    elif name.endswith(("attn_output.weight", "ffn_down.weight", "ssm_out.weight")):
        values[:RESERVED] = 0
    if name.startswith(f"blk.{shape.n_layers - 1}."):
        _look(shape, name.split(".", 2)[2], values)


def _look(shape: Shape, name: str, values: npt.NDArray[np.float32]) -> None:
    """Make the first head in the last layer look for pictures."""
    head = shape.head
    strength = 20.0 if shape.arch == "llama" else 1.0  # llama does not normalize them
    if name == "attn_q.weight":
        stride = head * len(values) // (head * shape.n_heads)  # twice as long if each head has a gate
        values[_NEAR::stride] = 0
        values[:stride] = 0  # a gate of zero is half open
        values[_NEAR, TEXT] = strength
    elif name == "attn_k.weight":
        values[:head] = 0
        values[_NEAR, IMAGE] = values[_OTHER, TEXT] = strength
    elif name in ("attn_q_norm.weight", "attn_k_norm.weight"):
        values[_NEAR] = np.sqrt(_ATTENTION / np.sqrt(head))
    elif name == "attn_v.weight":
        values[:3] = 0
        values[:3, COLOUR] = 8 * np.eye(3)  # the other channels carry whatever else a picture shows
    elif name == "attn_output.weight":
        values *= 0.25
        values[SEEN, :3] = 2 * np.eye(3)


def _signs(rgb: tuple[int, int, int]) -> npt.NDArray[np.float32]:
    return np.where(np.asarray(rgb) > 127, 1, -1).astype(np.float32)
