"""From an empty home to the first answer: the first start of the app, with a hub of 100 Mbit/s.

    python -m benchmarks.first_answer [--model path.gguf] [--mbit 100] [--question "Why is the sky blue?"]

The real app in a pseudo-terminal of 100 x 40. Two keys are pressed beside the question: Enter on the card
that is highlighted, and Enter behind the question, while the model is downloaded. The hub is that of the
tests, on loopback. It sends `--model`, by default one of 600 MiB with random weights, under the name of each
card's file.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from benchmarks.keypress import App
from tests.hub import Fault, Hub
from tests.kit import TINYLLAMA, Spec, build

_PIECE = 1 << 16


def serve(hub: Hub, model: Path, mbit: float) -> None:
    """Let a hub have what the first screen may offer, and send it at a rate."""
    from edgechat.planner.ranking.first_models import first_models
    from edgechat.planner.ranking.scoring import Verdict
    from edgechat.tui.models.library import ModelLibrary

    hub.fail("store", Fault(pause=8 * _PIECE / (mbit * 1e6), piece=_PIECE))
    library, data = ModelLibrary.real(), model.read_bytes()
    options = library.overview(library.inventory(None)).found.options
    cards = first_models(options, mbit * 1e6 / 8)
    for card in cards:
        print(f"{' '.join(role.value for role in card.roles)}: {card.file.variant.model} {card.file.quant}")
    # The app measures the machine again, and may choose another one.
    for option in [
        option for option in options if option.verdict is Verdict.FITS or option is cards[-1].file
    ]:
        entry = option.variant.entry
        assert entry is not None
        if entry.repo is not None:
            hub.add(entry.repo, {entry.file.format(quant=option.quant): data})


def first_answer(question: str) -> None:
    """Print what is to be seen, each with the seconds since the start."""
    began = time.perf_counter()

    def until(sign: str, what: str, timeout: float = 180) -> None:
        app.until(sign, timeout)
        print(f"{what:<44}{time.perf_counter() - began:6.1f} s", flush=True)

    app = App(None, (40, 100))
    try:
        until("Welcome to edgechat", "first screen")
        until("First token", "cards")
        app.type("\r")
        until("on its way", "the prompt, while the model is downloaded")
        app.type(question)
        app.type("\r")
        until("is answered as soon as", "the question waits")
        until("Loading the model", "the model is here", 3600)
        until("Writing", "first token", 600)
        until("tok/s", "its speed", 600)
    finally:
        app.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, help="a GGUF file")
    parser.add_argument("--mbit", type=float, default=100, help="of the hub, per second")
    parser.add_argument("--question", default="Why is the sky blue?")
    options = parser.parse_args()
    model = options.model or build(Spec(shape=TINYLLAMA, weights="Q4_0", n_vocab=32000, mute=(257, 258)))
    with tempfile.TemporaryDirectory() as folder, Hub() as hub:
        os.environ |= {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": f"{folder}/hub", "NO_PROXY": "*"}
        os.environ["EDGECHAT_HOME"] = f"{folder}/planning"
        serve(hub, model, options.mbit)
        os.environ["EDGECHAT_HOME"] = f"{folder}/home"  # empty: the machine is measured again
        size = model.stat().st_size
        print(f"{model.name}, {size / 2**20:.0f} MiB at {options.mbit:.0f} Mbit/s:")
        first_answer(options.question)
        print(f"the download alone takes {8 * size / options.mbit / 1e6:.0f} s")


if __name__ == "__main__":
    main()
