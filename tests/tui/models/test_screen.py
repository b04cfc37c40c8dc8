"""The models screen: what it shows, and what one does there."""

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec
import pytest

from edgechat.base import paths
from edgechat.base.errors import HubUnreachable, SettingsError
from edgechat.base.process.owner import this_process
from edgechat.models.choices import ModelChoice
from edgechat.models.local.inventory import inventory
from edgechat.models.local.locations import Place
from edgechat.models.request import parse_request
from edgechat.planner.listing import rows
from edgechat.planner.ranking.pulling import DownloadChoice, PullDecision, PullPart, RepoSource
from edgechat.planner.ranking.ranking import Verdict
from edgechat.tui.models.known_models import ModelGroup
from edgechat.tui.models.library import ModelLibrary
from edgechat.tui.models.pulls import Pulls, PullState
from edgechat.tui.models.screen import ModelsScreen
from tests import homes
from tests.cli.pulling import REPO, partial, sized
from tests.hub import Fault
from tests.kit import tiny
from tests.tui.driving import driven
from tests.tui.libraries import GIB, Fake, Stage, entry, option, row

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured")]

SLOW = Fault(pause=0.01, piece=1 << 14)
SMALL, MID, HUGE = entry("small-1b", 2), entry("mid-8b", 4), entry("huge-70b", 6)


def stage(fake, current=None, **others):
    return Stage(fake.library(**others), lambda library, pulls: ModelsScreen(library, pulls, current))


@asynccontextmanager
async def opened(fake, current=None, size=(100, 40), at="", **others):
    """The screen over a library. at: the model to go to."""
    async with driven(stage(fake, current, **others), size) as pilot:
        if at:
            await go_to(pilot, at)
        yield pilot


def world(tmp_path):
    """Return a catalogue of three, of which one is here, and two models of other tools."""
    small = tmp_path / "small.gguf"
    here = row("small-1b", small, of=SMALL, used=time.time() - 7200)
    return Fake(
        rows=[
            here,
            row("broken", tmp_path / "broken.gguf", damage="It is a web page."),
            row("ollama/llama3.2:3b", tmp_path / "blob", place=Place.OLLAMA),
        ],
        entries=[HUGE, MID, SMALL],
        best=[
            option("mid-8b", size=3 * GIB, of=MID, tps=12.3),
            option("small-1b", of=SMALL, path=small, worth=0.5),
            option("huge-70b", size=40 * GIB, verdict=Verdict.TOO_LARGE, of=HUGE),
        ],
        local={small: option("small-1b", of=SMALL, tps=41.0, path=small)},
        surveys={
            "huge-70b": [option("huge-70b", size=40 * GIB, verdict=Verdict.TOO_LARGE, of=HUGE)],
            "mid-8b": [
                option("mid-8b", "Q8_0", 8 * GIB, verdict=Verdict.TOO_LARGE, of=MID),
                option("mid-8b", "Q4_K_M", 3 * GIB, of=MID, tps=12.3),
                option("mid-8b", "Q3_K_M", 2 * GIB, verdict=Verdict.POOR, of=MID, tps=15),
            ],
        },
    )


def told(pilot):
    return "\n".join(note.message for note in pilot.app._notifications)


def line(pilot, name):
    return next(found for found in pilot.text.splitlines() if name in found[:24])


async def go_to(pilot, name):
    """Go to the line of a model, once the screen is full."""
    await pilot.until(lambda: isinstance(pilot.app.screen, ModelsScreen))
    models = pilot.app.screen._models
    await pilot.until(lambda: models.overview is not None and not models.is_loading)
    for _ in range(20):
        item = pilot.app.screen._browser.item
        if item is not None and item.name == name:
            await pilot.pause()
            return
        await pilot.press("down")
    raise AssertionError(pilot.text)


