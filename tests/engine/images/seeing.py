"""Engines with tiny models that see or hear, and requests for them."""

from __future__ import annotations

import hashlib
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as PillowImage

from edgechat.base.file_library import digest_of
from edgechat.base.images.image import PLACE, Image
from edgechat.base.sound.sound import Sound
from edgechat.engine.engine import EngineCore
from edgechat.engine.prompt.template import ChatTemplate
from edgechat.engine.types import ChatRequest, Delta, Event, Failed, Finished, MediaFile, Message, Sampling
from edgechat.planner.companions import ProjectorPlan
from edgechat.planner.plan import LoadPlan
from tests.engine.runtimes import GPU, SharedTemplate, load
from tests.kit.vision import KINDS, RATE, Picture, SoundWave, hearing, seeing, wav

QUESTION = "What colour is it?"
MLX = "mlx-"
"""Prefix of kinds that are for MLX."""
MLX_KINDS = (
    ("mlx-windowed", "mlx-dense", "mlx-mrope", "mlx-hybrid") if find_spec("mlx_vlm") is not None else ()
)
ALL_KINDS = (*KINDS, *MLX_KINDS)
MANY = tuple(kind for kind in ALL_KINDS if kind != "mlx-dense")
"""Kinds that name the color of the last of several images."""


def plan_of(kind: str, *, hears: bool = False, sees: bool = True, **changes: Any) -> LoadPlan:
    """Return the plan that loads a model with its projector."""
    if kind.startswith(MLX):
        return _mlx_plan(kind, **changes)
    eyes = hearing(kind, sees=sees) if hears else seeing(kind)
    fields: dict[str, Any] = {
        "context": 2048,
        "threads": 1,
        "flash_attention": False,
        "n_ubatch": 64,
        "n_seq_max": 3,
        "checkpoint_bytes": 2**24,
        "projector": ProjectorPlan(
            path=str(eyes.projector), name=eyes.projector.name, vision=sees, audio=hears
        ),
    }
    return LoadPlan(model_path=str(eyes.model), model_name=kind, **fields | changes)


def _mlx_plan(kind: str, **changes: Any) -> LoadPlan:
    from tests.kit.vision.mlx import mlx_seeing

    folder = mlx_seeing(kind.removeprefix(MLX))
    tower = ProjectorPlan(path=str(folder), name="its vision tower", vision=True, audio=False)
    fields: dict[str, Any] = {
        "context": 2048,
        "threads": 1,
        "n_seq_max": 3,
        "checkpoint_bytes": 2**24,
        "projector": tower,
    }
    fields |= GPU | changes
    return LoadPlan(model_path=str(folder), model_name=kind, backend="mlx", **fields)


def engine_of(plan: LoadPlan, template: ChatTemplate, **fields: Any) -> EngineCore:
    """Return an engine for a plan."""
    return EngineCore(load(plan), SharedTemplate(template), **fields)  # type: ignore[arg-type]


def image_of(picture: Picture, folder: Path) -> Image:
    """Return a picture as an image file."""
    digest = hashlib.blake2b(picture.tobytes() + bytes(picture.shape), digest_size=16).hexdigest()
    path = folder / f"{digest}.png"
    PillowImage.fromarray(np.ascontiguousarray(picture)).save(path)
    height, width, _ = picture.shape
    return Image(digest, str(path), width, height)


def sound_of(sound: SoundWave, folder: Path) -> Sound:
    """Return a sound as a sound file."""
    data = wav(sound)
    path = folder / f"{digest_of(data)}.wav"
    path.write_bytes(data)
    return Sound(digest_of(data), str(path), len(sound) / RATE)


def asking(*media: MediaFile, text: str = QUESTION) -> Message:
    """Return a question about images and sounds, which come first."""
    return Message("user", PLACE * len(media) + text, media=media)


def ask(engine: EngineCore, name: str, *messages: Message, **fields: Any) -> tuple[str, Finished]:
    """Return the exact answer, and its Finished event."""
    fields = {"sampling": Sampling(temperature=0), "max_tokens": 8} | fields
    engine.begin(ChatRequest(id=name, messages=messages, **fields))
    return answer_of(name, until_idle(engine))


def until_idle(engine: EngineCore) -> list[Event]:
    """Step until there is nothing to do."""
    events: list[Event] = []
    while not engine.is_idle:
        if engine.is_waiting:
            time.sleep(0.001)
        events += engine.step()
    return events


def answer_of(name: str, events: list[Event]) -> tuple[str, Finished]:
    """Return the answer to a request, and its Finished event."""
    failed = [event for event in events if isinstance(event, Failed)]
    assert not failed, failed
    text = "".join(one.text for one in events if isinstance(one, Delta) and one.request_id == name)
    (end,) = (one for one in events if isinstance(one, Finished) and one.request_id == name)
    return text.strip(), end
