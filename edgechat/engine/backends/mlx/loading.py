"""Loading a folder with mlx-lm, whose errors become edgechat's."""

from __future__ import annotations

import contextlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import MODEL_REMAPPING, load_model

from edgechat.base.errors import DecodeFailed, LoadFailed, OutOfMemory

_USE_GGUF = "Use a GGUF file of the model: --backend llama.cpp"
DOWNLOAD_AGAIN = "Download the model again, or use another model (`edgechat run guide` always works)."
_PROGRESS_BYTES = 64 * 2**20  # bytes after which progress is reported
_OUT_OF_MEMORY = re.compile(
    r"std::bad_alloc"
    r"|(?:\[[\w:]*malloc\w*\] )?(?:Unable to allocate \d+ bytes|Resource limit \(\d+\) exceeded"
    r"|Attempting to allocate \d+ bytes which is greater than the maximum allowed buffer size of \d+ bytes"
    r")\.?"
    r"|\[METAL\] Command buffer execution failed: Insufficient Memory \(\w+:\w+\)"
    r"|cudaMalloc\w*\([^'\"]*\) failed: out of memory"
)
"""Messages of MLX, which raises no error of its own kind: whole, for tensors may be called anything."""


def load(folder: Path, name: str, on_progress: Callable[[float], None]) -> Any:
    """Return the model with its weights read. name: what messages call it.

    Nothing of the folder is run. Raises LoadFailed, or OutOfMemory.
    """
    with load_errors(name):
        model, _ = load_model(folder, lazy=True, trust_remote_code=False)
        read_weights(model, on_progress)
    return model


def knows(kind: str) -> bool:
    """Say whether mlx-lm has models of this `model_type`."""
    name = MODEL_REMAPPING.get(kind, kind)
    return name.isidentifier() and importlib.util.find_spec(f"mlx_lm.models.{name}") is not None


def read_weights(model: Any, on_progress: Callable[[float], None]) -> None:
    """Read the weights of a model that was loaded lazily."""
    tree: Any = tree_flatten(model.parameters())
    weights: list[mx.array] = [array for _, array in tree]
    total, done, batch = sum(array.nbytes for array in weights), 0, []
    for array in weights:
        batch.append(array)
        done += array.nbytes
        if sum(pending.nbytes for pending in batch) >= _PROGRESS_BYTES or array is weights[-1]:
            mx.eval(batch)
            on_progress(done / max(total, 1))
            batch = []


@contextlib.contextmanager
def load_errors(name: str) -> Iterator[None]:
    """Turn what MLX and mlx-lm raise over untrusted files into LoadFailed or OutOfMemory."""
    try:
        yield
    except (LoadFailed, DecodeFailed):
        raise
    except MemoryError as error:
        raise OutOfMemory(f"There is not enough memory for {name}.") from error
    except Exception as error:  # mlx-lm raises whatever a wrong file leads to
        message = " ".join(str(error).split())[:300] or type(error).__name__
        if _OUT_OF_MEMORY.fullmatch(message):
            raise OutOfMemory(f"There is not enough memory for {name}: {message}") from error
        is_supported = "not supported" not in message
        raise LoadFailed(
            f"MLX cannot load {name}: {message}", hint=DOWNLOAD_AGAIN if is_supported else _USE_GGUF
        ) from error
