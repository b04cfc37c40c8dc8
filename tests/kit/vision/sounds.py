"""Sounds in one of eight colors: red is a low tone, green a middle one, blue a high one; black is silence."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from tests.kit.vision.pictures import COLOURS

SoundWave = npt.NDArray[np.float32]
"""Samples of a single channel, between -1 and 1."""

TONES = (300.0, 1000.0, 4000.0)
"""In hertz."""
RATE = 16000
_FADE = 0.02
"""In seconds. A sudden start would be a click, which contains all tones."""


def tone(colour: str, seconds: float = 1.0, *, rate: int = RATE, seed: int = 0) -> SoundWave:
    """Return a sound in a color, with some noise."""
    times = np.arange(round(seconds * rate)) / rate
    sound = 0.002 * np.random.default_rng(seed).standard_normal(len(times))
    fade = np.minimum(1, np.minimum(times, times[-1] - times) / _FADE)
    for level, hertz in zip(COLOURS[colour], TONES, strict=True):
        sound += 0.25 * (level > 0) * fade * np.sin(2 * np.pi * hertz * times)
    return sound.astype(np.float32)


def wav(sound: SoundWave, rate: int = RATE) -> bytes:
    """Return a 16-bit WAV file."""
    data = (np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes()
    form = struct.pack("<HHIIHH", 1, 1, rate, 2 * rate, 2, 16)
    return wav_of((b"fmt ", form), (b"data", data))


def wav_of(*chunks: tuple[bytes, bytes]) -> bytes:
    """Return a WAV file made from chunks."""
    body = b"".join(
        name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2) for name, data in chunks
    )
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body
