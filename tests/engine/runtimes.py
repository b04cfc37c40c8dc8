"""All real backends and their models, so that tests can be written once for all of them.

The fixtures `runtime` and `kind` in tests/engine/conftest.py run a test for each.
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
"""A window shorter than short texts, and few layers: on a CPU, MLX takes milliseconds per token."""
BOUND = 0.02
"""For logits with a standard deviation of 4: rounding in an f16 cache depends on batch shapes."""


GPU = {"devices": (MLX,), "split": (1,)} if os.environ.get("EDGECHAT_METAL") else {}
"""Devices to plan for with MLX: `make test-metal` computes on a Mac's GPU."""


class Library(Protocol):
    """The library underneath a backend, used directly."""

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        """Return n greedy tokens after the prompt."""
        ...


@dataclass(frozen=True, slots=True)
class Runtime:
    """A backend, by name. Its models are F32 and only say printable ASCII, unless a Spec says otherwise."""

    name: BackendName

    def model(self, kind: str, **changes: Any) -> Path:
        """Return a tiny model of a kind; `changes` apply to its Spec."""
        fields = {"shape": SHAPES[kind], "name": f"tiny-{kind}", "mute": NOT_PRINTABLE}
        return self.build(Spec(**fields | changes))

    def wide(self, kind: str = "dense") -> Path:
        """Return a model with heads of 64 channels, which suits every cache type."""
        return self.model(kind, shape=SHAPES[kind].sized(n_heads=1, n_kv_heads=1, head_dim=64))

    def build(self, spec: Spec) -> Path:
        """Return the model that a Spec describes, in this backend's format."""
        if self.name == "llama.cpp":
            return build(spec)
        from tests.kit.mlx import mlx_build

        return mlx_build(spec)

    def pair(self, eps: float) -> tuple[Path, Path]:
        """Return (target, draft) that agree as described in tests/kit/pairs.py."""
        if self.name == "llama.cpp":
            return pair(eps, mute=NOT_PRINTABLE)
        from tests.kit.mlx import mlx_pair

        return mlx_pair(eps, mute=NOT_PRINTABLE)

    def library(self, path: Path) -> AbstractContextManager[Library]:
        """Open the model in the library itself."""
        if self.name == "llama.cpp":
            return Reference(path, n_ctx=2048, n_batch=2048, n_ubatch=64)
        from tests.kit.mlx_reference import MlxReference

        return MlxReference(path)


def plan(path: Path, **changes: object) -> LoadPlan:
    """Return a small plan for a model, with the backend for its format and little rounding."""
    fields = {"context": 2048, "threads": 1, "flash_attention": False, "n_ubatch": 64, "n_seq_max": 3}
    fields["checkpoint_bytes"] = 2**24
    name: BackendName = "mlx" if path.is_dir() else "llama.cpp"
    if name == "mlx":
        fields |= GPU
    return LoadPlan(model_path=str(path), model_name=path.stem, backend=name, **fields | changes)


def load(made: LoadPlan) -> Backend:
    """Load a plan in the way that workers do."""
    return worker.open_backend(made, None)


class SharedTemplate:
    """A template that outlives the engines that close it, since starting its process takes time."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template

    def __getattr__(self, name: str) -> object:
        return getattr(self._template, name)

    def close(self) -> None:
        """Do nothing: the template stays open."""


Load = Callable[..., Backend]
"""`load(kind, **changes)` returns a backend with a tiny model, which is closed when the test ends."""


def some(seed: int, size: int) -> list[int]:
    """Return random tokens."""
    return [int(one) for one in np.random.default_rng(seed).integers(40, 90, size)]


def feed(backend: Backend, seq: int, start: int, tokens: list[int], count: int = 1) -> np.ndarray:
    """Compute tokens in calls of 50, the last `count` in a separate call; return the logits of those."""
    split = len(tokens) - count
    for at in range(0, split, 50):
        backend.decode([BatchPart(seq, start + at, tokens[at : min(at + 50, split)], 0)])
    return backend.decode([BatchPart(seq, start + split, tokens[split:], count)]).copy()


def batches(backend: Backend, parts: Iterable[BatchPart]) -> list[list[BatchPart]]:
    """Return the parts grouped into calls: one if the backend mixes sequences, else one each."""
    parts = list(parts)
    return [parts] if backend.capabilities.mixes else [[part] for part in parts]


def is_true(rows: np.ndarray, expected: np.ndarray) -> bool:
    """Return True if the logits are as expected."""
    return rows.shape == expected.shape and bool(np.abs(rows - expected).max() < BOUND)


class Cold:
    """A model that computes everything from scratch."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def __call__(self, tokens: list[int], count: int = 1) -> np.ndarray:
        """Return the logits of the last tokens: [count, n_vocab]."""
        self.backend.truncate(0, 0)
        return feed(self.backend, 0, 0, tokens, count)
