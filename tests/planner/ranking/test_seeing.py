"""Which model is offered to a user whose model does not see."""

from dataclasses import replace
from pathlib import Path

from edgechat.planner.ranking.ranking import Verdict
from edgechat.planner.ranking.suggestions import StandIn, seeing_model
from tests.tui.libraries import Fake, entry, option, row

SEEING = entry("eyes-4b", vision=True)
PATH = Path("/models/eyes.gguf")


def large(listed):
    """Return a model for which there is not enough RAM."""
    return replace(listed, available=0)


def found(rows, fake):
    """Return what is offered, and whether models had to be rated for that."""
    rated = []

    def overview(listed):
        rated.append(True)
        return fake.library().overview(listed)

    return seeing_model(lambda: rows, overview), bool(rated)


def test_the_local_one_that_was_used_last_without_rating_any():
    rows = [
        row("blind", Path("/models/blind.gguf")),
        row("damaged", Path("/models/damaged.gguf"), modalities=("vision",), damage="It ends early."),
        large(row("large", Path("/models/large.gguf"), modalities=("vision",))),
        row("hears", Path("/models/hears.gguf"), modalities=("audio",)),
        row("mine", PATH, modalities=("vision",)),
        row("other", Path("/models/other.gguf"), modalities=("vision",)),
    ]
    assert found(rows, Fake()) == (StandIn("mine", is_here=True), False)


def test_one_that_fits_on_a_gpu():
    rows = [large(row("mine", PATH, modalities=("vision",)))]
    best = [option("eyes-4b", of=SEEING)]
    fits = Fake(best=best, local={PATH: option("mine", path=PATH)})
    assert found(rows, fits) == (StandIn("mine", is_here=True), True)
    too_large = Fake(best=best, local={PATH: option("mine", path=PATH, verdict=Verdict.TOO_LARGE)})
    assert found(rows, too_large) == (StandIn("eyes-4b", is_here=False), True)


def test_none_fits():
    best = [option("blind", of=entry("blind")), option("eyes-4b", of=SEEING, verdict=Verdict.TOO_LARGE)]
    assert found([], Fake(best=best)) == (None, True)
