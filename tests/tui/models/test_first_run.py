"""The first run: what is said of the machine, and what one begins with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgechat.base.errors import SettingsError
from edgechat.models.local.locations import Place
from edgechat.planner.ranking.scoring import Verdict
from edgechat.tui.models.first_run import FirstRun, FirstRunChoice
from edgechat.tui.models.pull import PullState
from edgechat.tui.models.screen import ModelsScreen
from tests.cli.pulling import sized
from tests.hub import Fault, Hub
from tests.tui.driving import text_of, until
from tests.tui.libraries import GIB, Fake, Stage, entry, option, row

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured")]

MID = entry("mid-8b", 4)


def stage(fake: Fake, **others: Callable[..., Any]) -> Stage:
    return Stage(
        fake.library(**others),
        lambda library, pulls: FirstRun(library, pulls, lambda: ModelsScreen(library, pulls)),
    )


def world(tmp_path: Path) -> Fake:
    path = tmp_path / "mine.gguf"
    return Fake(
        rows=[
            row("mine", path),
            row("broken", tmp_path / "b.gguf", damage="It is a web page."),
            row("ollama/llama3.2:3b", tmp_path / "blob", place=Place.OLLAMA),
            row("guide", tmp_path / "guide.gguf", place=Place.SHIPPED),
        ],
        entries=[MID],
        best=[option("mid-8b", of=MID, tps=12.3)],
        local={path: option("mine", tps=33.0, path=path)},
    )


@pytest.mark.parametrize(("width", "height"), [(60, 24), (100, 40), (160, 50)])
async def test_what_is_said(tmp_path: Path, width: int, height: int) -> None:
    app = stage(world(tmp_path))
    async with app.run_test(size=(width, height)) as pilot:
        await until(pilot, lambda: "mid-8b Q4_K_M" in text_of(pilot))
        text = text_of(pilot)
        for words in (
            "Welcome to edgechat",
            "A processor, 2 cores",
            "32 GiB of RAM, 16 GiB free",
            "No GPU: models run on the CPU",
            "4.0 GiB to download · ~12.3 tokens/s",
            "⏎  Download and chat   meanwhile, the guide answers",
            "The best that fits here.",
            "1  mine   2.0 GiB, own folder, fits, ~33 tokens/s",
            "2  ollama/llama3.2:3b   2.0 GiB, Ollama, fits",
        ):
            assert words in text, words
        assert ("About as fast as one reads." in text) == (height > 30)
        assert "broken" not in text
        assert all(len(one) <= width for one in text.splitlines())


async def test_the_guide_is_there_before_anything_is_known(tmp_path: Path) -> None:
    fake = world(tmp_path)
    fake.gate.clear()
    app = stage(fake)
    async with app.run_test(size=(60, 24)) as pilot:
        await until(pilot, lambda: "Finding the best model for this machine…" in text_of(pilot))
        await pilot.press("enter")  # nothing is known yet, so nothing is taken
        await pilot.pause()
        assert app.results == []
        await pilot.press("g")
        await until(pilot, lambda: app.results == [FirstRunChoice("guide")])
        fake.gate.set()


async def test_enter_pulls_what_is_recommended_and_begins_with_the_guide(
    hub: Hub, hf_cache: Path, home: Path, tmp_path: Path
) -> None:
    hub.add("owner/mid-8b-GGUF", {"mid-8b-Q4_K_M.gguf": sized(2_000_000)})
    hub.fail("store", Fault(pause=0.04, piece=1 << 14))
    (home / "config").mkdir(parents=True)
    (home / "config/models.toml").write_text(
        '[[model]]\nname = "mid-8b"\ndescription = "x"\nlicence = "MIT"\nrepo = "owner/mid-8b-GGUF"\n'
        'file = "mid-8b-{quant}.gguf"\nquant = "Q4_K_M"\n'
    )
    app = stage(world(tmp_path))
    async with app.run_test(size=(60, 24)) as pilot:
        await until(pilot, lambda: "Download and chat" in text_of(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: "sking the hub" in text_of(pilot) or bool(app.results))
        await until(pilot, lambda: bool(app.results), 20)
        (chosen,) = app.results
        assert (chosen.model, chosen.pull.state) == ("guide", PullState.DOWNLOADING)
        await until(pilot, lambda: chosen.pull.is_over, 20)
        assert (chosen.pull.state, chosen.pull.model) == (PullState.DONE, "mid-8b")


async def test_what_is_here_is_one_digit_away(tmp_path: Path) -> None:
    app = stage(world(tmp_path))
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "Already here" in text_of(pilot))
        await pilot.press("9")
        await pilot.press("2")
        await until(pilot, lambda: app.results == [FirstRunChoice("ollama/llama3.2:3b")])


async def test_escape_is_the_guide(tmp_path: Path) -> None:
    app = stage(world(tmp_path))
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.press("escape")
        await until(pilot, lambda: app.results == [FirstRunChoice("guide")])


async def test_all_models(tmp_path: Path) -> None:
    app = stage(world(tmp_path))
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "Already here" in text_of(pilot))
        await pilot.press("m")
        await until(pilot, lambda: isinstance(app.screen, ModelsScreen))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, FirstRun))
        await pilot.press("m")
        await until(pilot, lambda: "For download" in text_of(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: app.results == [FirstRunChoice("mine")])


async def test_without_a_network(tmp_path: Path) -> None:
    fake = world(tmp_path)
    fake.offline = "EDGECHAT_OFFLINE"
    app = stage(fake)
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "cannot be downloaded now: EDGECHAT_OFFLINE" in text_of(pilot))
        assert "Download and chat" not in text_of(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: app.results == [FirstRunChoice("mine")])


@pytest.mark.usefixtures("no_waits")
async def test_a_hub_that_is_not_there_is_no_dead_end(hub: Hub, hf_cache: Path, tmp_path: Path) -> None:
    hub.stop()
    app = stage(world(tmp_path))
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "Download and chat" in text_of(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: "Try again" in text_of(pilot), 20)
        assert "failed: " in text_of(pilot)
        await pilot.press("g")
        await until(pilot, lambda: app.results == [FirstRunChoice("guide")])


async def test_what_is_recommended_may_be_here(tmp_path: Path) -> None:
    fake = world(tmp_path)
    path = tmp_path / "mid.gguf"
    fake.rows = [row("mid-8b", path, of=MID)]
    fake.best = [option("mid-8b", of=MID, path=path)]
    app = stage(fake)
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "4.0 GiB on this machine" in text_of(pilot))
        assert "Chat with it" in text_of(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: app.results == [FirstRunChoice("mid-8b")])


async def test_where_nothing_fits(tmp_path: Path) -> None:
    fake = Fake(
        entries=[MID], best=[option("mid-8b", size=40 * GIB, verdict=Verdict.TOO_LARGE, of=MID)], rows=[]
    )
    app = stage(fake)
    async with app.run_test(size=(60, 24)) as pilot:
        await until(pilot, lambda: "No model of the catalogue fits" in text_of(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: app.results == [FirstRunChoice("guide")])


async def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    fake = world(tmp_path)
    fake.problem = SettingsError("settings.toml is odd.", hint="Mend it.")
    app = stage(fake)
    async with app.run_test(size=(60, 24)) as pilot:
        await until(pilot, lambda: "settings.toml is odd. Mend it." in text_of(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: app.results == [FirstRunChoice("mine")])
