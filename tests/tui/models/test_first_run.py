"""The first run: what is said of the machine, and what one begins with."""

import threading
from contextlib import asynccontextmanager

import pytest

from edgechat.base.errors import HubUnreachable, SettingsError
from edgechat.models.hub.client import HubReach
from edgechat.models.local.locations import Place
from edgechat.planner.ranking.ranking import Verdict
from edgechat.tui.models.first_run import FirstRun, FirstRunChoice
from edgechat.tui.models.library import ModelLibrary
from edgechat.tui.models.pulls import PullState
from edgechat.tui.models.screen import ModelsScreen
from tests.cli.pulling import sized
from tests.hub import Fault
from tests.tui.driving import driven
from tests.tui.libraries import GIB, Fake, Stage, entry, option, row

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured")]

BIG, MID, TINY = entry("big-30b", 6), entry("mid-8b", 4), entry("tiny-1b", 2)
GUIDE = FirstRunChoice("guide")


@asynccontextmanager
async def opened(fake, size=(100, 40), at="", **others):
    """The first run over a library. at: the card or line to wait for."""
    app = Stage(
        fake.library(**others),
        lambda library, pulls: FirstRun(library, pulls, lambda: ModelsScreen(library, pulls)),
    )
    async with driven(app, size) as pilot:
        if at:
            await pilot.until(lambda: chosen(pilot) == at)
        yield pilot


async def result(pilot, seconds=30.0):
    await pilot.until(lambda: bool(pilot.app.results), seconds)
    (choice,) = pilot.app.results
    return choice


def no_hub(*_):
    raise HubUnreachable("There is no hub.")


def chosen(pilot):
    """Return the id of the card or line at the cursor."""
    focused = pilot.app.screen.focused
    return focused.id if focused is not None else None


