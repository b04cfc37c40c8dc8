"""From an empty home folder to the first answer, in seconds and keys: the guide, a local model, a download.

    python -m benchmarks.first_answer [--model path.gguf] [--mbit 100] [--question "Why is the sky blue?"]

Runs the real app in a 100 x 40 pseudo-terminal, with a new home folder each time, and presses the keys that a
user would, as soon as possible: `g` and a question for the guide; when offline, Enter and a question for a
model in the downloads folder; when online, Enter on the highlighted card, and the question while the model is
downloading. The hub is the one from the tests, on loopback. It serves `--model` (by default, 600 MiB of
random weights) under the file name on every card. The letters of a question are not counted as keys.
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
    """Make a hub serve everything that the first screen may offer, at the given rate."""
    from edgechat.planner.ranking.ranking import Verdict
    from edgechat.planner.ranking.suggestions import first_models
    from edgechat.tui.models.library import ModelLibrary

    hub.fail("store", Fault(pause=8 * _PIECE / (mbit * 1e6), piece=_PIECE))
    library, data = ModelLibrary.real(), model.read_bytes()
    options = library.overview(library.inventory(None)).found.options
    cards = first_models(options, mbit * 1e6 / 8)
    for card in cards:
        print(f"{' '.join(role.value for role in card.roles)}: {card.file.variant.model} {card.file.quant}")
    # The app measures the machine again, so it may choose another model.
    for option in [
        option for option in options if option.verdict is Verdict.FITS or option is cards[-1].file
    ]:
        entry = option.variant.entry
        assert entry is not None
        if entry.repo is not None:
            hub.add(entry.repo, {entry.file.format(quant=option.quant): data})


class Clock:
    """The app in a new home folder; prints what appears, with the seconds and keys since startup."""

    def __init__(self, name: str, home: Path) -> None:
        print(f"{name}:")
        os.environ |= {"HOME": str(home), "EDGECHAT_HOME": str(home / "edgechat")}
        os.environ["HF_HUB_CACHE"] = str(home / "hub")
        self._keys, self._began = 0, time.perf_counter()
        self.app = App(None, (40, 100))

    def until(self, sign: str, what: str, timeout: float = 180) -> None:
        self.app.until(sign, timeout)
        seconds = time.perf_counter() - self._began
        print(f"  {what:<44}{seconds:6.1f} s, {self._keys} keys", flush=True)

    def press(self, key: str) -> None:
        self._keys += 1
        self.app.type(key)

    def ask(self, question: str) -> None:
        """Type a question and press Enter; only Enter is counted."""
        self.app.type(question)
        self.press("\r")


def ask_guide(home: Path) -> None:
    clock = Clock("the guide", home)
    clock.until("Ask the guide", "first screen")
    clock.press("g")
    clock.until("Ask something", "the prompt")
    clock.ask("How do I switch to another model?")
    clock.until("tok/s", "the answer")
    clock.app.close()


def ask_what_is_here(home: Path, model: Path, question: str) -> None:
    (home / "Downloads").mkdir(parents=True)
    (home / "Downloads" / "mine.gguf").symlink_to(model.resolve())
    os.environ["EDGECHAT_OFFLINE"] = "1"
    clock = Clock("a model in the downloads, without a network", home)
    del os.environ["EDGECHAT_OFFLINE"]
    clock.until("~/Downloads", "first screen")
    clock.press("\r")
    clock.until("Ask something", "the prompt, while the model is loaded")
    clock.ask(question)
    clock.until("Writing", "first token", 600)
    clock.until("tok/s", "the answer", 600)
    clock.app.close()


def ask_download(home: Path, question: str) -> None:
    clock = Clock("a model that is downloaded", home)
    clock.until("Ask the guide", "first screen")
    clock.until("First token", "cards")
    clock.press("\r")
    clock.until("is downloading", "the prompt, while the model is downloaded")
    clock.ask(question)
    clock.until("Your question will be answered", "the question waits")
    clock.until("Loading the model", "the model is here", 3600)
    clock.until("Writing", "first token", 600)
    clock.until("tok/s", "the answer", 600)
    clock.app.close()


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
        print(f"{model.name}, {model.stat().st_size / 2**20:.0f} MiB at {options.mbit:.0f} Mbit/s")
        # Each case has a new home folder, so the machine is measured again.
        ask_guide(Path(folder) / "guide")
        ask_what_is_here(Path(folder) / "here", model, options.question)
        ask_download(Path(folder) / "download", options.question)
        print(f"the download alone takes {8 * model.stat().st_size / options.mbit / 1e6:.0f} s")


if __name__ == "__main__":
    main()
