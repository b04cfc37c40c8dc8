"""Tiny models that see or hear: each names the color of a picture or sound, through llama.cpp's real code.

    eyes = seeing("windowed")      eyes.model, eyes.projector: two files, made in milliseconds and kept
    picture = plain("red")         a picture in RGB; the answer to PROMPT with it is " red"
    hearing("dense")               the same text model with an ear (ear.py); sound = tone("red") is a low tone

The weights that decide the answer are set by hand; the others are random. The picture decides the answer by a
wide margin, but the logits also depend on patches, positions and tokens. Without a picture the answer is
" nothing"; with several, it is the color of the last. Pictures for gemma3 must be square, since libmtmd pads
them with black.

| kind | text model | projector | peculiar |
|---|---|---|---|
| windowed | gemma3 | gemma3 | a picture's tokens see each other: no causal mask |
| mrope | qwen3vl | qwen2vl | positions in time, row and column; any picture size |
| dense | qwen3 | idefics3 | large pictures are cut into tiles, each a separate chunk |
| hybrid | qwen35 | qwen3vl | like mrope, with a recurrent state in three of four layers |
"""

from tests.kit.vision.models import KINDS, MARKS, NOTHING, PROMPT, Eyes, hearing, seeing
from tests.kit.vision.pictures import COLOURS, Picture, halves, noisy, plain
from tests.kit.vision.sounds import RATE, SoundWave, tone, wav, wav_of

__all__ = [
    "COLOURS",
    "KINDS",
    "MARKS",
    "NOTHING",
    "PROMPT",
    "RATE",
    "Eyes",
    "Picture",
    "SoundWave",
    "halves",
    "hearing",
    "noisy",
    "plain",
    "seeing",
    "tone",
    "wav",
    "wav_of",
]