def world(tmp_path, **changes):
    path = tmp_path / "mine.gguf"
    usual = {
        "rows": [
            row("mine", path),
            row("broken", tmp_path / "b.gguf", damage="It is a web page."),
            row("ollama/llama3.2:3b", tmp_path / "blob", place=Place.OLLAMA),
            row("guide", tmp_path / "guide.gguf", place=Place.SHIPPED),
        ],
        "entries": [BIG, MID, TINY],
        "best": [
            option("big-30b", size=20 * GIB, of=BIG, tps=8, worth=2.0, first_token=40),
            option("mid-8b", size=2 * GIB, of=MID, tps=12.3),
            option("tiny-1b", size=GIB // 2, of=TINY, tps=40, worth=0.5, first_token=2),
        ],
        "local": {path: option("mine", tps=33.0, path=path)},
    }
    return Fake(**(usual | changes))


@pytest.mark.parametrize(("width", "height"), [(60, 16), (60, 24), (100, 24), (100, 40), (160, 50)])
async def test_what_is_said(tmp_path, width, height):
    async with opened(world(tmp_path), (width, height)) as pilot:
        await pilot.see("mid-8b")
        seen = begin = pilot.text
        for _ in range(9):  # on low screens, the rest is below
            await pilot.press("down")
            seen += "\n" + pilot.text
        for words in (
            "Balanced",
            "★ recommended",
            "2.0 GiB in ~3 min",
            "~12 tokens/s",
            "First token: for a prompt of 1,000 tokens.",
            "Downloads: at 100 Mbit/s (assumed).",
            "Fast",
            "Best",
        ):
            assert words in " ".join((seen if height < 30 else begin).split()), words
        for words in (
            "A processor, 2 cores",
            "1  mine   2.0 GiB, own folder, fits, ~33 tokens/s",
            "2  ollama/llama3.2:3b   2.0 GiB, Ollama, fits",
            "b  Fast now, then mid-8b",
            "g  Ask the guide   a tiny model that knows edgechat",
            "m  See all models",
        ):
            assert words in seen, words
        assert "broken" not in seen
        assert "nats" not in seen
        assert all(len(one) <= width for one in seen.splitlines())


WIDE = (
    *(("left", "card-0"), ("left", "card-0"), ("right", "card-1"), ("right", "card-2")),
    *(("down", "local-1"), ("up", "card-2"), ("up", "card-2"), ("down", "local-1")),
    *(("down", "local-2"), ("down", "both"), ("down", "guide"), ("down", "models")),
    *(("down", "models"), ("left", "models"), ("k", "guide"), ("j", "models")),
)
NARROW = ("up", "card-0"), ("down", "card-1"), ("down", "card-2"), ("down", "local-1")


@pytest.mark.parametrize(("size", "ways"), [((100, 40), WIDE), ((60, 24), NARROW)], ids=["wide", "narrow"])
async def test_arrows_go_from_card_to_card_and_from_line_to_line(tmp_path, size, ways):
    async with opened(world(tmp_path), size, at="card-1") as pilot:  # what is recommended
        for key, there in ways:
            await pilot.press(key)
            assert chosen(pilot) == there, key


async def test_a_click_goes_there_and_the_next_one_chooses(tmp_path):
    async with opened(world(tmp_path), at="card-1") as pilot:
        await pilot.click("#local-2")
        assert (chosen(pilot), pilot.app.results) == ("local-2", [])
        await pilot.click("#local-2")
        assert await result(pilot) == FirstRunChoice("ollama/llama3.2:3b")


def on_disk(tmp_path):
    path = tmp_path / "mid.gguf"
    return {"rows": [row("mid-8b", path, of=MID)], "best": [option("mid-8b", of=MID, path=path)]}


TOO_LARGE = option("mid-8b", size=40 * GIB, verdict=Verdict.TOO_LARGE, of=MID)
NOTHING_FITS = {"entries": [MID], "best": [TOO_LARGE], "rows": []}
ONE_FOR_ALL = {"best": [option("tiny-1b", of=TINY, worth=0.5, first_token=2)]}
ODD = {"problem": SettingsError("settings.toml is odd.", hint="Mend it.")}
FAST = {"reach": HubReach(rate=125e6)}
CASES = {
    "what is here is one digit away": ({}, 40, ("On this machine",), ("9", "2"), "ollama/llama3.2:3b"),
    "escape is the guide": ({}, 40, (), ("escape",), "guide"),
    "what is recommended is here": (on_disk, 40, ("4.0 GiB, on disk",), ("enter",), "mid-8b"),
    "nothing fits": (NOTHING_FITS, 24, ("No model in the catalogue fits",), ("enter",), "guide"),
    "what is wrong is said": (ODD, 24, ("settings.toml is odd. Mend it.",), ("enter",), "mine"),
    "the measured rate": (FAST, 40, ("at 1 Gbit/s (measured)", "2.0 GiB in ~15 s"), ("g",), "guide"),
    "one model is all of it": (ONE_FOR_ALL, 40, ("Fast, balanced and best",), ("g",), "guide"),
}
"""What is changed in the world, the height, what is seen, the keys, and the model that they choose."""


@pytest.mark.parametrize("case", CASES)
async def test_what_is_seen_and_chosen(tmp_path, case):
    changes, height, seen, keys, model = CASES[case]
    fake = world(tmp_path, **(changes(tmp_path) if callable(changes) else changes))
    async with opened(fake, (100 if height > 30 else 60, height)) as pilot:
        await pilot.see(*seen, hidden="now, then" if changes is ONE_FOR_ALL else ())
        await pilot.press(*keys)
        assert await result(pilot) == FirstRunChoice(model)


async def test_nothing_slow_is_recommended(tmp_path):
    async with opened(world(tmp_path, best=[option("mid-8b", of=MID, first_token=31)])) as pilot:
        await pilot.see("None is recommended", hidden="★")
        await pilot.press("m", see="For download", hidden="★")


async def test_the_guide_is_there_before_anything_is_known(tmp_path):
    fake = world(tmp_path)
    fake.gate.clear()
    async with opened(fake, (60, 24)) as pilot:
        await pilot.see("Finding the best models for this machine…")
        await pilot.press("enter")  # nothing is known yet, so nothing is taken
        await pilot.pause()
        assert pilot.app.results == []
        await pilot.press("g")
        assert await result(pilot) == GUIDE
        fake.gate.set()


async def test_the_cursor_stays_where_the_user_put_it(tmp_path):
    fake = world(tmp_path)
    fake.gate.clear()
    async with opened(fake) as pilot:
        await pilot.see("Finding the best models", "mine")
        await pilot.press("down")
        assert chosen(pilot) == "local-1"
        fake.gate.set()
        await pilot.see("★")
        assert chosen(pilot) == "local-1"


def on_the_hub(hub, home, *names):
    """Let a hub have models, and the catalogue name them."""
    hub.fail("store", Fault(pause=0.04, piece=1 << 14))
    (home / "config").mkdir(parents=True)
    lines = []
    for name in names:
        hub.add(f"owner/{name}-GGUF", {f"{name}-Q4_K_M.gguf": sized(2_000_000)})
        lines.append(
            f'[[model]]\nname = "{name}"\ndescription = "x"\nlicence = "MIT"\nrepo = "owner/{name}-GGUF"\n'
            f'file = "{name}-{{quant}}.gguf"\nquant = "Q4_K_M"\n'
        )
    (home / "config/models.toml").write_text("".join(lines))


async def test_enter_pulls_what_is_highlighted_and_the_prompt_is_open_at_once(hub, hf_cache, home, tmp_path):
    on_the_hub(hub, home, "mid-8b")
    async with opened(world(tmp_path), (60, 24), at="card-1") as pilot:
        await pilot.press("enter")
        choice = await result(pilot, 5)
        assert (choice.model, choice.follower) == ("guide", None)
        assert not choice.pull.is_over
        hub.mend()
        await pilot.until(lambda: choice.pull.is_over, 20)
        assert (choice.pull.state, choice.pull.model) == (PullState.DONE, "mid-8b")


async def test_a_better_model_may_follow(hub, hf_cache, home, tmp_path):
    on_the_hub(hub, home, "tiny-1b", "mid-8b")
    async with opened(world(tmp_path)) as pilot:
        await pilot.see("Fast now, then mid-8b")
        await pilot.press("b")
        choice = await result(pilot, 5)
        assert (choice.pull.name, choice.follower.name) == ("tiny-1b", "mid-8b")
        hub.mend()
        await pilot.until(lambda: choice.follower.is_over, 30)
        assert (choice.pull.model, choice.follower.model) == ("tiny-1b", "mid-8b")


async def test_a_better_model_may_follow_one_that_is_here(tmp_path):
    path = tmp_path / "tiny.gguf"
    fake = world(tmp_path, rows=[row("tiny-1b", path, of=TINY)])
    fake.best = [*fake.best[:2], option("tiny-1b", of=TINY, path=path, worth=0.5)]
    async with opened(fake, decide=no_hub) as pilot:
        await pilot.see("Fast now, then mid-8b")
        await pilot.press("b")
        choice = await result(pilot)
        assert (choice.model, choice.pull, choice.follower.name) == ("tiny-1b", None, "mid-8b")


async def test_all_models(tmp_path):
    async with opened(world(tmp_path)) as pilot:
        await pilot.see("On this machine")
        await pilot.press("m", until=lambda: isinstance(pilot.app.screen, ModelsScreen))
        await pilot.press("escape", until=lambda: isinstance(pilot.app.screen, FirstRun))
        await pilot.press("m", see="For download")
        await pilot.press("enter")
        assert await result(pilot) == FirstRunChoice("mine")


@pytest.mark.parametrize("width", [60, 100])
async def test_without_a_network(tmp_path, width):
    async with opened(world(tmp_path, offline="EDGECHAT_OFFLINE"), (width, 40)) as pilot:
        await pilot.see("EDGECHAT_OFFLINE keeps edgechat offline", hidden=("mid-8b", "Finding"))
        assert chosen(pilot) == "local-1"
        await pilot.press("enter")
        assert await result(pilot) == FirstRunChoice("mine")


def collection(tmp_path):
    """Return a world without a network, with models of several sizes and kinds."""
    paths = {name: tmp_path / f"{name}.gguf" for name in ("tiny", "slow", "good", "large")}
    return {
        "offline": "EDGECHAT_OFFLINE",
        "rows": [
            row("tiny", paths["tiny"], used=9.0, n_params=10**8),
            row("slow", paths["slow"], n_params=30 * 10**9),
            row("searcher", tmp_path / "s.gguf", kind="embedding", n_params=10**9),
            row("large", paths["large"], n_params=70 * 10**9),
        ],
        "nearby": [
            row("broken", tmp_path / "b.gguf", place=Place.ELSEWHERE, damage="It is a web page."),
            row("good", paths["good"], place=Place.ELSEWHERE, n_params=4 * 10**9),
        ],
        "local": {
            paths["tiny"]: option("tiny", tps=90, path=paths["tiny"]),
            paths["slow"]: option("slow", tps=2, verdict=Verdict.SLOW, path=paths["slow"]),
            paths["good"]: option("good", tps=12, path=paths["good"]),
            paths["large"]: option("large", verdict=Verdict.TOO_LARGE, path=paths["large"]),
        },
    }


async def test_without_a_network_the_best_that_is_here_comes_first(tmp_path):
    fake = world(tmp_path, **collection(tmp_path))
    async with opened(fake, (120, 40)) as pilot:
        await pilot.see(
            "1  good", "~12 tokens/s", "2  tiny", "3  slow", hidden=("searcher", "broken", "large")
        )
        assert f"2.0 GiB, {str(tmp_path)[:23]}…, fits" in pilot.text
        assert chosen(pilot) == "local-1"
        await pilot.press("enter")
        assert await result(pilot) == FirstRunChoice(str(tmp_path / "good.gguf"))


async def test_the_cursor_stays_on_its_model_where_the_order_changes(tmp_path):
    fake = world(tmp_path, **collection(tmp_path))
    fake.gate.clear()
    async with opened(fake) as pilot:
        await pilot.see("1  large", "2  slow", "3  good")  # by size alone
        assert chosen(pilot) == "local-1"
        await pilot.press("down", "down")
        fake.gate.set()
        await pilot.see("1  good")
        assert chosen(pilot) == "local-1"
        await pilot.press("enter")
        assert await result(pilot) == FirstRunChoice(str(tmp_path / "good.gguf"))


async def test_downloads_that_cannot_be_listed_hold_nothing_up(tmp_path, monkeypatch):
    monkeypatch.setattr("edgechat.tui.models.known_models._NEARBY_SECONDS", 0.1)
    gate = threading.Event()
    async with opened(world(tmp_path), nearby=lambda _listed: gate.wait(10)) as pilot:
        await pilot.see("★ recommended", "1  mine")
        gate.set()


async def test_a_hub_that_is_not_there_is_told_at_once(hub, hf_cache, tmp_path):
    hub.stop()
    async with opened(world(tmp_path), probe=ModelLibrary.real().probe) as pilot:
        await pilot.see("Offline: 127.0.0.1 is not reachable", hidden="now, then")
        await pilot.until(lambda: chosen(pilot) == "local-1")
        await pilot.press("g")
        assert await result(pilot) == GUIDE


async def test_the_network_may_come_back(tmp_path):
    fake = world(tmp_path, reach=HubReach(problem="The hub is not reachable: no route."))
    async with opened(fake) as pilot:
        await pilot.see("no route")
        fake.reach = HubReach()
        await pilot.press("r", see="★ recommended", gone="no route")
        await pilot.until(lambda: chosen(pilot) == "card-1")


async def test_a_download_that_fails_later_is_no_dead_end(hub, hf_cache, tmp_path):
    async with opened(world(tmp_path), at="card-1") as pilot:  # the hub has no models
        await pilot.press("enter")
        choice = await result(pilot)
        await pilot.until(lambda: choice.pull.state is PullState.FAILED, 20)
