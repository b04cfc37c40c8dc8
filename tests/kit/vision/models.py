"""The four kinds of models that see, and their files."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from tests.kit.build import MODELS_DIR, Spec, made, write
from tests.kit.shapes import QWEN3, QWEN3VL, QWEN35, WINDOWED, Shape
from tests.kit.vision import text, tower
from tests.kit.vision.ear import Ear
from tests.kit.vision.text import NOTHING
from tests.kit.vision.tower import Tower

__all__ = ["KINDS", "MARKS", "NOTHING", "PROMPT", "Eyes", "hearing", "seeing"]

FORMAT = 1
"""Part of every file's name: raise it when the same kind would give different bytes."""

_TILES = tuple(f"<row_{row}_col_{col}>" for row in (1, 2) for col in (1, 2))
MARKS = (
    "<start_of_image>",
    "<end_of_image>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<fake_token_around_image>",
    "<global-img>",
    *_TILES,
)
"""What libmtmd puts around pictures, as tokens in every kind's vocabulary."""
SOUND_MARK = "[BEGIN_AUDIO]"
"""What it puts before a sound, for models that hear."""

PROMPT = ("<|im_start|>user\n", "What colour is it?<|im_end|>\n<|im_start|>assistant\n")
"""The text before a picture and the text after it."""


@dataclass(frozen=True, slots=True)
class Eyes:
    """The files of a model that sees or hears."""

    model: Path
    projector: Path


@dataclass(frozen=True, slots=True)
class _Kind:
    shape: Shape
    tower: Tower


KINDS: dict[str, _Kind] = {
    "windowed": _Kind(WINDOWED, Tower("gemma3", image_size=128, merge=4)),
    "mrope": _Kind(QWEN3VL, Tower("qwen2vl_merger", image_size=128, merge=2)),
    "dense": _Kind(QWEN3, Tower("idefics3", image_size=64, merge=2, longest_edge=128)),
    "hybrid": _Kind(QWEN35, Tower("qwen3vl_merger", image_size=128, merge=2)),
}


def seeing(kind: str, *, folder: Path = MODELS_DIR, size: int = 1) -> Eyes:
    """Return the files of a kind, writing them first if necessary. size: factor for the tower's channels."""
    one = KINDS[kind]
    eyes = Tower(**{name: getattr(one.tower, name) for name in one.tower.__slots__} | {"size": size})
    return _written(Spec(shape=one.shape, name=f"seeing-{kind}", logit_scale=2.0), folder, eyes, None)


def hearing(kind: str, *, folder: Path = MODELS_DIR, sees: bool = False) -> Eyes:
    """Return the files of a model that hears, with a kind's text model. sees: whether it also sees."""
    one = KINDS[kind]
    name = f"hearing-{kind}{'-and-seeing' * sees}"
    spec = Spec(shape=one.shape, name=name, logit_scale=2.0)
    return _written(spec, folder, one.tower if sees else None, Ear())


def _written(spec: Spec, folder: Path, eyes: Tower | None, ears: Ear | None) -> Eyes:
    def write_text(path: Path) -> None:
        marks = MARKS if ears is None else (*MARKS, SOUND_MARK)
        write(spec, path, tokenizer=text.tokenizer(marks), data=text.data)

    heard = f" {ears!r}" if ears is not None else ""
    mark = hashlib.sha256(f"{FORMAT} {spec!r} {eyes!r}{heard}".encode()).hexdigest()[:12]
    return Eyes(
        made(folder / f"{spec.name}-{mark}.gguf", write_text),
        made(folder / f"mmproj-{spec.name}-{mark}.gguf", lambda path: tower.write(eyes, path, ears)),
    )
