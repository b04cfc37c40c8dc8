"""Startup status: one line about a program that edgechat is starting, derived from its log."""

from __future__ import annotations

import re
import time

from edgechat.base.text import one_line
from edgechat.models.remote.measured import EngineStart, engine_starts
from edgechat.models.remote.model import KINDS
from edgechat.planner.plan import LoadPlan

LOG_BYTES = 8192
"""How many bytes from the end of the log `Starting.line` needs."""
_STAGES = (
    (r"Downloading|Fetching \d+ files", "downloading"),
    (
        r"Starting to load model|[Ll]oading (safetensors|weights|model)|Load weight begin",
        "loading the weights",
    ),
    (r"Warming up model for the compilation|Start compiling|Compiling a graph|Dynamo bytecode", "compiling"),
    (r"Capturing CUDA graph|Capture cuda graph|warming up the model", "warming up"),
    (r"KV cache size|Warming up done", "allocating the cache"),
    (r"Starting vLLM server|Application startup complete|server is listening", "nearly ready"),
)
"""Patterns in the logs of vLLM, SGLang, Transformers and llama-server, and what they mean."""
_STAGE = re.compile("|".join(f"(?P<s{at}>{sign})" for at, (sign, _) in enumerate(_STAGES)))
_SHARE = re.compile(r"\b(\d{1,3})%(?= Completed|\|)")
"""Percentage in a tqdm progress bar."""


class Starting:
    """Reports on the startup of a program, timed from the creation of this object."""

    def __init__(self, plan: LoadPlan) -> None:
        assert plan.remote is not None
        self._label = KINDS[plan.remote.kind]
        self._usual = engine_starts().get(plan.remote.name, EngineStart()).seconds
        self._began = time.monotonic()
        self._stage = ""

    def line(self, log: str) -> str:
        """Return the status, given the end of the log: 'Starting vLLM: compiling, 12 s (35 s last time)'."""
        self._stage = _stage(log) or self._stage
        said = f": {self._stage}" if self._stage else ""
        usual = f" ({self._usual:.0f} s last time)" if self._usual else ""
        return f"Starting {self._label}{said}, {time.monotonic() - self._began:.0f} s{usual}"


def _stage(log: str) -> str:
    """Return the latest stage that a log shows, or '' if it shows none."""
    told = list(_STAGE.finditer(log))
    if not told:
        return ""
    found = told[-1]
    stage = next(words for at, (_, words) in enumerate(_STAGES) if found[f"s{at}"] is not None)
    shares = _SHARE.findall(log[found.start() :])
    return one_line(
        f"{stage} {shares[-1]} %" if shares and stage in ("downloading", "loading the weights") else stage
    )
