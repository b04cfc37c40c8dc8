"""edgechat with models that follow a script: the real program and worker, with replies written by a test.

    path = write(folder / "little.gguf", reply="Hello.", token_ms=2)
    subprocess.run([*COMMAND, "run", path, "Hi"])

Such a model is a real, tiny GGUF file, and is treated like one until it is loaded, when `backend.py` takes
the place of llama.cpp. A test that starts workers from its own process uses the fixture `scripted_workers`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PROGRAM = (str(Path(__file__).with_name("edgechat.py")),)
"""What Python runs instead of `-m edgechat`, also for child processes (`base.process.spawn.PROGRAM`)."""
COMMAND = [sys.executable, "-P", *PROGRAM]
KEY = "scripted.script"
"""Metadata key of the script, which is JSON."""


def write(path: Path, *, n_layers: int = 1, context: int = 4096, **script: Any) -> Path:
    """Write a model with a script; return its path. It can draft for a model with more layers."""
    from tests.kit import DENSE, Spec  # imported here, since programs under test start without gguf and numpy
    from tests.kit.build import write as write_model

    shape = DENSE.sized(
        n_layers=n_layers, n_embd=32, n_ff=32, n_heads=2, n_kv_heads=1, context_length=context
    )
    template = {} if (source := script.get("template")) is None else {"chat_template": source}
    write_model(Spec(shape=shape, overrides={KEY: json.dumps(script)}, **template), path)
    return path