@pytest.mark.parametrize("width", [60, 100, 160])
async def test_the_list(tmp_path, width):
    async with opened(world(tmp_path), "small-1b", size=(width, 40)) as pilot:
        await pilot.see("~12")
        text = "\n".join(found.split("▏")[0] for found in pilot.text.splitlines())
        assert text.index("On this machine") < text.index("small-1b") < text.index("broken")
        assert text.index("llama3.2:3b") < text.index("For download") < text.index("mid-8b")
        assert text.index("★ mid-8b") < text.index("huge-70b")
        assert line(pilot, "● small-1b").split()[2:7] == ["Q4_K_M", "2.0", "GiB", "fits", "~41"]
        assert "! broken" in text
        assert "damaged" in line(pilot, "broken")
        assert line(pilot, "mid-8b").split()[2:7] == ["Q4_K_M", "3.0", "GiB", "fits", "~12"]
        assert "too large" in line(pilot, "huge-70b")
        assert ("4 of 6" in line(pilot, "mid-8b")) == (width > 60)
        assert ("Ollama" in line(pilot, "llama3.2")) == (width > 60)
        assert all(len(one) <= width for one in text.splitlines())
        await go_to(pilot, "huge-70b")
        pilot.shows("huge-70b needs 99 GiB")


async def test_the_list_is_there_before_the_machine_was_looked_at(tmp_path):
    fake = world(tmp_path)
    fake.gate.clear()
    async with opened(fake) as pilot:
        await pilot.see("huge-70b", shown="Inspecting this machine…")
        for _ in range(3):
            await pilot.press("down")
        fake.gate.set()
        await pilot.see("~12")
        assert "Looking" not in pilot.text.splitlines()[0]
        assert pilot.app.screen._browser.item.name == "huge-70b"


async def test_a_speed_that_was_measured_is_marked_as_such(tmp_path):
    fake = world(tmp_path)
    fake.measured = True
    async with opened(fake, at="small-1b") as pilot:
        assert " 41 " in line(pilot, "small-1b")
        assert "~12" in line(pilot, "mid-8b")


async def test_what_is_loaded_is_in_use_and_not_too_large(tmp_path):
    """Its own memory is not free, so that it would seem not to fit."""
    fake = world(tmp_path)
    small = fake.rows[0]
    assert small.use is not None
    used = msgspec.structs.replace(small.use, by=(this_process(),))
    fake.rows = [replace(small, use=used), *fake.rows[1:]]
    fake.local = {
        small.model.path: option("small-1b", verdict=Verdict.TOO_LARGE, of=SMALL, path=small.model.path)
    }
    async with opened(fake, at="small-1b") as pilot:
        assert "in use" in line(pilot, "small-1b")
        assert "loaded" in line(pilot, "small-1b")
        assert "too large" not in line(pilot, "small-1b")


async def test_what_is_known_of_one(tmp_path):
    async with opened(world(tmp_path), size=(160, 40), at="mid-8b") as pilot:
        await pilot.see("Q3_K_M")
        text = pilot.text
        for words in (
            "mid-8b, by the tests.",
            "MIT · owner/mid-8b-GGUF",
            "Recommended",
            "RAM 4.2 GiB of 16.0 GiB",
            "█ weights 3.0 GiB",
            "▓ cache 1.0 GiB",
            "▒ compute 256 MiB",
            "· free 11.8 GiB",
            "~12 tokens/s, the first after 10 s",
            "8,192 tokens",
            "Quality  good",
            "n-grams",
        ):
            assert words in text, words
        ladder = [found.split("▏")[-1].strip() for found in text.splitlines() if "Q3_K_M" in found]
        assert ladder[0].split() == ["Q3_K_M", "2.0", "GiB", "~15", "0.028", "too", "lossy"]
        assert "nats" not in text
        await pilot.press("w")
        await pilot.pause()
        pilot.shows(
            "• The best that fits here.", "Loses 0.028 nats: a table.", "• mid-8b Q8_0: It does not fit."
        )
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(pilot.app.screen, ModelsScreen)
        await pilot.press("escape", until=lambda: pilot.app.results == [None])


async def test_a_model_outside_the_known_places_is_listed_while_it_answers(hf_cache, tmp_path):
    path = tmp_path / "elsewhere" / "mine.gguf"
    path.parent.mkdir()
    path.symlink_to(tiny())
    async with opened(
        world(tmp_path), str(path), inventory=ModelLibrary.real().inventory, at="mine"
    ) as pilot:
        assert line(pilot, "mine").startswith(" ● mine")
        await pilot.press("enter", until=lambda: pilot.app.results == [str(path)])


