"""Tiny models that see: each names the colour of a picture, through llama.cpp's real vision code.

    eyes = seeing("windowed")      eyes.model, eyes.projector: two files, made in milliseconds and kept
    picture = plain("red")         the RGB of a picture; the answer to PROMPT with it is " red"

Their weights are set by hand where the answer is decided and random elsewhere: what the picture shows decides
the answer by a wide margin, and the logits depend on patches, positions and tokens besides. Without a picture
the answer is " nothing"; with several it is the colour of the last. libmtmd fills up gemma3's pictures with
black, so those must be squares.

| kind | text model | projector | peculiar |
|---|---|---|---|
| windowed | gemma3 | gemma3 | a picture's tokens see each other: no causal mask |
| mrope | qwen3vl | qwen2vl | positions in time, row and column; any picture size |
| dense | qwen3 | idefics3 | large pictures are cut into tiles, each a chunk of its own |
| hybrid | qwen35 | qwen3vl | as mrope, with a recurrent state in three of four layers |
"""

from tests.kit.vision.models import KINDS, MARKS, NOTHING, PROMPT, Eyes, seeing
from tests.kit.vision.pictures import COLOURS, Picture, halves, noisy, plain

__all__ = [
    "COLOURS",
    "KINDS",
    "MARKS",
    "NOTHING",
    "PROMPT",
    "Eyes",
    "Picture",
    "halves",
    "noisy",
    "plain",
    "seeing",
]
