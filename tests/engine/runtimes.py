"""Every real backend, its models and what tests do with both: the tests below are written once for all.

`runtime` and `kind` in tests/engine/conftest.py run a test for each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from edgechat.engine.backends.base import Backend, BatchPart
from edgechat.engine.prompt.template import ChatTemplate
from edgechat.engine.worker import worker
from edgechat.planner.estimate.budget import MLX
from edgechat.planner.plan import LoadPlan
from edgechat.settings import Backend as BackendName
from tests.kit import KINDS as KIT_KINDS
from tests.kit import NOT_PRINTABLE, WINDOWED, Spec, build, pair
from tests.kit.reference import Reference

KINDS = ("dense", "windowed", "hybrid", "moe")
SHAPES = KIT_KINDS | {"windowed": WINDOWED.sized(n_layers=3, window=32, window_period=3)}
"""A window that short texts leave behind, and few layers: on a processor MLX takes milliseconds a token."""
BOUND = 0.02
"""Of logits with a deviation of 4: an f16 cache rounds differently after batches of other shapes."""


GPU = {"devices": (MLX,), "split": (1,)} if os.environ.get("EDGECHAT_METAL") else {}
"""Of a plan for MLX: `make test-metal` has it compute on the GPU of a Mac."""


class Library(Protocol):
    """The library below a backend, without us."""

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        """Return n greedy tokens after the prompt."""
        ...


@dataclass(frozen=True, slots=True)
class Runtime:
    """A backend by its name. Its models are F32 and say printable ASCII only, unless a Spec says else."""

    name: BackendName

    def model(self, kind: str, **changes: Any) -> Path:
        """Return a tiny model of a kind; `changes` go to its Spec."""
        fields = {"shape": SHAPES[kind], "name": f"tiny-{kind}", "mute": NOT_PRINTABLE}
        return self.build(Spec(**fields | changes))

    def wide(self, kind: str = "dense") -> Path:
        """Return a model with heads of 64, which any type of cache can hold."""
        return self.model(kind, shape=SHAPES[kind].sized(n_heads=1, n_kv_heads=1, head_dim=64))

    def build(self, spec: Spec) -> Path:
        """Return the model that a Spec describes, in this backend's format."""
        if self.name == "llama.cpp":
            return build(spec)
        from tests.kit.mlx import mlx_build

        return mlx_build(spec)

    def pair(self, eps: float) -> tuple[Path, Path]:
        """Return (target, draft), which agree as tests/kit/pairs.py says."""
        if self.name == "llama.cpp":
            return pair(eps, mute=NOT_PRINTABLE)
        from tests.kit.mlx import mlx_pair

        return mlx_pair(eps, mute=NOT_PRINTABLE)

    def library(self, path: Path) -> AbstractContextManager[Library]:
        """Return the model in the library itself."""
        if self.name == "llama.cpp":
            return Reference(path, n_ctx=2048, n_batch=2048, n_ubatch=64)
        from tests.kit.mlx_reference import MlxReference

        return MlxReference(path)


def plan(path: Path, **changes: object) -> LoadPlan:
    """Return how a model is loaded here: as its format wants it, small, and rounding little."""
    fields = {"context": 2048, "threads": 1, "flash_attention": False, "n_ubatch": 64, "n_seq_max": 3}
    fields["checkpoint_bytes"] = 2**24
    name: BackendName = "mlx" if path.is_dir() else "llama.cpp"
    if name == "mlx":
        fields |= GPU
    return LoadPlan(model_path=str(path), model_name=path.stem, backend=name, **fields | changes)


def load(made: LoadPlan) -> Backend:
    """Load as a worker does."""
    return worker.open_backend(made, None)


class SharedTemplate:
    """A template that outlives the engines that close it: each has a process, which takes time to start."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template

    def __getattr__(self, name: str) -> object:
        return getattr(self._template, name)

    def close(self) -> None:
        """Leave it open."""


Load = Callable[..., Backend]
"""`load(kind, **changes)`: a backend with a tiny model, closed when the test ends."""


def some(seed: int, size: int) -> list[int]:
    """Return random tokens."""
    return [int(one) for one in np.random.default_rng(seed).integers(40, 90, size)]


def feed(backend: Backend, seq: int, start: int, tokens: list[int], count: int = 1) -> np.ndarray:
    """Compute tokens in calls of 50, the last `count` in one of their own; return their rows."""
    split = len(tokens) - count
    for at in range(0, split, 50):
        backend.decode([BatchPart(seq, start + at, tokens[at : min(at + 50, split)], 0)])
    return backend.decode([BatchPart(seq, start + split, tokens[split:], count)]).copy()


def batches(backend: Backend, parts: Iterable[BatchPart]) -> list[list[BatchPart]]:
    """Return the parts as calls of the backend: one where it mixes, else one for each."""
    parts = list(parts)
    return [parts] if backend.capabilities.mixes else [[part] for part in parts]


def is_true(rows: np.ndarray, expected: np.ndarray) -> bool:
    """Say whether these are the logits that are expected."""
    return rows.shape == expected.shape and bool(np.abs(rows - expected).max() < BOUND)


class Cold:
    """A model that computes everything afresh."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def __call__(self, tokens: list[int], count: int = 1) -> np.ndarray:
        """Return the last rows of these tokens: [count, n_vocab]."""
        self.backend.truncate(0, 0)
        return feed(self.backend, 0, 0, tokens, count)