async def test_enter_chats_with_what_is_here(tmp_path):
    async with opened(world(tmp_path), at="broken") as pilot:
        await pilot.press("enter", until=lambda: told(pilot) == "It is a web page.")
        await pilot.press("up")
        await go_to(pilot, "small-1b")
        assert "Chat" in pilot.text.splitlines()[-1]
        await pilot.press("enter", until=lambda: pilot.app.results == ["small-1b"])


async def test_the_mouse(tmp_path):
    async with opened(world(tmp_path), at="small-1b") as pilot:
        y = next(n for n, found in enumerate(pilot.text.splitlines()) if "llama3.2:3b" in found)
        await pilot.click(offset=(10, y))
        await pilot.pause()
        assert (pilot.app.results, pilot.app.screen._browser.item.name) == ([], "ollama/llama3.2:3b")
        await pilot.click(offset=(10, y))
        await pilot.until(lambda: pilot.app.results == ["ollama/llama3.2:3b"])


async def test_a_filter(tmp_path):
    async with opened(world(tmp_path), at="small-1b") as pilot:
        await pilot.press("slash", *"ollama", shown="llama3.2", hidden="mid-8b")
        await pilot.press(*"xx", shown="No model matches 'ollamaxx'")
        await pilot.press("backspace", "backspace", "down", "enter")
        await pilot.until(lambda: pilot.app.results == ["ollama/llama3.2:3b"])


async def test_escape_leaves_the_filter_first(tmp_path):
    async with opened(world(tmp_path), size=(60, 20), at="small-1b") as pilot:
        await pilot.press("slash", *"huge", "escape", shown="mid-8b")
        await pilot.press("tab")
        await pilot.pause()
        assert "For download" not in pilot.text, "a low screen shows one pane"
        await pilot.press("escape", "escape", until=lambda: pilot.app.results == [None])


async def test_what_is_wrong_is_said_and_the_list_stays(tmp_path):
    fake = world(tmp_path)
    fake.problem = SettingsError("settings.toml is odd.", hint="Mend it.")
    async with opened(fake, size=(60, 30)) as pilot:
        await pilot.see("settings.toml is odd. Mend it.", shown="small-1b")
        await pilot.press("enter", until=lambda: pilot.app.results == ["small-1b"])


async def test_names_of_strangers_are_inert(tmp_path):
    fake = Fake(rows=[row("ev\x1b[31mil [bold]x\n", tmp_path / "e.gguf")])
    async with opened(fake, size=(100, 30)) as pilot:
        await pilot.see("ev[31mil [bold]x", hidden="\x1b")


# Pulling


def catalogue_of_the_hub(hub, size=2_000_000):
    """Return a catalogue of one model, which the hub has."""
    hub.add("owner/mid-8b-GGUF", {"mid-8b-Q4_K_M.gguf": sized(size), "mid-8b-Q3_K_M.gguf": tiny()})
    folder = paths.config_dir()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "models.toml").write_text(
        '[[model]]\nname = "mid-8b"\ndescription = "x"\nlicence = "MIT"\nrepo = "owner/mid-8b-GGUF"\n'
        'file = "mid-8b-{quant}.gguf"\nquant = "Q4_K_M"\nquality = 4\n'
    )
    ladder = [option("mid-8b", of=MID), option("mid-8b", "Q3_K_M", tiny().stat().st_size, of=MID)]
    return Fake(entries=[MID], best=[option("mid-8b", of=MID)], surveys={"mid-8b": ladder})


def with_rows(fake):
    return {"inventory": lambda _: [one for one in rows() if one.model.name != "guide"]}


async def test_a_pull_goes_on_beside_and_ends_here(hub, hf_cache):
    fake = catalogue_of_the_hub(hub)
    hub.fail("store", SLOW)
    async with opened(fake, at="mid-8b", **with_rows(fake)) as pilot:
        await pilot.press("enter", see="Downloading", hidden="For download")
        await pilot.until(
            lambda: "of 2 MiB" in line(pilot, "mid-8b") and "━" in line(pilot, "mid-8b"), seconds=20
        )
        await pilot.see("On this machine", hidden="Downloading", seconds=20)
        assert pilot.app.screen._browser.item.group is ModelGroup.HERE
        await pilot.press("enter", until=lambda: pilot.app.results == ["mid-8b"])


