"""Plans and backends for the engine's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgechat.device import mlx
from edgechat.engine.backends.base import Backend
from edgechat.planner.plan import LoadPlan
from tests import scripted as scripts
from tests.engine.runtimes import KINDS, Cold, Load, Runtime, load, plan
from tests.scripted.backend import CHECKPOINT_BYTES

MakePlan = Callable[..., LoadPlan]
RUNTIMES = (
    pytest.param(Runtime("llama.cpp"), id="llama.cpp"),
    pytest.param(
        Runtime("mlx"), id="mlx", marks=pytest.mark.skipif(bool(mlx.missing()), reason=mlx.missing())
    ),
)


@pytest.fixture
def scripted(tmp_path: Path, scripted_workers: None) -> MakePlan:
    """Return a function that plans a scripted model: `scripted(reply="x", context=100)`."""

    def make(
        context: int = 4096, n_seq_max: int = 4, n_batch: int = 512, n_checkpoints: int = 8, **script: Any
    ) -> LoadPlan:
        path = scripts.write(tmp_path / f"{len(list(tmp_path.iterdir()))}.gguf", **script)
        return LoadPlan(
            model_path=str(path),
            model_name="scripted",
            context=context,
            n_seq_max=n_seq_max,
            n_batch=n_batch,
            checkpoint_bytes=n_checkpoints * CHECKPOINT_BYTES,
            threads=1,
        )

    return make


@pytest.fixture(params=RUNTIMES, scope="module")
def runtime(request: pytest.FixtureRequest) -> Runtime:
    """Run the test on every backend that computes models."""
    return request.param


@pytest.fixture(params=KINDS, scope="module")
def kind(request: pytest.FixtureRequest) -> str:
    """Run the test for every kind of model."""
    return request.param


@pytest.fixture
def open_backend(runtime: Runtime) -> Iterator[Load]:
    """Return a function that loads a tiny model: `open_backend("moe", context=256)`."""
    made: list[Backend] = []

    def make(kind: str = "dense", **changes: object) -> Backend:
        made.append(load(plan(runtime.model(kind), **changes)))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


@pytest.fixture(scope="module")
def cold(runtime: Runtime, kind: str) -> Iterator[Cold]:
    """Return a function that computes tokens afresh and returns the last rows."""
    backend = load(plan(runtime.model(kind), n_seq_max=1, n_outputs_max=64))
    yield Cold(backend)
    backend.close()
