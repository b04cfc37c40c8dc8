"""What is shown while a model is loaded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from edgechat.engine.protocol import Engine
from edgechat.engine.remote.starting import LOG_BYTES, Starting


def load_shown(show: Callable[[str, float | None], None], engine: Engine) -> Callable[[float], None]:
    """Return what shows the progress of a load: of a program that edgechat starts, what it is doing."""
    if engine.plan.program is None:
        return partial(show, "Loading the model")
    starting = Starting(engine.plan)
    return lambda share: show(starting.line(engine.log_tail(LOG_BYTES)), share or None)