async def test_a_pull_is_stopped_left_and_gone_on_with(hub, hf_cache):
    fake = catalogue_of_the_hub(hub, 4_000_000)
    hub.fail("store", SLOW)
    async with opened(fake, at="mid-8b", **with_rows(fake)) as pilot:
        await pilot.press("p")
        await pilot.until(lambda: partial(hf_cache) > 200_000, seconds=20)
        await pilot.press("x", until=lambda: "stopped at" in line(pilot, "mid-8b"))
        kept = partial(hf_cache)
        await pilot.press("escape", until=lambda: pilot.app.results == [None])
        hub.mend()
        pilot.app.push_screen(pilot.app._made(), pilot.app.results.append)
        await go_to(pilot, "mid-8b")
        assert "Resume" in pilot.text.splitlines()[-1]
        await pilot.press("enter")
        await pilot.see("On this machine", seconds=20)
        assert kept in {one.range[0] for one in hub.requests("store") if one.range}


async def test_the_screen_may_be_left_while_a_pull_goes_on(hub, hf_cache):
    fake = catalogue_of_the_hub(hub)
    hub.fail("store", SLOW)
    app = stage(fake, **with_rows(fake))
    done = []
    app.pulls.on_done = lambda pull: done.append(pull.model)
    async with driven(app, size=(100, 40)) as pilot:
        await go_to(pilot, "mid-8b")
        await pilot.press("enter", until=lambda: app.pulls.current is not None)
        await pilot.press("escape", until=lambda: app.results == [None])
        await pilot.until(lambda: done == ["mid-8b"], seconds=20)


@pytest.mark.usefixtures("no_waits")
async def test_a_pull_that_fails_says_why_and_can_be_tried_again(hub, hf_cache):
    fake = catalogue_of_the_hub(hub)
    hub.fail("api", Fault(status=500))
    async with opened(fake, at="mid-8b", **with_rows(fake)) as pilot:
        await pilot.press("enter", until=lambda: "failed: " in line(pilot, "mid-8b"))
        text = pilot.text
        assert text.index("Not downloaded") < text.index("! mid-8b")
        assert "Downloading" not in text
        assert "Retry" in text.splitlines()[-1]
        assert pilot.app.pulls.all[0].error is not None
        pilot.shows((pilot.app.pulls.all[0].error.hint or "")[:20])
        await pilot.press("x", see="For download")
        hub.mend()
        await go_to(pilot, "mid-8b")
        await pilot.press("enter")
        await pilot.see("On this machine", seconds=20)


async def test_another_quantization(hub, hf_cache):
    fake = catalogue_of_the_hub(hub)
    async with opened(fake, size=(160, 40), at="mid-8b", **with_rows(fake)) as pilot:
        await pilot.see("Q3_K_M")
        await pilot.press("tab", "down", "enter", until=lambda: bool(pilot.app.pulls.all))
        assert (pilot.app.pulls.all[0].name, pilot.app.pulls.all[0].quant) == ("mid-8b", "Q3_K_M")
        await pilot.until(lambda: pilot.app.pulls.all[0].state is PullState.DONE, seconds=20)
        await pilot.see("On this machine")
        assert inventory().find("mid-8b")[0].quant == "Q3_K_M"


async def test_what_is_too_large_is_asked_about(tmp_path):
    started = []
    app = stage(world(tmp_path))
    app.pulls.start = lambda *words, **more: started.append((*words, more)) or Pulls.start(app.pulls, "x")
    async with driven(app, size=(60, 30)) as pilot:
        await go_to(pilot, "huge-70b")
        await pilot.press("enter", see="Download it anyway?")
        await pilot.press("enter")
        await pilot.pause()
        assert (started, isinstance(app.screen, ModelsScreen)) == ([], True)
        await pilot.press("enter", see="Download it anyway?")
        await pilot.press("y", until=lambda: started == [("huge-70b", None, {"anyway": True})])


