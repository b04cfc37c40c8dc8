"""The encoder of a model that hears, with Voxtral's projection: it passes tones on as colors.

A sound is red if it contains a low tone, green for a middle one, blue for a high one (sounds.py). The first
convolution compares each band of the spectrum with a threshold. Each band has a pair of opposite channels,
whose difference no norm can shift. The first attention head looks for the loudest moment, anywhere in half a
minute, and tells all positions what it has heard there: HEARD. Finally, several positions are merged into one
embedding. Everything else is random.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.kit.vision.text import COLOUR, IMAGE, LEVEL, RESERVED
from tests.kit.weights import generator

Floats = npt.NDArray[np.float32]

N_EMBD, N_HEADS, N_FF, N_LAYERS, N_MEL, N_POSITIONS, STACK, N_HIDDEN = 32, 2, 64, 2, 16, 1500, 5, 32
N_TOKENS = N_POSITIONS // 2 // STACK
"""For a sound of up to half a minute."""
BANDS = ((0, 1), (4, 5), (12, 13))
"""Filters of the spectrum that contain a low, a middle and a high tone."""
_PLUS, _MINUS = slice(0, 6, 2), slice(1, 6, 2)
_HEARD, _UNHEARD = slice(6, 12, 2), slice(7, 12, 2)
_FLAG, _FREE = 12, 13
_THRESHOLD, _STEEPNESS = 0.6, 9.0
"""Applied to the logarithm of a band's energy, as scaled by libmtmd: 0.1 is noise, 1 a tone."""
_LOUDEST = 16.0


@dataclass(frozen=True, slots=True)
class Ear:
    """What can vary in an encoder."""

    n_text: int = 64
    """Number of channels in the text model."""
    seed: int = 1


def metadata(ear: Ear) -> dict[str, Any]:
    """Return its metadata, without the prefix 'clip.'."""
    return {
        "has_audio_encoder": True,
        "audio.projector_type": "voxtral",
        "audio.embedding_length": N_EMBD,
        "audio.attention.head_count": N_HEADS,
        "audio.feed_forward_length": N_FF,
        "audio.block_count": N_LAYERS,
        "audio.projection_dim": ear.n_text,
        "audio.attention.layer_norm_epsilon": 1e-5,
        "audio.num_mel_bins": N_MEL,
        "audio.projector.stack_factor": STACK,
    }


def tensors(ear: Ear) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield its tensors' names and values, [outputs, inputs]."""

    def rand(name: str, *shape: int, gain: float = 1.0) -> Floats:
        values = generator(ear.seed, name).standard_normal(shape, np.float32)
        return values * np.float32(gain / np.sqrt(np.prod(shape[1:])))

    def free(name: str, *shape: int, gain: float = 1.0) -> Floats:
        values = rand(name, *shape, gain=gain)
        values[:_FREE] = 0
        return values

    yield from _convolutions(free)
    positions = rand("a.position_embd.weight", N_POSITIONS, N_EMBD, gain=0.5 * np.sqrt(N_EMBD))
    positions[:, :_FREE] = 0
    yield "a.position_embd.weight", positions
    for layer in range(N_LAYERS):
        p = f"a.blk.{layer}."
        for norm in ("ln1", "ln2"):
            yield f"{p}{norm}.weight", np.ones(N_EMBD, np.float32)
            yield f"{p}{norm}.bias", np.zeros(N_EMBD, np.float32)
        attention = {part: rand(f"{p}attn_{part}", N_EMBD, N_EMBD) for part in "qkv"}
        attention["out"] = free(f"{p}attn_out", N_EMBD, N_EMBD)
        queries = np.zeros(N_EMBD, np.float32)
        if layer == 0:
            _listen(attention, queries)
        for part, values in attention.items():
            yield f"{p}attn_{part}.weight", values
        yield f"{p}attn_q.bias", queries
        yield f"{p}attn_v.bias", np.zeros(N_EMBD, np.float32)
        yield f"{p}ffn_up.weight", rand(f"{p}ffn_up", N_FF, N_EMBD)
        yield f"{p}ffn_down.weight", free(f"{p}ffn_down", N_EMBD, N_FF)
    scale, bias = np.ones(N_EMBD, np.float32), np.zeros(N_EMBD, np.float32)
    scale[_FLAG], bias[_FLAG] = 0, 1
    yield "a.post_ln.weight", scale
    yield "a.post_ln.bias", bias
    yield from _projection(ear, rand)


def _convolutions(free: Any) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield two convolutions over three moments each; the second one halves the number of moments."""
    first, bias = free("a.conv1d.1.weight", N_EMBD, N_MEL, 3), np.zeros((N_EMBD, 1), np.float32)
    for band, filters in enumerate(BANDS):
        for channel, sign in ((2 * band, 1), (2 * band + 1, -1)):
            first[channel, filters, 1] = sign * _STEEPNESS / len(filters)
            bias[channel] = -sign * _STEEPNESS * _THRESHOLD
    second = free("a.conv1d.2.weight", N_EMBD, N_EMBD, 3)
    second[:6, :6, 1] = np.eye(6)
    for number, weights, biases in ((1, first, bias), (2, second, np.zeros_like(bias))):
        yield f"a.conv1d.{number}.weight", weights.astype(np.float16)
        yield f"a.conv1d.{number}.bias", biases


def _listen(attention: dict[str, Floats], queries: Floats) -> None:
    """Make the first head look for the moment at which most bands are loud."""
    head = N_EMBD // N_HEADS
    for part in "qkv":
        attention[part][:head] = 0
    queries[0] = _LOUDEST
    attention["k"][0, _PLUS], attention["k"][0, _MINUS] = 1, -1
    attention["v"][:3, _PLUS], attention["v"][:3, _MINUS] = np.eye(3), -np.eye(3)
    attention["out"][_HEARD, :3], attention["out"][_UNHEARD, :3] = np.eye(3), -np.eye(3)


def _projection(ear: Ear, rand: Any) -> Iterator[tuple[str, Floats]]:
    """Yield two layers with a GELU in between; x passes through as gelu(x) - gelu(-x)."""
    first = rand("mm.a.mlp.1.weight", N_HIDDEN, STACK, N_EMBD)
    first[:7] = 0
    for sign, units in ((1, slice(0, 3)), (-1, slice(3, 6))):
        first[units, :, _HEARD] = sign * np.eye(3)[:, None] / STACK
        first[units, :, _UNHEARD] = -sign * np.eye(3)[:, None] / STACK
    first[6, :, _FLAG] = 4 / STACK
    second = rand("mm.a.mlp.2.weight", ear.n_text, N_HIDDEN, gain=1.5)
    second[:RESERVED] = 0
    second[COLOUR, 0:3], second[COLOUR, 3:6] = LEVEL / 4 * np.eye(3), -LEVEL / 4 * np.eye(3)
    second[IMAGE, 6] = LEVEL / 4
    yield "mm.a.mlp.1.weight", first.reshape(N_HIDDEN, -1)
    yield "mm.a.mlp.2.weight", second
