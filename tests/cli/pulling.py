"""Helpers for the tests of `edgechat pull`."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kit import DENSE, Spec, build, tiny

REPO = "owner/tiny-GGUF"
EDGECHAT = [sys.executable, "-m", "edgechat"]
Run = subprocess.CompletedProcess[str]
Pull = Callable[..., Run]


def sized(n: int) -> bytes:
    """Return a model of n bytes, so wide that fewer bytes than a row are left outside its tensors."""
    widest = DENSE.n_ff + (n - tiny().stat().st_size) // (3 * 4 * DENSE.n_embd * DENSE.n_layers)
    data = build(Spec(shape=DENSE.sized(n_ff=widest - 1), name="tiny-dense")).read_bytes()
    return data + random.Random(5).randbytes(n - len(data))


def found(run: Run) -> dict[str, Any]:
    assert run.returncode == 0, run
    answer: dict[str, Any] = json.loads(run.stdout)
    return answer


def complaint(run: Run) -> str:
    assert run.returncode == 1, run
    assert "Traceback" not in run.stderr
    assert "error: " in run.stderr
    return run.stderr


def sound(answer: dict[str, Any]) -> bool:
    """Return True if all files are where the answer says, with the stated contents."""
    for file in answer["files"]:
        data = Path(file["path"]).read_bytes()
        if (len(data), hashlib.sha256(data).hexdigest()) != (file["bytes"], file["sha256"]):
            return False
    return True


def no_blob(hf_cache: Path) -> bool:
    return not [path for path in hf_cache.glob("*/blobs/*") if path.suffix != ".incomplete"]


def partial(hf_cache: Path) -> int:
    return max((path.stat().st_size for path in hf_cache.glob("*/blobs/*.incomplete")), default=0)


def variables() -> str:
    names = ("HF_ENDPOINT", "HF_HUB_CACHE", "EDGECHAT_HOME", "NO_PROXY")
    return " ".join(f"{name}={os.environ[name]}" for name in names)