async def test_what_turns_out_not_to_fit_is_asked_about(tmp_path):
    """The planner may find that out only once the hub was asked."""
    calls = []

    def decide(*_):
        source = RepoSource(parse_request("owner/mid-8b-GGUF"), None, ())
        choice = ModelChoice("mid", "Q4_K_M", ())
        part = PullPart(source, choice)
        picked = DownloadChoice(part, "a machine", why_not="It needs more than there is.")
        return PullDecision((part,), ((),), picked)

    def bring(*_):
        calls.append(True)
        raise HubUnreachable("That far it came.")

    async with opened(world(tmp_path), decide=decide, download=bring, size=(100, 30), at="mid-8b") as pilot:
        await pilot.press("enter", until=lambda: "failed: It needs more" in line(pilot, "mid-8b"))
        assert calls == []
        await pilot.press("enter", see="Download it anyway?")
        await pilot.press("y", until=lambda: "failed: That far it came." in line(pilot, "mid-8b"))
        assert calls == [True]


async def test_offline(tmp_path):
    fake = world(tmp_path)
    fake.offline = "EDGECHAT_OFFLINE"
    async with opened(fake, size=(160, 40), at="mid-8b") as pilot:
        pilot.shows("It cannot be downloaded now: EDGECHAT_OFFLINE")
        await pilot.press("enter", until=lambda: "mid-8b cannot be downloaded" in told(pilot))
        assert pilot.app.pulls.all == []


async def test_a_repository_that_is_named(hub, hf_cache):
    hub.add(REPO, {"tiny-F32.gguf": tiny()})
    fake = Fake(entries=[MID], best=[option("mid-8b", of=MID)])
    async with opened(fake, at="mid-8b", **with_rows(fake)) as pilot:
        await pilot.press("slash", *REPO.replace("/", "\n").replace("\n", "/"), see="On the hub")
        await pilot.press("down", "enter")
        await pilot.until(
            lambda: bool(pilot.app.pulls.all) and pilot.app.pulls.all[0].state is PullState.DONE, seconds=20
        )
        assert pilot.app.pulls.all[0].name == REPO


# Deleting


@pytest.fixture
def user(tmp_path, monkeypatch):
    homes.settle(tmp_path / "user", monkeypatch)
    return tmp_path / "user"


async def test_deleting_asks_and_tells_what_is_freed(user):
    path = homes.place(tiny(), paths.data_dir() / "models" / "mine.gguf")
    async with opened(Fake(), inventory=ModelLibrary.real().inventory, size=(60, 30), at="mine") as pilot:
        await pilot.press("d", see="Delete mine? This frees")
        await pilot.press("n")
        await pilot.pause()
        assert path.exists()
        await pilot.press("delete", see="Delete mine? This frees")
        await pilot.press("right", "enter", until=lambda: "Deleted mine." in told(pilot))
        assert not path.exists()
        await pilot.gone("mine  ")


async def test_what_another_tool_keeps_is_not_deleted(user):
    blob = homes.in_ollama(user, tiny(), "llama3.2:3b")
    async with opened(
        Fake(), inventory=ModelLibrary.real().inventory, size=(100, 30), at="ollama/llama3.2:3b"
    ) as pilot:
        await pilot.press("d", until=lambda: "ollama rm llama3.2:3b" in told(pilot))
        assert blob.exists()


# The whole of it


@pytest.mark.parametrize("timed", [False, pytest.param(True, marks=pytest.mark.soak)])
async def test_the_real_library(user, timed):
    """The catalogue that is shipped, held against the machine that runs the tests; keys go on meanwhile."""
    homes.place(tiny(), paths.data_dir() / "models" / "mine.gguf")
    app = Stage(ModelLibrary.real(), lambda library, pulls: ModelsScreen(library, pulls))
    async with driven(app, size=(100, 40)) as pilot:
        gaps = []

        async def beat():
            while True:
                start = time.perf_counter()
                await asyncio.sleep(0.005)
                gaps.append(time.perf_counter() - start)

        beating = asyncio.create_task(beat())
        await pilot.until(lambda: "free" in pilot.text.splitlines()[0], seconds=60)
        beating.cancel()
        pilot.shows("mine", "qwen")
        assert not timed or sorted(gaps)[int(len(gaps) * 0.95)] < 0.1
