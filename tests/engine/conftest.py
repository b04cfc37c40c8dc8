"""Plans for the engine's tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgechat.planner.plan import LoadPlan

MakePlan = Callable[..., LoadPlan]


@pytest.fixture
def scripted(tmp_path: Path) -> MakePlan:
    """Return a function that plans a scripted model: `scripted(reply="x", context=100)`."""

    def make(context: int = 4096, n_seq_max: int = 4, n_batch: int = 512, **script: Any) -> LoadPlan:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.scripted.json"
        path.write_text(json.dumps(script))
        return LoadPlan(
            model_path=str(path),
            model_name="scripted",
            backend="scripted",
            context=context,
            n_seq_max=n_seq_max,
            n_batch=n_batch,
            threads=1,
        )

    return make
